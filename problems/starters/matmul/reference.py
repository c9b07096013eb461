"""The judge's side: makes the inputs and computes the answer, in float64."""

import torch
from task import DTYPES, input_t, output_t


def generate_input(m: int, n: int, k: int, seed: int, regime: str = "normal") -> input_t:
    """(x, weight) of a case, made on the GPU where there is one: the same seed gives the same contents."""
    return made((m, k), "x", seed, regime), made((k, n), "weight", seed, regime)


def renew_input(data: input_t, m: int, n: int, k: int, seed: int, regime: str = "normal") -> input_t:
    """The same weight, the very tensor, and the x that generate_input makes for this seed."""
    return made((m, k), "x", seed, regime), data[1]


def refresh(data: input_t, offset: int) -> input_t:
    """The weight with its columns moved on, so that no answer of an earlier batch is one of the next."""
    return data[0], data[1].roll(offset, 1)


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [m, n], or only these rows of it: the answer before it is rounded to the output's dtype."""
    x, weight = data
    if rows is not None:
        x = x[rows]
    return (x.double() @ weight.double()).float()


def ref_kernel(data: input_t) -> output_t:
    """What a right submission returns, in exactly this form."""
    return expected(data).to(DTYPES["y"])


def made(shape: tuple[int, int], name: str, seed: int, regime: str) -> torch.Tensor:
    """One of the two matrices; the seeds of both are different ones."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(4 * (seed % (1 << 60)) + list(DTYPES).index(name))
    matrix = torch.randn(shape, generator=generator, device=device)
    if regime == "shifted":  # sums grow with their length: one that is cut off shows
        matrix = matrix + 1
    elif regime == "heavy":  # few large elements among many small ones
        matrix = matrix**3
    return matrix.to(DTYPES[name])
