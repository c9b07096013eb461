#!POPCORN leaderboard vectoradd
"""One Triton program for each 1024 elements: 8 of them, 16 bytes, for each thread."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


def custom_kernel(data):
    """float16 A + B."""
    a, b = data
    c = torch.empty_like(a)
    add_kernel[(triton.cdiv(a.numel(), BLOCK),)](a, b, c, a.numel(), BLOCK, num_warps=4)
    return c


@triton.jit
def add_kernel(a_ptr, b_ptr, c_ptr, count, BLOCK: tl.constexpr):
    """C of one block."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    a = tl.load(a_ptr + offsets, mask=inside)
    b = tl.load(b_ptr + offsets, mask=inside)
    tl.store(c_ptr + offsets, a + b, mask=inside)
