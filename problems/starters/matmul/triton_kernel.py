"""A Triton kernel to begin with: a program for each tile of the output, which goes along the sum."""

import torch
import triton
import triton.language as tl
from task import DTYPES, input_t, output_t

# On the CPU Triton's interpreter takes bfloat16 for integers in a dot; there the factors are widened first.
WIDENED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def custom_kernel(data: input_t) -> output_t:
    """y [m, n] of (x [m, k], weight [k, n])."""
    x, weight = data
    (m, k), n = x.shape, weight.shape[1]
    y = torch.empty(m, n, dtype=DTYPES["y"], device=x.device)
    block_m, block_n, block_k = (16 if m <= 16 else 64), 64, 32
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    product_kernel[grid](x, weight, y, m, n, k, block_m, block_n, block_k)
    return y


@triton.jit
def product_kernel(
    x_ptr, weight_ptr, y_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """One tile of the output; what sticks out past an edge reads zeros and is not written."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]).to(tl.int64)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        across, down = start + tl.arange(0, BLOCK_K)[None, :], start + tl.arange(0, BLOCK_K)[:, None]
        x = tl.load(x_ptr + row * k + across, mask=(row < m) & (across < k), other=0.0)
        weight = tl.load(weight_ptr + down * n + column, mask=(down < k) & (column < n), other=0.0)
        if WIDENED:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        sums = tl.dot(x, weight, sums, input_precision="ieee")  # float32 stays float32; bfloat16 is exact anyway
    tl.store(y_ptr + row * n + column, sums, mask=(row < m) & (column < n))
