#!POPCORN leaderboard flash_attention_fwd
"""FlashAttention-2's forward pass in Triton: a program for each block of queries, query head and sequence.

A program goes through the keys that its queries may see with a running maximum, sum and result; only the blocks on the
diagonal need a mask. Scores are kept in base 2, since exp2 is what the hardware has. Sequences shorter than a program's
first query leave it with nothing to do: the host never learns the lengths.
"""

import math

import torch
import triton
import triton.language as tl
from task import input_t, output_t

BLOCK_M, BLOCK_N = 128, 64
INTERPRETER_BLOCK_M = 64
# What tl.dot multiplies. Triton's interpreter multiplies bfloat16 as if its bits were an integer.
DOT_TYPE = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16


def custom_kernel(data: input_t) -> output_t:
    q, k, v, cu_seqlens, longest, scale = data
    heads, dim = q.shape[1:]
    block_m = INTERPRETER_BLOCK_M if triton.knobs.runtime.interpret else BLOCK_M
    out = torch.empty_like(q)
    attend[(triton.cdiv(longest, block_m), heads, len(cu_seqlens) - 1)](
        q,
        k,
        v,
        out,
        cu_seqlens,
        scale * math.log2(math.e),
        HEADS=heads,
        KV_HEADS=k.shape[1],
        DIM=dim,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        DOT_TYPE=DOT_TYPE,
        num_warps=8 if dim == 128 else 4,
        num_stages=3,
    )
    return out


@triton.jit
def attend(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    cu_seqlens,
    score_scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """out [T, HEADS, DIM] for BLOCK_M queries of one head in one sequence; `score_scale` includes log2(e)."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    begin = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - begin
    # The last queries see the most keys: they go first, so that no long program is left over at the end.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    if first >= length:
        return
    positions, dims = first + tl.arange(0, BLOCK_M), tl.arange(0, DIM)
    inside = (positions < length)[:, None]
    own = (begin.to(tl.int64) * HEADS + head) * DIM + positions[:, None] * (HEADS * DIM) + dims[None, :]
    queries = tl.load(q_ptr + own, mask=inside, other=0.0).to(DOT_TYPE)
    kv = (begin.to(tl.int64) * KV_HEADS + head // (HEADS // KV_HEADS)) * DIM

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, DIM], tl.float32)
    for start in range(0, first, BLOCK_N):  # before the diagonal: seen by all queries, and inside the sequence
        rows = (start + tl.arange(0, BLOCK_N))[:, None] * (KV_HEADS * DIM) + dims[None, :]
        keys = tl.load(k_ptr + kv + rows).to(DOT_TYPE)
        scores = tl.dot(queries, tl.trans(keys)) * score_scale
        weights, decay, largest = exponentials(scores, largest)
        total = total * decay + tl.sum(weights, 1)
        values = tl.load(v_ptr + kv + rows).to(DOT_TYPE)
        result = tl.dot(weights.to(DOT_TYPE), values, result * decay[:, None])
    for start in range(first, tl.minimum(first + BLOCK_M, length), BLOCK_N):  # on the diagonal
        tokens = start + tl.arange(0, BLOCK_N)
        rows = tokens[:, None] * (KV_HEADS * DIM) + dims[None, :]
        # No query of the sequence sees a key past its end, but zero weights times what lies there must be zero, too.
        there = (tokens < length)[:, None]
        keys = tl.load(k_ptr + kv + rows, mask=there, other=0.0).to(DOT_TYPE)
        scores = tl.dot(queries, tl.trans(keys)) * score_scale
        scores = tl.where(tokens[None, :] <= positions[:, None], scores, float("-inf"))
        weights, decay, largest = exponentials(scores, largest)
        total = total * decay + tl.sum(weights, 1)
        values = tl.load(v_ptr + kv + rows, mask=there, other=0.0).to(DOT_TYPE)
        result = tl.dot(weights.to(DOT_TYPE), values, result * decay[:, None])
    tl.store(out_ptr + own, round_to_bf16(result / total[:, None]), mask=inside)


@triton.jit
def exponentials(scores, largest):
    """2 ** (scores - new maximum), what older ones shrink by, and the new maximum; scores [M, N], maximum [M].

    Blocks come in order and each query sees key 0, so that no maximum is ever -inf.
    """
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    return tl.exp2(scores - new_largest[:, None]), tl.exp2(largest - new_largest), new_largest


@triton.jit
def round_to_bf16(x):
    """float32 rounded to bfloat16's values (nearest, ties to even), still float32: storing it as bfloat16 is exact.

    On a GPU a cast does that, but in Triton's interpreter it cuts the low bits off.
    """
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
