"""The judge's side of matmul: two float16 matrices and their product."""

import torch

Data = tuple[torch.Tensor, torch.Tensor]


def generate_input(m: int, n: int, k: int, seed: int) -> Data:
    """(A [m, k], B [k, n]), float16, standard normal: one kernel each, since a batch asks for many."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float16, device=device) for shape in ((m, k), (k, n)))
    return a, b


def expected(data: Data, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [m, n] (or [len(rows), n]), from a product in float64: no switch of torch's turns that into TF32."""
    a, b = data
    if rows is not None:
        a = a[rows]
    return (a.double() @ b.double()).float()


def ref_kernel(data: Data) -> torch.Tensor:
    """float16 [m, n]."""
    return expected(data).half()


def check_implementation(data: Data, output: torch.Tensor) -> tuple[bool, str]:
    """Whether every element is within 1e-2 * (sqrt(k) + |reference|), and what is wrong otherwise."""
    ok = torch.allclose(output.float(), expected(data), rtol=1e-2, atol=1e-2 * data[0].shape[1] ** 0.5)
    return ok, "" if ok else "not within 1e-2 of A @ B"
