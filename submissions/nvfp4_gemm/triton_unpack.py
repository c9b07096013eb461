#!POPCORN leaderboard nvfp4_gemm
"""One Triton kernel that unpacks NVFP4 or RaZeR to bfloat16 in registers and multiplies with `tl.dot`.

Unpacking is exact: an element has at most three significant bits, its block's scale four, and bfloat16 holds eight.
The two tensors' scales are applied to the float32 sums. A chip with FP4 units could take NVFP4 as it is, but not RaZeR.
"""

import torch
import triton
import triton.language as tl
from task import input_t, output_t

BLOCK_K = 128
# What tl.dot multiplies. Triton's interpreter multiplies bfloat16 as if its bits were an integer.
DOT_TYPE = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 C [m, n]."""
    a_q, a_scales, a_scale, b_q, b_scales, b_scale, format = data
    (m, half), n = a_q.shape, len(b_q)
    c = torch.empty((m, n), dtype=torch.bfloat16, device=a_q.device)
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    block_n = min(2 * block_m, 64)
    gemm_kernel[triton.cdiv(m, block_m), triton.cdiv(n, block_n)](
        a_q,
        a_scales,
        a_scale,
        b_q,
        b_scales,
        b_scale,
        c,
        m,
        n,
        K=2 * half,
        RAZER=format == "razer",
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=BLOCK_K,
        DOT_TYPE=DOT_TYPE,
        num_warps=4,
    )
    return c


@triton.jit
def gemm_kernel(
    a_ptr,
    a_scales_ptr,
    a_scale_ptr,
    b_ptr,
    b_scales_ptr,
    b_scale_ptr,
    c_ptr,
    m,
    n,
    K: tl.constexpr,
    RAZER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """One tile of C. Rows past m or n are read once more from the last one, and not stored."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows, b_rows = tl.minimum(rows, m - 1), tl.minimum(columns, n - 1)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        a = load_unpacked(a_ptr, a_scales_ptr, a_rows, start, K, RAZER, BLOCK_M, BLOCK_K)
        b = load_unpacked(b_ptr, b_scales_ptr, b_rows, start, K, RAZER, BLOCK_N, BLOCK_K)
        sums = tl.dot(a.to(DOT_TYPE), tl.trans(b.to(DOT_TYPE)), sums, input_precision="ieee")
    sums *= tl.load(a_scale_ptr) * tl.load(b_scale_ptr)
    mask = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(c_ptr + rows[:, None].to(tl.int64) * n + columns[None, :], round_to_bf16(sums), mask=mask)


@triton.jit
def load_unpacked(
    q_ptr,
    scales_ptr,
    rows,
    start,
    K: tl.constexpr,
    RAZER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """float32 [ROWS, BLOCK_K]: elements start to start + BLOCK_K of some rows of a matrix [:, K]; zeros past K."""
    bytes_ = start // 2 + tl.arange(0, BLOCK_K // 2)[None, :]
    blocks = start // 16 + tl.arange(0, BLOCK_K // 16)[None, :]
    packed = tl.load(q_ptr + rows[:, None].to(tl.int64) * (K // 2) + bytes_, mask=bytes_ < K // 2, other=0)
    scales = tl.load(scales_ptr + rows[:, None].to(tl.int64) * (K // 16) + blocks, mask=blocks < K // 16, other=0)
    code = tl.reshape(tl.join(packed & 15, packed >> 4).to(tl.int32), (ROWS, BLOCK_K // 16, 16))
    scale = scales.to(tl.int32)[:, :, None]
    magnitude, sign = code & 7, (code & 8) << 28
    # From code 2 on, two bits of exponent and one of mantissa stand where float32 has its own, 126 lower; 0x3F000000 is
    # 1/2, the value of code 1.
    bits = tl.where(magnitude < 2, magnitude * 0x3F000000, (magnitude + 252) << 22) | sign
    if RAZER:
        # Code 8 is 5.0, 0x40A00000, with the sign of bit 7 of the scale byte.
        bits = tl.where(code == 8, 0x40A00000 | ((scale & 0x80) << 24), bits)
    values = bits.to(tl.float32, bitcast=True) * e4m3(scale & 0x7F)
    return tl.reshape(values, (ROWS, BLOCK_K))


@triton.jit
def e4m3(byte):
    """float32 of an E4M3 byte below 0x7F, in int32: its exponent's bias is 7, float32's 127."""
    normal = ((byte << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    return tl.where(byte < 8, byte.to(tl.float32) * 0.001953125, normal)  # subnormal: times 2 ** -9


@triton.jit
def round_to_bf16(x):
    """float32 rounded to bfloat16's values (nearest, ties to even), still float32: storing it as bfloat16 is exact.

    On a GPU a cast does that, but in Triton's interpreter it cuts the low bits off.
    """
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
