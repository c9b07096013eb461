"""What is bent for a foreign problem, under `--device cpu` alone: where its code says cuda, it gets the CPU.

Problems of GPU MODE name their device in the code: `torch.randn(..., device="cuda")`, `torch.Generator(device="cuda")`,
`tensor.to("cuda")`, `tensor.cuda()`, `torch.cuda.synchronize()`. Inside `cpu_for_cuda` these mean the CPU. Random
numbers are other ones than a GPU's then, for the same seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Moved(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.device:
            return _moved(function(*args, **(kwargs or {})))
        named = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return function(*map(_moved, args), **named)


def _moved(value: Any) -> Any:
    """A device as it is meant here; everything else as it is."""
    named = value.partition(":")[0] if isinstance(value, str) else value.type if isinstance(value, torch.device) else ""
    return torch.device("cpu") if named == "cuda" else value


class _Generator:
    """Stands in for torch.Generator."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _REAL_GENERATOR(_moved(device))


_REAL_GENERATOR = torch.Generator


@contextlib.contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """Have torch take the CPU for cuda."""
    known: dict[tuple[Any, str], Any] = {
        (torch, "Generator"): _Generator,
        (torch.cuda, "synchronize"): lambda device=None: None,
        (torch.cuda, "manual_seed"): lambda seed: None,  # torch.manual_seed, which calls it, has seeded the CPU
        (torch.cuda, "manual_seed_all"): lambda seed: None,
    }
    before = {place: getattr(*place) for place in known}
    for (module, name), stand_in in known.items():
        setattr(module, name, stand_in)
    try:
        with _Moved():
            yield
    finally:
        for (module, name), own in before.items():
            setattr(module, name, own)
