"""The edge where people's YAML becomes data: types checked, unknown keys refused, each error with its line."""

from __future__ import annotations

import difflib
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    field_validator,
)

from harness.errors import ProblemError
from harness.problem import SUBMISSION_MARK, RowLimits, Tolerance
from harness.roofline import evaluate

MAX_BYTES = 1 << 20
Scalar = int | bool | str | float
Spec = dict[str, Scalar]


def _strict_number(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+", value):
        raise ValueError(f"YAML reads {value} as text: a number has a point and a sign in it, as 1.0e-3 or 1.0e+3")
    if isinstance(value, bool | str):
        raise ValueError(f"expected a number, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {value}")
    return value


def _flat_case(spec: Any) -> Any:
    if not isinstance(spec, dict) or not spec:
        raise ValueError("a case is a mapping of names to values")
    for name, item in spec.items():
        if not isinstance(item, int | bool | str | float):
            raise ValueError(f"{name!r} must be a number, a bool or text")
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{name!r} must be finite")
    return spec


def _file_entry(item: Any) -> Any:
    if not isinstance(item, dict) or set(item) != {"name", "source"}:
        raise ValueError(f"{item!r} is not {{name, source}}")
    name, source = item["name"], item["source"]
    if not isinstance(name, str) or not isinstance(source, str):
        raise ValueError(f"{item!r}: name and source are text; put them into quotes")
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"the name {name!r} must be flat, without folders")
    if not (name + source).isprintable():
        raise ValueError(f"{name + source!r} has a character that no path has")
    return name, source


def _board_name(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[^\s/\\]+", value):
        raise ValueError(f"{value!r} is no name that a #!POPCORN line could give: no spaces, no slashes, not empty")
    return value


Number = Annotated[float, BeforeValidator(_strict_number)]
FileItem = Annotated[tuple[str, str], BeforeValidator(_file_entry)]
CaseItem = Annotated[Spec, BeforeValidator(_flat_case)]
BoardName = Annotated[str, BeforeValidator(_board_name)]


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


class ConfigModel(BaseModel):
    """`config:`, of which only the evaluator's name matters: what else stands there is for upstream's own runner."""

    model_config = ConfigDict(extra="allow")

    main: str = "eval.py"


class TaskModel(_Strict):
    """task.yml: GPU MODE's keys, then ours."""

    files: list[FileItem]
    lang: str = "py"
    description: str = ""
    config: ConfigModel = ConfigModel()
    tests: list[CaseItem] = []
    benchmarks: list[CaseItem] = []
    test_timeout: Annotated[Number, Field(gt=0)] = 180
    benchmark_timeout: Annotated[Number, Field(gt=0)] = 180
    ranked_timeout: Annotated[Number, Field(gt=0)] = 180
    ranking_by: Literal["last", "mean", "geom"] = "last"
    templates: dict[str, str] = {}
    seed: StrictInt | None = None
    gpus: list[str] = []
    multi_gpu: StrictBool = False
    milestones: list[Any] = []

    title: str = ""
    aliases: list[BoardName] = []
    precisions: list[str] = []
    regimes: list[str] = []
    shared_inputs: list[str] = []
    tolerance: ToleranceModel | None = None
    roofline: RooflineModel | None = None
    smoke: list[CaseItem] = []

    @field_validator("aliases", "precisions", "regimes", "shared_inputs", mode="after")
    @classmethod
    def _no_twins(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("an entry occurs twice")
        return value

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


Place = tuple[str | int, ...]


def _bad_file(task: TaskModel, folder: Path) -> tuple[Place, str] | None:
    names: list[str] = []
    for index, (name, source) in enumerate(task.files):
        if name in names:
            return ("files", index), f"the name {name!r} occurs twice"
        names.append(name)
        # The evaluator that upstream runs has no part here, and need not be there.
        unused = source == SUBMISSION_MARK or (name in ("eval.py", task.config.main) and name != "reference.py")
        if not unused and not os.path.isfile(folder / source):
            return ("files", index), f"file {name!r} is listed, but {os.path.abspath(folder / source)} is no file"
    if ("reference.py" not in names) or ("reference.py", SUBMISSION_MARK) in task.files:
        return ("files",), "lists no reference.py, so nothing could be judged"
    return None


def _bad_regime(task: TaskModel) -> tuple[Place, str] | None:
    for where, specs in (("tests", task.tests), ("benchmarks", task.benchmarks), ("smoke", task.smoke)):
        for index, spec in enumerate(specs):
            if task.regimes and spec.get("regime", task.regimes[0]) not in task.regimes:
                return (where, index, "regime"), f"{spec['regime']!r} is none of `regimes`: {', '.join(task.regimes)}"
    return None


def _contradiction(task: TaskModel, folder: Path) -> tuple[Place, str] | None:
    """What no single field shows: the place and the message of the first contradiction."""
    if (found := _bad_file(task, folder) or _bad_regime(task)) is not None:
        return found
    if not task.tests and not task.benchmarks:
        return ("tests",), "there are neither tests nor benchmarks"
    for name in task.tolerance.per_precision if task.tolerance else ():
        if name not in task.precisions:
            return ("tolerance", "per_precision", name), "is not declared in `precisions`"
    for spec in (*task.tests, *task.benchmarks, *task.smoke) if task.roofline else ():
        assert task.roofline is not None
        expressions: dict[Place, str] = {("roofline", "bytes"): task.roofline.bytes}
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


_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null")}


def _refusal(message: str, mark: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, message, mark)


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, aliases, which could blow a small file up, and all but plain data."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.events.AliasEvent):
            raise _refusal("YAML aliases are not used here", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _refusal("YAML tags are not used here", event.start_mark)
        node = super().compose_node(parent, index)
        if node is not None and node.tag not in _PLAIN:  # a date, << or =
            raise _refusal(f"{node.value!r} has a meaning of its own in YAML; put it into quotes", node.start_mark)
        return node

    def construct_yaml_int(self, node: Any) -> Any:
        try:
            return super().construct_yaml_int(node)
        except ValueError:  # thousands of digits, or 0b_
            raise _refusal("this is no number that can be read", node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _refusal("a key must be a word; put it into quotes", key_node.start_mark)
            if key in seen:
                raise _refusal(f"the key {key!r} occurs twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_task(path: Path) -> TaskModel:
    """Parse and check a task.yml; ProblemError `path:line: field 'x.y': what is wrong`."""
    text = _read_text(path)
    try:
        root = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"{error.context}, {error.problem}" if f"{error.problem}".startswith("but ") else error.problem
        raise ProblemError(f"{path}:{mark.line + 1 if mark else 1}: {problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ProblemError(f"{path}:{line}: the character {ord(text[error.position]):#x} is not allowed") from None
    except RecursionError:
        raise ProblemError(f"{path}:1: it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ProblemError(f"{path}:1: a task.yml is a mapping of keys to values; this one is {_what(data)}")
    try:
        task = TaskModel.model_validate(data)
    except ValidationError as error:
        raise ProblemError(_explain(path, root, error)) from None
    if (found := _contradiction(task, path.parent)) is not None:
        place, message = found
        raise ProblemError(f"{path}:{_line(root, place)}: field {'.'.join(map(str, place))!r}: {message}")
    return task


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProblemError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ProblemError(f"{path}:1: a task.yml has at most {MAX_BYTES} bytes; this one has more")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ProblemError(f"{path}:{line}: this is not UTF-8 text; save it as UTF-8") from None


def _what(data: Any) -> str:
    return "empty" if data is None else f"a {type(data).__name__}"


def _explain(path: Path, root: Any, error: ValidationError) -> str:
    """The first error in the file's order: its line, its field, and the nearest name for an unknown key.

    What is missing comes last: a required key that is misspelt is an unknown one first of all.
    """
    found = [(_line(root, each["loc"]), each) for each in error.errors()]
    line, first = min(found, key=lambda pair: (pair[1]["type"] == "missing", pair[0]))
    field = ".".join(str(step) for step in first["loc"] if step != "[key]")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key" + _nearest(first["loc"])
    elif first["type"] == "missing":
        message = "is required"
    elif first["type"] == "string_type" and isinstance(first["input"], int | float):
        message += f"; put {str(first['input']).lower()} into quotes"
    elif first["type"] == "model_type":
        message = "expected a mapping of keys to values"
    where = f"field {field!r}: " if field else ""
    return f"{path}:{line}: {where}{message}"


def _nearest(location: tuple[Any, ...]) -> str:
    models: dict[Any, type[BaseModel]] = {
        (): TaskModel,
        ("tolerance",): ToleranceModel,
        ("roofline",): RooflineModel,
    }
    model = models.get(location[:-1], LimitsModel)
    near = difflib.get_close_matches(str(location[-1]), list(model.model_fields), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _line(node: Any, location: Place) -> int:
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
