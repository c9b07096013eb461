"""The judge's side of vectoradd: two float16 matrices and their sum."""

import torch

Data = tuple[torch.Tensor, torch.Tensor]


def generate_input(size: int, seed: int) -> Data:
    """(A, B), float16 [size, size], standard normal: one kernel each, since a batch asks for many."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (torch.randn(size, size, generator=generator, dtype=torch.float16, device=device) for _ in range(2))
    return a, b


def expected(data: Data, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [size, size] (or [len(rows), size]): the sum before it is rounded to float16."""
    a, b = data if rows is None else (part[rows] for part in data)
    return a.float() + b.float()


def ref_kernel(data: Data) -> torch.Tensor:
    """float16 [size, size]."""
    return expected(data).half()


def check_implementation(data: Data, output: torch.Tensor) -> tuple[bool, str]:
    """Whether every element is within 1e-3 + 1e-3 * |reference|, and what is wrong otherwise."""
    ok = torch.allclose(output.float(), expected(data), rtol=1e-3, atol=1e-3)
    return ok, "" if ok else "not within 1e-3 of A + B"
