"""The edge where people's YAML becomes data: types checked, unknown keys refused, each error with its line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from harness.errors import ProblemError
from harness.problem import RowLimits, Tolerance
from harness.roofline import evaluate

MAX_BYTES = 1 << 20
Scalar = int | bool | str | float
Spec = dict[str, Scalar]


def _strict_number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"expected a number, got {value!r}")
    return value


Number = Annotated[float, BeforeValidator(_strict_number)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LimitsModel(_Strict):
    """One precision's limits, all optional over the default."""

    row_relative: Annotated[Number, Field(gt=0)] | None = None
    rtol: Annotated[Number, Field(ge=0)] | None = None
    atol: Annotated[Number, Field(ge=0)] | None = None
    atol_rms: Annotated[Number, Field(ge=0)] | None = None
    mismatched: Annotated[Number, Field(ge=0, lt=1)] | None = None
    outlier_rows: Annotated[Number, Field(ge=0, lt=1)] | None = None
    outlier_row_relative: Annotated[Number, Field(ge=0)] | None = None


class ToleranceModel(LimitsModel):
    """`tolerance:`; row_relative is required here."""

    row_relative: Annotated[Number, Field(gt=0)]
    per_precision: dict[str, LimitsModel] = {}


class RooflineModel(_Strict):
    """`roofline:`"""

    bytes: str
    operations: dict[Literal["fp4", "fp8", "bf16", "fp32"], str] = {}

    @field_validator("bytes", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class TaskModel(_Strict):
    """task.yml: GPU MODE's keys, then ours."""

    files: list[tuple[str, str]]
    lang: str = "py"
    description: str = ""
    config: dict[str, Any] = {}
    tests: list[Spec] = []
    benchmarks: list[Spec] = []
    test_timeout: Annotated[Number, Field(gt=0)] = 180
    benchmark_timeout: Annotated[Number, Field(gt=0)] = 180
    ranked_timeout: Annotated[Number, Field(gt=0)] = 180
    ranking_by: Literal["last", "mean", "geom"] = "last"
    templates: dict[str, str] = {}
    seed: int | None = None
    gpus: list[str] = []
    multi_gpu: bool = False
    milestones: list[Any] = []

    title: str = ""
    aliases: list[str] = []
    precisions: list[str] = []
    regimes: list[str] = []
    shared_inputs: list[str] = []
    tolerance: ToleranceModel | None = None
    roofline: RooflineModel | None = None
    smoke: list[Spec] = []

    @field_validator("files", mode="before")
    @classmethod
    def _file_entries(cls, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("expected a list of {name, source}")
        return [_file_entry(item) for item in value]

    @field_validator("aliases", "precisions", "regimes", mode="after")
    @classmethod
    def _no_twins(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("an entry occurs twice")
        return value

    @field_validator("tests", "benchmarks", "smoke", mode="before")
    @classmethod
    def _flat_cases(cls, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("expected a list of cases")
        for number, spec in enumerate(value, 1):
            if not isinstance(spec, dict) or not spec:
                raise ValueError(f"case {number} is not a mapping of names to values")
            for name, item in spec.items():
                if not isinstance(item, int | bool | str | float):
                    raise ValueError(f"case {number}: {name!r} must be a number, a bool or text")
        return [{str(name): item for name, item in spec.items()} for spec in value]

    def frozen_tolerance(self) -> Tolerance | None:
        """`tolerance:` as the judge takes it."""
        if self.tolerance is None:
            return None
        default = {
            name: value
            for name, value in self.tolerance.model_dump(exclude={"per_precision"}).items()
            if value is not None
        }
        per = {
            name: RowLimits(**{**default, **limits.model_dump(exclude_none=True)})
            for name, limits in self.tolerance.per_precision.items()
        }
        return Tolerance(RowLimits(**default), per)


def _file_entry(item: Any) -> tuple[str, str]:
    if not isinstance(item, dict) or set(item) != {"name", "source"}:
        raise ValueError(f"{item!r} is not {{name, source}}")
    name, source = str(item["name"]), str(item["source"])
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"the name {name!r} must be flat, without folders")
    return name, source


def _contradiction(task: TaskModel) -> tuple[tuple[str, ...], str] | None:
    """What no single field shows: the place and the message of the first contradiction."""
    if not task.tests and not task.benchmarks:
        return ("tests",), "there are neither tests nor benchmarks"
    for name in task.tolerance.per_precision if task.tolerance else ():
        if name not in task.precisions:
            return ("tolerance", "per_precision", name), "is not declared in `precisions`"
    for spec in (*task.tests, *task.benchmarks, *task.smoke) if task.roofline else ():
        assert task.roofline is not None
        expressions: dict[tuple[str, ...], str] = {("roofline", "bytes"): task.roofline.bytes}
        expressions |= {("roofline", "operations", kind): text for kind, text in task.roofline.operations.items()}
        for place, expression in expressions.items():
            try:
                value = evaluate(expression, spec)
            except ProblemError as error:
                return place, str(error)
            if not value >= 0:
                return place, f"{expression!r} is {value:g} for {spec}"
    return None


# --- reading, with lines -----------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, and aliases, which could blow a small file up."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "YAML aliases are not used here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} occurs twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_task(path: Path) -> TaskModel:
    """Parse and check a task.yml; ProblemError `path:line: field 'x.y': what is wrong`."""
    try:
        content = path.read_bytes()
        text = content[: MAX_BYTES + 1].decode("utf-8")
    except OSError as error:
        raise ProblemError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProblemError(f"{path} is not UTF-8 text") from None
    if len(content) > MAX_BYTES:
        raise ProblemError(f"{path} has {len(content)} bytes; a task.yml has at most {MAX_BYTES}")
    try:
        root = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ProblemError(f"{path}:{mark.line + 1 if mark else 1}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ProblemError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise ProblemError(f"{path}:1: a task.yml is a mapping of keys to values; this one is {_what(data)}")
    try:
        task = TaskModel.model_validate(data)
    except ValidationError as error:
        raise ProblemError(_explain(path, root, error)) from None
    if (found := _contradiction(task)) is not None:
        place, message = found
        raise ProblemError(f"{path}:{_line(root, place)}: field {'.'.join(place)!r}: {message}")
    return task


def _what(data: Any) -> str:
    return "empty" if data is None else f"a {type(data).__name__}"


def _explain(path: Path, root: Any, error: ValidationError) -> str:
    """The first error in the file's order: its line, its field, and the nearest name for an unknown key."""
    found = [(_line(root, each["loc"]), each) for each in error.errors()]
    line, first = min(found, key=lambda pair: pair[0])
    field = ".".join(str(step) for step in first["loc"] if not _is_type(step))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key" + _nearest(first["loc"])
    elif first["type"] == "missing":
        message = "is required"
    where = f"field {field!r}: " if field else ""
    return f"{path}:{line}: {where}{message}"


def _is_type(step: Any) -> bool:
    return isinstance(step, str) and (step in ("int", "bool", "str", "float") or "[" in step)


def _nearest(location: tuple[Any, ...]) -> str:
    models: dict[str, type[BaseModel]] = {"tolerance": ToleranceModel, "roofline": RooflineModel}
    model = TaskModel if len(location) == 1 else models.get(str(location[0]), LimitsModel)
    near = difflib.get_close_matches(str(location[-1]), list(model.model_fields), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _line(node: Any, location: tuple[Any, ...]) -> int:
    """The line of the deepest part of a location that the document has."""
    line = 1
    for step in location:
        child = _child(node, step)
        if child is None:
            break
        line, node = child
    return line


def _child(node: Any, step: Any) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None
