"""What a kernel is handed and what it returns, found by making one small case: no page can then tell it wrongly.

The problem's own code runs in the oracle, never here, and has a limited time for it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness import wire
from harness.cases import Case
from harness.errors import PodiumError
from harness.problem import Problem
from harness.processes.court import Court, NoRoom
from harness.progress import Listener, Progress

IMPORT_S, CASE_S = 60.0, 20.0
"""What the reference's import, with torch on a cold disk, and one small case may take."""


@dataclass(frozen=True)
class Part:
    """A tensor of the data, or a plain value in it."""

    path: str
    """Tuple indices and dict keys, as `shared_inputs` names them; empty for what is no part of anything."""
    name: str
    """What the template calls it, where it does."""
    dtype: str
    shape: tuple[int, ...] | None
    """None for a plain value."""
    size_bytes: int
    is_shared: bool = False
    """The same for all calls of a batch."""
    value: Any = None
    is_contiguous: bool = True


@dataclass(frozen=True)
class Form:
    """The data and the output of one case."""

    case: str
    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]


def form_of(problem: Problem, listen: Listener = lambda progress: None) -> Form | str:
    """The form of a small case on the CPU; in a line, why it cannot be told."""
    case = _smallest(problem)
    listen(Progress("look at the tensors", case.name))
    try:
        with Court(problem, "cpu") as court:
            court.hear(wire.Opened, timeout_s=IMPORT_S)
            staged = court.ask(wire.Stage(dict(case.spec), 1, (0,)), wire.Staged, timeout_s=CASE_S)
    except (PodiumError, NoRoom) as error:
        return " ".join(str(error).split())
    plan = staged.layout
    ((_, content),) = plan["inputs"][0].items()
    names = template_names(problem, len(content) if isinstance(content, list) else 1)
    return Form(
        case.name,
        tuple(_parts(plan["inputs"][0], (), names, problem.shared_inputs)),
        tuple(_parts(plan["outputs"][0], (), (), ())),
    )


def _smallest(problem: Problem) -> Case:
    """The first small case, or the test with the least product of its numbers."""
    return problem.smoke[0] if problem.smoke else min((*problem.tests, *problem.benchmarks), key=_volume)


def _volume(case: Case) -> float:
    return math.prod(max(1, abs(value)) for value in case.shape.values() if isinstance(value, int | float))


def _parts(plan: Any, path: tuple[str, ...], names: tuple[str, ...], shared: tuple[str, ...]) -> Iterator[Part]:
    """The leaves of a tree as harness.processes.sharing describes it."""
    ((kind, content),) = plan.items()
    if kind in ("tuple", "list", "dict"):
        items = content if kind == "dict" else enumerate(content)
        for step, item in items:
            yield from _parts(item, (*path, str(step)), names, shared)
        return
    place = ".".join(path)
    name = names[int(path[0])] if path and path[0].isdigit() and int(path[0]) < len(names) else ""
    name = ".".join([name, *path[1:]]) if name else place
    if kind == "tensor":
        is_shared = any(f"{place}.".startswith(f"{each}.") for each in shared)
        shape = tuple(content["shape"])
        yield Part(
            place, name, content["dtype"], shape, content["bytes"], is_shared,
            is_contiguous=_is_contiguous(shape, content["stride"]),
        )  # fmt: skip
    else:
        yield Part(place, name, type(content).__name__ if kind == "value" else kind, None, 0, value=content)


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected and 0 not in shape:
            return False
        expected *= size
    return True


def template_names(problem: Problem, count: int) -> tuple[str, ...]:
    """What the template unpacks the `count` parts of `data` into, read and not run; empty for one without a name."""
    try:
        source = (problem.folder / problem.templates.get("Python", "template.py")).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "data":
            target = node.targets[0]
            if isinstance(target, ast.Tuple):
                return _spread(target.elts, count)
    return ()


def _spread(targets: Sequence[ast.expr], count: int) -> tuple[str, ...]:
    names: list[str] = []
    for target in targets:
        if isinstance(target, ast.Starred):
            names += [""] * (count - len(targets) + 1)
        else:
            names.append(target.id.lstrip("_") if isinstance(target, ast.Name) else "")
    return tuple(names) if len(names) == count else ()
