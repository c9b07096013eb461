"""The judge's side: makes the inputs and computes the answer, in float64."""

import torch
from task import DTYPES, EPSILON, input_t, output_t


def generate_input(tokens: int, hidden: int, seed: int, regime: str = "normal") -> input_t:
    """(x, weight) of a case, made on the GPU where there is one: the same seed gives the same contents."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=generator, device=device)
    if regime == "shifted":  # a mean that is subtracted by mistake shows
        x = x + 1
    elif regime == "small":  # as small as EPSILON, which then counts
        x = x / 256
    weight = 1 + torch.randn(hidden, generator=generator, device=device) / 4
    return x.to(DTYPES["x"]), weight.to(DTYPES["weight"])


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [tokens, hidden], or only these rows of it: the answer before it is rounded to the output's dtype."""
    x, weight = (part.double() for part in data)
    if rows is not None:
        x = x[rows]
    return (x / (x.square().mean(dim=1, keepdim=True) + EPSILON).sqrt() * weight).float()


def ref_kernel(data: input_t) -> output_t:
    """What a right submission returns, in exactly this form."""
    return expected(data).to(DTYPES["y"])
