#!POPCORN leaderboard matmul
"""A plain tiled product in Triton: one tile of C for each program, float32 sums, a tile size by the size of C."""

import torch
import triton
import triton.language as tl


def custom_kernel(data):
    """float16 A @ B."""
    a, b = data
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    block_m, block_n, block_k, warps = tile_for(m * n)
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    matmul_kernel[grid](a, b, c, m, n, k, block_m, block_n, block_k, num_warps=warps, num_stages=3)
    return c


def tile_for(elements):
    """(rows, columns, depth, warps) of a tile: large where there are enough of them to fill a GPU."""
    if elements < 1024 * 1024:
        return 32, 32, 64, 4
    if elements < 2048 * 2048:
        return 128, 128, 64, 4
    return 128, 256, 64, 8


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """One tile of C. Tiles that stick out past m, n or k read zeros there."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        across = start + tl.arange(0, BLOCK_K)[None, :]
        down = start + tl.arange(0, BLOCK_K)[:, None]
        a = tl.load(a_ptr + rows * k + across, mask=(rows < m) & (across < k), other=0.0)
        b = tl.load(b_ptr + down * n + columns, mask=(down < k) & (columns < n), other=0.0)
        sums = tl.dot(a, b, sums)
    tl.store(c_ptr + rows * n + columns, sums.to(tl.float16), mask=(rows < m) & (columns < n))
