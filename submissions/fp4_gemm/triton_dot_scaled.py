#!POPCORN leaderboard fp4_gemm
"""One Triton kernel that quantises A to MXFP4 in registers and multiplies FP4 by FP4 with `tl.dot_scaled`.

Where the chip has FP4 units (MI355X, Blackwell), dot_scaled is one matrix instruction. Elsewhere (H200) Triton turns
both sides into bfloat16 first, which holds every FP4 value times its scale exactly: the answer has the same bits.
"""

import torch
import triton
import triton.language as tl
from task import input_t, output_t
from triton.runtime.interpreter import InterpreterBuilder

# This and block_n divide 256: the scales of B are padded with zeros to 256 rows and, along k, to 256 elements, so every
# tile of them lies inside and needs no mask.
BLOCK_K = 128

# On a GPU always; Triton's CPU interpreter can do it from Triton 3.8 on.
HAS_DOT_SCALED = tl.constexpr(not triton.knobs.runtime.interpret or hasattr(InterpreterBuilder, "create_dot_scaled"))


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 C [m, n]: C[i, j] = sum over k of fp4(A)[i, k] * fp4(B)[j, k]."""
    a, _b, b_q, _b_shuffle, b_scale_sh = data
    # GPU MODE hands out the same bytes as float4_e2m1fn_x2 and float8_e8m0fnu.
    b_q, b_scale_sh = b_q.view(torch.uint8), b_scale_sh.view(torch.uint8)
    (m, k), n = a.shape, b_q.shape[0]
    c = torch.empty((m, n), dtype=torch.bfloat16, device=a.device)
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    block_n = min(2 * block_m, 64)
    grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
    gemm_kernel[grid](a, b_q, b_scale_sh, c, m, n, b_scale_sh.shape[1], k, block_m, block_n, BLOCK_K, num_warps=4)
    return c


@triton.jit
def gemm_kernel(
    a_ptr,
    b_ptr,
    b_scale_ptr,
    c_ptr,
    m,
    n,
    scale_width,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of C. Tiles that stick out past m, n or k read zeros there, which quantise to zeros."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        elements = start + tl.arange(0, BLOCK_K)[None, :]
        bytes_ = start // 2 + tl.arange(0, BLOCK_K // 2)[:, None]
        blocks = start // 32 + tl.arange(0, BLOCK_K // 32)[None, :]

        a = tl.load(a_ptr + rows * K + elements, mask=(rows < m) & (elements < K), other=0.0)
        a_q, a_scale = quantise_mxfp4(a.to(tl.float32), BLOCK_M, BLOCK_K)

        # dot_scaled takes B as [k, n] but its scales as [n, k / 32].
        b_mask = (columns[None, :] < n) & (bytes_ < K // 2)
        b_q = tl.load(b_ptr + columns[None, :] * (K // 2) + bytes_, mask=b_mask, other=0)
        b_scale = tl.load(b_scale_ptr + shuffled_scale_offset(columns[:, None], blocks, scale_width))
        sums = dot_fp4(a_q, a_scale, b_q, b_scale, sums)

    c_mask = (rows < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows * n + columns[None, :], round_to_bf16(sums), mask=c_mask)


@triton.jit
def quantise_mxfp4(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """float32 [ROWS, COLUMNS] -> FP4 bytes [ROWS, COLUMNS / 2] and E8M0 scale bytes [ROWS, COLUMNS / 32].

    All on the bits of the float32, because exp2 and log2 are not exact on every device. Byte arithmetic stays in
    int32: a negative float or an exponent below zero would not survive a cast to uint8. The inputs keep scale bytes
    within 1..253, so the special cases at both ends are left out (a block of zeros gives byte 0, and zeros).
    """
    blocks = tl.reshape(x, (ROWS, COLUMNS // 32, 32))
    amax_bits = tl.max(tl.abs(blocks), axis=2).to(tl.int32, bitcast=True)
    # The "even" rule: amax's exponent, one more from significand 1.75 on, less the 2 that is the exponent of 4.
    scale = tl.maximum(((amax_bits + 0x200000) >> 23) - 2, 0)
    reciprocal = ((254 - scale) << 23).to(tl.float32, bitcast=True)  # 2 ** (127 - scale)
    scaled = tl.reshape(blocks * reciprocal[:, :, None], (ROWS, COLUMNS))

    bits = scaled.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # From 1 on, FP4 has one mantissa bit. Adding just under half of its unit, and the last bit that is kept, rounds to
    # nearest, ties to even; 252 is 1.0's exponent, 127, and mantissa bit, less its code, 2.
    large = ((magnitude + 0x1FFFFF + ((magnitude >> 22) & 1)) >> 22) - 252
    # Below 1 the values are 0, 1/2 and 1: the unit of 2 ** 22, so adding it makes the adder round that way too.
    small = (tl.abs(scaled) + 4194304.0).to(tl.int32, bitcast=True) & 3
    # Above 6 (code 7) it saturates. Bit 3 is the sign, which zeros keep.
    code = tl.minimum(tl.where(magnitude < 0x3F800000, small, large), 7) | ((bits >> 28) & 8)

    low, high = tl.split(tl.reshape(code, (ROWS, COLUMNS // 2, 2)))
    return (low | (high << 4)).to(tl.uint8), scale.to(tl.uint8)


@triton.jit
def shuffled_scale_offset(row, column, width):
    """Where the scale of (row, column) lies in the tiled layout, whose tiles are 32 rows x 8 columns: 256 bytes."""
    tile = (row // 32) * 32 * width + (column // 8) * 256
    return tile + (column % 4) * 64 + (row % 16) * 4 + (column % 8) // 4 * 2 + (row % 32) // 16


@triton.jit
def round_to_bf16(x):
    """float32 rounded to bfloat16's values (nearest, ties to even), still float32: storing it as bfloat16 is exact.

    On a GPU a cast does that, but in Triton's interpreter it cuts the low bits off.
    """
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def dot_fp4(a_q, a_scale, b_q, b_scale, sums):
    """float32 sums + A @ B for A [M, K] and B [K, N] in FP4: bytes [M, K/2], [K/2, N], scales [M, K/32], [N, K/32]."""
    if HAS_DOT_SCALED:
        sums = tl.dot_scaled(a_q, a_scale, "e2m1", b_q, b_scale, "e2m1", sums)
    else:  # what dot_scaled means, for the interpreter of Triton 3.6 and 3.7
        a, b = dequantise_mxfp4(a_q, a_scale), dequantise_mxfp4(tl.trans(b_q), b_scale)
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
    return sums


@triton.jit
def dequantise_mxfp4(packed, scale):
    """FP4 bytes [ROWS, COLUMNS / 2], E8M0 scale bytes [ROWS, COLUMNS / 32] -> float32 [ROWS, COLUMNS]."""
    code = tl.join(packed & 15, packed >> 4).to(tl.int32)
    magnitude = code & 7
    # The inverse of quantise_mxfp4; 0x3F000000 is 1/2, the value of code 1.
    bits = tl.where(magnitude < 2, magnitude * 0x3F000000, (magnitude + 252) << 22) | ((code & 8) << 28)
    blocks = tl.reshape(bits.to(tl.float32, bitcast=True), (scale.shape[0], scale.shape[1], 32))
    factor = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return tl.reshape(blocks * factor[:, :, None], (scale.shape[0], scale.shape[1] * 32))
