"""The problem's own code, as the oracle calls it: generator, reference, published check, and what it offers beyond."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from harness.problem import RowLimits
from harness.processes import sharing
from harness.processes.cpu_for_cuda import cpu_for_cuda


@dataclass
class Reference:
    """The problem's module and what task.yml says about judging it."""

    module: ModuleType
    precisions: tuple[str | None, ...]
    limits: dict[str | None, RowLimits] | None
    """By precision; None for a problem that is judged by its own check."""
    shared_paths: tuple[tuple[str, ...], ...]
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """What the module's functions run in."""

    def has(self, name: str) -> bool:
        """Whether the problem offers this optional function."""
        return callable(getattr(self.module, name, None))

    def generate(self, spec: dict[str, Any]) -> Any:
        """Fresh data of a case."""
        with self.around():
            return _call(self.module.generate_input, spec)

    def renew(self, base: Any, spec: dict[str, Any]) -> Any:
        """Data with the same shared inputs as `base` and everything else fresh; all fresh where that is not offered."""
        return _call(self.module.renew_input, spec, base) if self.has("renew_input") else self.generate(spec)

    def refresh(self, data: Any, offset: int) -> Any:
        """The same with its shared inputs moved, where the problem offers that."""
        return self.module.refresh(data, offset) if self.shared_paths and self.has("refresh") else data

    def output(self, data: Any) -> Any:
        """What a right submission returns, in exactly its form; a foreign reference may write to its inputs."""
        with self.around():
            return self.module.ref_kernel(copied(data) if self.limits is None else data)

    def expected(self, data: Any, precision: str | None, rows: torch.Tensor | None) -> torch.Tensor:
        """float32 expectation at a precision, of these rows of dimension 0 (None: all)."""
        if self.has("expected"):
            wanted: torch.Tensor = self.module.expected(data, precision=precision, rows=rows)
            return wanted
        whole = self.output(data).float()
        return whole if rows is None else whole[rows]

    def shared(self, data: Any) -> list[torch.Tensor]:
        """The tensors that all calls of a batch share."""
        return [tensor for path in self.shared_paths for tensor in _at(data, path)]

    def published(self, data: Any, output: Any) -> tuple[bool, str] | None:
        """The verdict of the check published for the competition; old ones return only a text, empty when right."""
        if not self.has("check_implementation"):
            return None
        with self.around():
            answer = self.module.check_implementation(data, output)
        if isinstance(answer, str):
            return answer == "", answer
        ok, message = answer
        return bool(ok), str(message or "")


def open_reference(folder: str, judging: dict[str, Any], device: str = "cpu") -> Reference:
    """Import reference.py from the folder where a problem's files lie flat; `judging` as the referee sends it.

    A foreign problem's code finds the CPU where it says cuda, on the device `cpu`.
    """
    sys.path.insert(0, folder)
    os.chdir(folder)
    tolerance = judging["tolerance"]
    around = cpu_for_cuda if tolerance is None and device == "cpu" else contextlib.nullcontext
    with around():
        module = importlib.import_module("reference")
    paths = tuple(tuple(path.split(".")) for path in judging["shared_inputs"])
    renews = callable(getattr(module, "renew_input", None))
    return Reference(
        module,
        tuple(judging["precisions"]) or (None,),
        None if tolerance is None else {name or None: RowLimits(**values) for name, values in tolerance.items()},
        paths if renews else (),  # without renew_input every set has contents of its own
        around,
    )


def copied(tree: Any) -> Any:
    """The same tree with tensors of its own."""
    return sharing.mapped(tree, torch.Tensor.clone)


def _call(function: Callable[..., Any], spec: dict[str, Any], *positional: Any) -> Any:
    """Call with the names of a case, leaving out `seed` where the function does not take it."""
    accepted = inspect.signature(function).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    return function(*positional, **{k: v for k, v in spec.items() if takes_any or k in accepted or k != "seed"})


def _at(data: Any, path: tuple[str, ...]) -> list[torch.Tensor]:
    """All tensors of the subtree at a path of tuple indices and dict keys."""
    for step in path:
        data = data[step] if isinstance(data, dict) else data[int(step)]
    return sharing.tensors(data)
