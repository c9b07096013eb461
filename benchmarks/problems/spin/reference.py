"""The judge's side of spin: a vector, how long to spin, and the vector plus one."""

import torch

Data = tuple[torch.Tensor, int]
LENGTH = 1024


def generate_input(ticks: int, seed: int) -> Data:
    """(x, ticks): x float32 [1024], standard normal."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randn(LENGTH, generator=torch.Generator(device).manual_seed(seed), device=device), ticks


def expected(data: Data, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [1024] (or [len(rows)]): x + 1, whatever the ticks."""
    return (data[0] if rows is None else data[0][rows]) + 1


def ref_kernel(data: Data) -> torch.Tensor:
    """float32 [1024]."""
    return expected(data)


def check_implementation(data: Data, output: torch.Tensor) -> tuple[bool, str]:
    """Whether every element is x + 1, and what is wrong otherwise."""
    ok = torch.allclose(output, expected(data), rtol=1e-6, atol=1e-6)
    return ok, "" if ok else "not x + 1"
