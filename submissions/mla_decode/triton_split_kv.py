#!POPCORN leaderboard mla_decode
"""Split-KV flash-decoding in Triton on the fp8 cache, with q in bfloat16 (precision fp8-kv).

Stage 1: each program attends over its share of one sequence's keys, loading the next block while it works on this one
(Triton does not do that by itself for a tile with two uses). An fp8 number is exact in bfloat16, so the cache's scale
is applied to scores and results, not to the cache. Stage 2 weighs the shares by their log-sum-exp.
"""

import math

import torch
import triton
import triton.language as tl
from task import input_t, output_t

HEADS, VALUE_DIM, ROPE_DIM = 16, 512, 64
BLOCK = 32
COMBINED_DIMS = 128
MAX_SPLITS = 64
PROGRAMS_PER_SM = 2
INTERPRETER_PROGRAMS = 16
# What tl.dot multiplies. Triton's interpreter multiplies bfloat16 as if its bits were an integer.
DOT_TYPE = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16


@triton.jit
def attend_share(
    q,
    cache,
    cache_scale,
    kv_indptr,
    partial,
    log_sums,
    score_scale,
    splits,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    DOT_TYPE: tl.constexpr,
):
    """partial float32 [bs, splits, HEADS, VALUE_DIM] and log_sums (base 2) [bs, splits, HEADS] of one share."""
    KEY_DIM: tl.constexpr = VALUE_DIM + ROPE_DIM
    split, sequence = tl.program_id(0), tl.program_id(1)
    begin = tl.load(kv_indptr + sequence)
    length = tl.load(kv_indptr + sequence + 1) - begin
    share = tl.cdiv(tl.cdiv(length, BLOCK), splits) * BLOCK
    first = split * share
    last = tl.minimum(first + share, length)

    heads, dims, rope_dims = tl.arange(0, HEADS), tl.arange(0, VALUE_DIM), tl.arange(0, ROPE_DIM)
    results = (sequence * splits + split) * HEADS + heads
    if first < last:
        queries = q + (sequence * HEADS + heads)[:, None] * KEY_DIM
        q_latent = tl.load(queries + dims[None, :]).to(DOT_TYPE)
        q_rope = tl.load(queries + VALUE_DIM + rope_dims[None, :]).to(DOT_TYPE)
        scale = tl.load(cache_scale)
        cache += begin.to(tl.int64) * KEY_DIM
        largest = tl.full([HEADS], float("-inf"), tl.float32)
        total = tl.zeros([HEADS], tl.float32)
        result = tl.zeros([HEADS, VALUE_DIM], tl.float32)
        rows = cache + tl.minimum(first + tl.arange(0, BLOCK), last - 1)[:, None] * KEY_DIM
        next_latent = tl.load(rows + dims[None, :])
        next_rope = tl.load(rows + VALUE_DIM + rope_dims[None, :])
        for start in range(first, last, BLOCK):
            latent, rope = next_latent.to(DOT_TYPE), next_rope.to(DOT_TYPE)
            tokens = start + tl.arange(0, BLOCK)
            # Past the end the last key is read again: it is in the cache, and its weight is zero.
            rows = cache + tl.minimum(tokens + BLOCK, last - 1)[:, None] * KEY_DIM
            next_latent = tl.load(rows + dims[None, :])
            next_rope = tl.load(rows + VALUE_DIM + rope_dims[None, :])
            scores = tl.dot(q_rope, tl.trans(rope), tl.dot(q_latent, tl.trans(latent))) * (scale * score_scale)
            scores = tl.where((tokens < last)[None, :], scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(scores - new_largest[:, None])
            decay = tl.exp2(largest - new_largest)
            total = total * decay + tl.sum(weights, 1)
            result = tl.dot(weights.to(DOT_TYPE), latent, result * decay[:, None])
            largest = new_largest
        tl.store(log_sums + results, largest + tl.log2(total))
        tl.store(partial + results[:, None] * VALUE_DIM + dims[None, :], result * (scale / total)[:, None])
    else:
        tl.store(log_sums + results, tl.full([HEADS], float("-inf"), tl.float32))


@triton.jit
def combine_shares(
    partial,
    log_sums,
    out,
    splits,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """out bfloat16 [bs, HEADS, VALUE_DIM], DIMS of one head: shares weighted by 2 ** log_sums, empty ones left out."""
    row, sequence = tl.program_id(0), tl.program_id(0) // HEADS
    numbers = tl.arange(0, SPLITS)
    dims = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    results = (sequence * splits + numbers) * HEADS + row % HEADS
    log_sum = tl.load(log_sums + results, mask=numbers < splits, other=float("-inf"))
    weights = tl.exp2(log_sum - tl.max(log_sum, 0))
    used = weights > 0
    parts = tl.load(partial + results[:, None] * VALUE_DIM + dims[None, :], mask=used[:, None], other=0.0)
    combined = tl.sum(parts * (weights / tl.sum(weights, 0))[:, None], 0)
    tl.store(out + row * VALUE_DIM + dims, combined.to(tl.bfloat16))


def custom_kernel(data: input_t) -> output_t:
    q, kv_data, _, kv_indptr, config = data
    cache, cache_scale = kv_data["fp8"]
    batch = len(q)
    splits = choose_splits(len(cache), batch, q.device)
    partial = torch.empty((batch, splits, HEADS, VALUE_DIM), dtype=torch.float32, device=q.device)
    log_sums = torch.empty((batch, splits, HEADS), dtype=torch.float32, device=q.device)
    out = torch.empty((batch, HEADS, VALUE_DIM), dtype=torch.bfloat16, device=q.device)
    attend_share[(splits, batch)](
        q,
        cache,
        cache_scale,
        kv_indptr,
        partial,
        log_sums,
        config["sm_scale"] * math.log2(math.e),
        splits,
        HEADS=HEADS,
        VALUE_DIM=VALUE_DIM,
        ROPE_DIM=ROPE_DIM,
        BLOCK=BLOCK,
        DOT_TYPE=DOT_TYPE,
        num_warps=4,
    )
    combine_shares[(batch * HEADS, VALUE_DIM // COMBINED_DIMS)](
        partial,
        log_sums,
        out,
        splits,
        HEADS=HEADS,
        VALUE_DIM=VALUE_DIM,
        DIMS=COMBINED_DIMS,
        SPLITS=triton.next_power_of_2(splits),
        num_warps=4,
    )
    return out


def choose_splits(tokens: int, batch: int, device: torch.device) -> int:
    """How many programs share a sequence of average length: enough to fill the device, from shapes alone."""
    programs = INTERPRETER_PROGRAMS
    if device.type == "cuda":
        programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(triton.cdiv(tokens, batch * BLOCK), programs // batch, MAX_SPLITS))
