#!POPCORN leaderboard mxfp4_moe
"""A mixture of experts as two grouped FP4 GEMMs in Triton, with SwiGLU and requantisation fused into the first.

A slot is one token at one of its experts: there are M * T. Slots are sorted by expert, and every expert's run of slots
is cut into blocks of BLOCK_M. A program multiplies one block by one tile of its expert's weights. The host never learns
how the tokens are spread: it launches as many blocks as the worst spread needs; those left over return at once.

Four launches: quantise the tokens; gate and up, SwiGLU, quantise; down, times the routing weight; sum a token's slots.
M, D, INNER, E, T: the number of tokens, the hidden size, an expert's width, the experts, the experts per token.
"""

import torch
import triton
import triton.language as tl
from task import input_t, output_t
from triton.runtime.interpreter import InterpreterBuilder

BLOCK_N = 64  # divides D and INNER, which are multiples of 64: no mask along n
BLOCK_K = 128
BLOCK_ROW = 1024

# On a GPU always; Triton's CPU interpreter can do it from Triton 3.8 on.
HAS_DOT_SCALED = tl.constexpr(not triton.knobs.runtime.interpret or hasattr(InterpreterBuilder, "create_dot_scaled"))


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 [M, D]; the same bits in every run, since nothing is added in an order left to chance."""
    hidden, *weights, topk_weights, topk_ids, _config = data
    # GPU MODE hands out the same bytes as float4_e2m1fn_x2 and float8_e8m0fnu.
    gate_up, down, gate_up_scale, down_scale = (tensor.view(torch.uint8) for tensor in weights[:4])
    (M, D), T = hidden.shape, topk_ids.shape[1]
    E, INNER = down.shape[0], down.shape[2] * 2
    slot_count = M * T
    block_m = 16 if slot_count <= 16 * E else 32 if slot_count <= 32 * E else 64
    groups = group_by_expert(topk_ids, E, block_m)
    blocks = len(groups[-1])

    def empty(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=hidden.device)

    x, x_scale = empty(M, D // 2), empty(M, D // 32)
    quantise_kernel[M, triton.cdiv(D, BLOCK_ROW)](hidden, x, x_scale, D, BLOCK_ROW)

    tiles = {"BLOCK_M": block_m, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "num_warps": 4}
    h, h_scale = empty(slot_count, INNER // 2), empty(slot_count, INNER // 32)
    gate_up_kernel[blocks, INNER // BLOCK_N](
        x, x_scale, gate_up, gate_up_scale, h, h_scale, *groups, E, T, D, INNER, **tiles
    )

    y = empty(slot_count, D, dtype=torch.float32)
    down_kernel[blocks, D // BLOCK_N](h, h_scale, down, down_scale, topk_weights, y, *groups, E, D, INNER, **tiles)

    out = empty(M, D, dtype=torch.bfloat16)
    combine_kernel[M, triton.cdiv(D, BLOCK_ROW)](y, out, T, D, BLOCK_ROW)
    return out


def group_by_expert(topk_ids: torch.Tensor, experts: int, block_m: int) -> tuple[torch.Tensor, ...]:
    """Cut the slots into blocks of one expert each. All on the device: shapes follow from shapes alone.

    Returns slots [M * T], in the order of their experts; starts [E + 1], where each expert's run begins in it, and its
    length; first_blocks [E], each expert's first block; block_experts [blocks], E for blocks left over.
    """
    device, slot_count = topk_ids.device, topk_ids.numel()
    sorted_ids, slots = topk_ids.flatten().sort(stable=True)
    starts = torch.searchsorted(sorted_ids, torch.arange(experts + 1, dtype=sorted_ids.dtype, device=device))
    counts = (starts.diff() + block_m - 1) // block_m
    last_blocks = counts.cumsum(0)
    # At most this many blocks: each expert that has a slot wastes at most block_m - 1 rows.
    limit = (slot_count + min(experts, slot_count) * (block_m - 1)) // block_m
    block_experts = torch.searchsorted(last_blocks, torch.arange(limit, device=device), right=True)
    return slots, starts, last_blocks - counts, block_experts


@triton.jit
def quantise_kernel(x_ptr, q_ptr, scale_ptr, D: tl.constexpr, BLOCK: tl.constexpr):
    """A part of one token: bfloat16 -> FP4 bytes and scales."""
    row, first = tl.program_id(0), tl.program_id(1) * BLOCK
    elements = first + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + row * D + elements, mask=elements < D, other=0.0)
    q, scale = quantise_mxfp4(x.to(tl.float32), 1, BLOCK)
    store_fp4(q_ptr, scale_ptr, q, scale, row + tl.arange(0, 1), first, D, True)


@triton.jit
def gate_up_kernel(
    x_ptr,
    x_scale_ptr,
    w_ptr,
    w_scale_ptr,
    h_ptr,
    h_scale_ptr,
    slots_ptr,
    starts_ptr,
    first_blocks_ptr,
    block_experts_ptr,
    E: tl.constexpr,
    T: tl.constexpr,
    D: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """h = fp4(bf16(silu(x @ gate.T) * (x @ up.T))) for one block of slots and BLOCK_N columns; rows of h are sorted."""
    expert = tl.load(block_experts_ptr + tl.program_id(0))
    if expert == E:
        return
    positions, inside = block_positions(expert, starts_ptr, first_blocks_ptr, BLOCK_M)
    tokens = tl.load(slots_ptr + positions, mask=inside, other=0) // T
    first_column = tl.program_id(1) * BLOCK_N
    # An expert's gate rows come first, then its up rows.
    gate_rows = expert * 2 * INNER + first_column + tl.arange(0, BLOCK_N)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, D, BLOCK_K):
        x, x_scale = load_fp4(x_ptr, x_scale_ptr, tokens, start, D, BLOCK_K)
        w, w_scale = load_fp4(w_ptr, w_scale_ptr, gate_rows, start, D, BLOCK_K)
        gate = dot_fp4(x, x_scale, tl.trans(w), w_scale, gate)
        w, w_scale = load_fp4(w_ptr, w_scale_ptr, gate_rows + INNER, start, D, BLOCK_K)
        up = dot_fp4(x, x_scale, tl.trans(w), w_scale, up)
    h, h_scale = quantise_mxfp4(round_to_bf16(gate / (1.0 + tl.exp(-gate)) * up), BLOCK_M, BLOCK_N)
    store_fp4(h_ptr, h_scale_ptr, h, h_scale, positions, first_column, INNER, inside[:, None])


@triton.jit
def down_kernel(
    h_ptr,
    h_scale_ptr,
    w_ptr,
    w_scale_ptr,
    topk_weights_ptr,
    y_ptr,
    slots_ptr,
    starts_ptr,
    first_blocks_ptr,
    block_experts_ptr,
    E: tl.constexpr,
    D: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y = weight * (h @ down.T), float32, for one block of slots and BLOCK_N columns; rows of y are in slot order."""
    expert = tl.load(block_experts_ptr + tl.program_id(0))
    if expert == E:
        return
    positions, inside = block_positions(expert, starts_ptr, first_blocks_ptr, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, INNER, BLOCK_K):
        h, h_scale = load_fp4(h_ptr, h_scale_ptr, positions, start, INNER, BLOCK_K)
        w, w_scale = load_fp4(w_ptr, w_scale_ptr, expert * D + columns, start, INNER, BLOCK_K)
        sums = dot_fp4(h, h_scale, tl.trans(w), w_scale, sums)
    slots = tl.load(slots_ptr + positions, mask=inside, other=0)
    weights = tl.load(topk_weights_ptr + slots, mask=inside, other=0.0)
    tl.store(y_ptr + slots[:, None] * D + columns[None, :], sums * weights[:, None], mask=inside[:, None])


@triton.jit
def combine_kernel(y_ptr, out_ptr, T: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of one token's T rows of y, in the order of its slots."""
    token = tl.program_id(0)
    elements = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(T):
        total += tl.load(y_ptr + (token * T + slot) * D + elements, mask=elements < D, other=0.0)
    tl.store(out_ptr + token * D + elements, round_to_bf16(total), mask=elements < D)


@triton.jit
def block_positions(expert, starts_ptr, first_blocks_ptr, BLOCK_M: tl.constexpr):
    """Where this program's slots stand in the sorted order, and which of them belong to the expert at all.

    A position past the end of the expert's run is replaced by the last one inside: loads need no mask, and what is
    computed there is not stored.
    """
    end = tl.load(starts_ptr + expert + 1)
    block = tl.program_id(0) - tl.load(first_blocks_ptr + expert)
    positions = tl.load(starts_ptr + expert) + block * BLOCK_M + tl.arange(0, BLOCK_M)
    return tl.minimum(positions, end - 1), positions < end


@triton.jit
def load_fp4(q_ptr, scale_ptr, rows, start, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Some rows of a row-major FP4 matrix [:, K], elements start to start + BLOCK_K: bytes and scales, zeros past K."""
    bytes_ = start // 2 + tl.arange(0, BLOCK_K // 2)[None, :]
    blocks = start // 32 + tl.arange(0, BLOCK_K // 32)[None, :]
    q = tl.load(q_ptr + rows[:, None] * (K // 2) + bytes_, mask=bytes_ < K // 2, other=0)
    scale = tl.load(scale_ptr + rows[:, None] * (K // 32) + blocks, mask=blocks < K // 32, other=0)
    return q, scale


@triton.jit
def store_fp4(q_ptr, scale_ptr, q, scale, rows, start, K: tl.constexpr, mask):
    """The inverse of load_fp4, for the rows in `mask`."""
    bytes_ = start // 2 + tl.arange(0, q.shape[1])[None, :]
    blocks = start // 32 + tl.arange(0, scale.shape[1])[None, :]
    tl.store(q_ptr + rows[:, None] * (K // 2) + bytes_, q, mask=mask & (bytes_ < K // 2))
    tl.store(scale_ptr + rows[:, None] * (K // 32) + blocks, scale, mask=mask & (blocks < K // 32))


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
