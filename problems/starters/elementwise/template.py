"""A starting point: right, and slow, since torch reads and writes everything anew at each step."""

import torch
from task import DTYPES, EPSILON, input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """y [tokens, hidden] of (x, weight)."""
    x, weight = data
    scale = torch.rsqrt(x.float().square().mean(dim=1, keepdim=True) + EPSILON)
    return (x.float() * scale * weight.float()).to(DTYPES["y"])
