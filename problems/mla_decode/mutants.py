"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart.

Those that take a precision read the inputs that it names, and answer to it; the others read what they say.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from mxfp4 import dequantize_mxfp4, pack_fp4, quantize_fp8, quantize_mxfp4, unpack_fp4
from task import input_t, output_t

HEADS, KEY_DIM, VALUE_DIM = 16, 576, 512
BLOCK = 64
Step = Callable[[torch.Tensor], torch.Tensor]


def same(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself."""
    return x


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, as float32."""
    return x.bfloat16().float()


def to_fp16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to float16, as float32."""
    return x.half().float()


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Rounded to fp8 (E4M3), as float32."""
    return x.to(torch.float8_e4m3fn).float()


def to_mxfp4(x: torch.Tensor) -> torch.Tensor:
    """Quantised to MXFP4 along the last dimension, as float32."""
    return dequantize_mxfp4(*quantize_mxfp4(x))


@dataclass(frozen=True)
class Attention:
    """One sequence, block by block with a running maximum: q float32 [16, 576], k float32 [n, 576] -> [16, 512]."""

    scale: float = KEY_DIM**-0.5
    block: int = BLOCK
    round_q: Step = same
    round_k: Step = same
    round_scores: Step = same
    round_p: Step = same
    round_sums: Step = same
    """What becomes of the accumulated result after each block."""
    with_maximum: bool = True
    with_rescaling: bool = True
    """Whether what was added so far shrinks when the maximum grows."""
    padding: int = 0
    """Keys of zeros counted in the last block: up to a multiple of this."""
    first_value: int = 0
    """The dimension at which values begin in a key."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """float32 [16, 512]."""
        result, total, _ = self.parts(q, k)
        return result / total[:, None]

    def parts(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The result and the sum of weights, both before the division, and the maximum."""
        k = self.round_k(k)
        if self.padding:
            k = torch.cat([k, k.new_zeros(-len(k) % self.padding, KEY_DIM)])
        largest = q.new_full((len(q),), -torch.inf if self.with_maximum else 0.0)
        total, result = q.new_zeros(len(q)), q.new_zeros(len(q), VALUE_DIM)
        for keys in k.split(self.block):
            scores = self.round_scores(self.round_q(q) @ keys.T * self.scale)
            new_largest = torch.maximum(largest, scores.amax(1)) if self.with_maximum else largest
            weights = (scores - new_largest[:, None]).exp()
            decay = (largest - new_largest).exp() if self.with_rescaling else 1.0 * (total > 0)
            total = total * decay + weights.sum(1)
            result = self.round_sums(
                result * decay[:, None] + self.round_p(weights) @ keys[:, self.first_value :][:, :VALUE_DIM]
            )
            largest = new_largest
        return result, total, largest


ATTENTION = Attention()
Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def decoded(
    data: input_t, precision: str, bounds: list[tuple[int, int]] | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(q, k) in float32 of each sequence at a precision; its tokens are those of kv_indptr, or of `bounds`."""
    q, caches, _, kv_indptr, _ = data
    queries = q.float()
    if precision == "fp8":
        codes, q_scale = quantize_fp8(q)
        queries = codes.float() * q_scale
    ends = kv_indptr.tolist()
    for index, (begin, end) in enumerate(bounds or pairwise(ends)):
        if precision == "bf16":
            keys = caches["bf16"][begin:end].float()
        elif precision == "mxfp4":
            packed, scales = caches["mxfp4"]
            keys = dequantize_mxfp4(packed[begin:end].squeeze(1), scales[begin:end])
        else:
            codes, scale = caches["fp8"]
            keys = codes[begin:end].float() * scale
        yield queries[index], keys.reshape(-1, KEY_DIM)


def run(kernel: Kernel, data: input_t, precision: str, bounds: list[tuple[int, int]] | None = None) -> output_t:
    """bfloat16 [bs, 16, 512]: the kernel on each sequence."""
    return torch.stack([kernel(q, k) for q, k in decoded(data, precision, bounds)]).bfloat16()


def lengths_changed(data: input_t, by: int) -> list[tuple[int, int]]:
    """Where sequences begin and end when each is taken for so much longer, within the cache and at least one."""
    ends = data[3].tolist()
    pairs = pairwise(ends)
    return [(begin, min(max(begin + 1, end + by), ends[-1])) for begin, end in pairs]


def in_shares(
    q: torch.Tensor, k: torch.Tensor, attention: Attention = ATTENTION, round_part: Step = same, by_sum: bool = True
) -> torch.Tensor:
    """Four shares of the keys, combined by their sums of weights, or wrongly by their mean."""
    shares = [attention.parts(q, share) for share in k.chunk(4)]
    parts = torch.stack([round_part(result / total[:, None]) for result, total, _ in shares])
    sums = torch.stack([total.log() + largest for _, total, largest in shares])
    weights = sums.softmax(0) if by_sum else torch.full_like(sums, 1 / len(shares))
    return (weights[..., None] * parts).sum(0)


# --- wrong: what is read -------------------------------------------------------------------------------------


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return data[0].new_zeros(len(data[0]), HEADS, VALUE_DIM)


def closed_form(data: input_t) -> output_t:
    """Returns q / 24, the expectation for normal keys, and reads no cache."""
    return (data[0][..., :VALUE_DIM].float() / 24).bfloat16()


def mean_of_the_values(data: input_t, precision: str) -> output_t:
    """Weighs all keys alike."""
    return run(lambda q, k: k[:, :VALUE_DIM].mean(0).expand(HEADS, -1), data, precision)


def half_of_the_keys(data: input_t, precision: str) -> output_t:
    """Reads the first half of the keys."""
    return run(lambda q, k: ATTENTION(q, k[: -(-len(k) // 2)]), data, precision)


def every_other_key(data: input_t, precision: str) -> output_t:
    """Reads every other key."""
    return run(lambda q, k: ATTENTION(q, k[::2]), data, precision)


def last_split_dropped(data: input_t, precision: str) -> output_t:
    """Forgets the last of four shares of the keys."""
    return run(lambda q, k: ATTENTION(q, torch.cat(k.chunk(4)[:3])), data, precision)


def last_partial_block_dropped(data: input_t, precision: str) -> output_t:
    """Reads whole blocks of 64 keys only."""
    return run(lambda q, k: ATTENTION(q, k[: max(1, len(k) // BLOCK * BLOCK)]), data, precision)


def last_key_dropped(data: input_t, precision: str) -> output_t:
    """Reads one key too few."""
    return run(ATTENTION, data, precision, lengths_changed(data, -1))


def first_key_dropped(data: input_t, precision: str) -> output_t:
    """Begins at the second key."""
    return run(lambda q, k: ATTENTION(q, k[min(1, len(k) - 1) :]), data, precision)


def one_key_too_many(data: input_t, precision: str) -> output_t:
    """Reads the first key of the next sequence, too."""
    return run(ATTENTION, data, precision, lengths_changed(data, 1))


def padding_not_masked(data: input_t, precision: str) -> output_t:
    """Counts keys of zeros up to a whole block of 64."""
    return run(replace(ATTENTION, padding=BLOCK), data, precision)


def equal_lengths_assumed(data: input_t, precision: str) -> output_t:
    """Divides the cache into equal shares, right only when all lengths are equal."""
    count, total = len(data[0]), int(data[3][-1])
    bounds = [(index * total // count, (index + 1) * total // count) for index in range(count)]
    return run(ATTENTION, data, precision, bounds)


def keys_of_the_next_sequence(data: input_t, precision: str) -> output_t:
    """Attends with each query over the keys of the sequence after its own."""
    ends = data[3].tolist()
    pairs = list(pairwise(ends))
    return run(ATTENTION, data, precision, pairs[1:] + pairs[:1])


def rope_dropped(data: input_t, precision: str) -> output_t:
    """Leaves the last 64 dimensions out of the scores."""
    return run(lambda q, k: ATTENTION(q * (torch.arange(KEY_DIM, device=q.device) < VALUE_DIM), k), data, precision)


def rope_first(data: input_t, precision: str) -> output_t:
    """Takes the last 512 dimensions for the value instead of the first."""
    return run(replace(ATTENTION, first_value=KEY_DIM - VALUE_DIM), data, precision)


def last_head_repeated(data: input_t, precision: str) -> output_t:
    """Gives the last head the result of the one before it."""
    return run(lambda q, k: ATTENTION(torch.cat([q[:-1], q[-2:-1]]), k), data, precision)


def last_values_missing(data: input_t, precision: str) -> output_t:
    """Leaves the last 64 values at zero."""
    return run(
        lambda q, k: ATTENTION(q, k) * (torch.arange(VALUE_DIM, device=q.device) < VALUE_DIM - 64), data, precision
    )


# --- wrong: formats ------------------------------------------------------------------------------------------


def swapped_nibbles(data: input_t) -> output_t:
    """Takes the high nibble of an MXFP4 byte for the even element."""
    packed, scales = data[1]["mxfp4"]
    codes = unpack_fp4(packed).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return run(ATTENTION, with_caches(data, mxfp4=(pack_fp4(codes), scales)), "mxfp4")


def scales_of_the_next_block(data: input_t) -> output_t:
    """Reads each MXFP4 scale one block too far."""
    packed, scales = data[1]["mxfp4"]
    return run(ATTENTION, with_caches(data, mxfp4=(packed, scales.roll(-1, 1))), "mxfp4")


def scales_of_the_next_token(data: input_t) -> output_t:
    """Reads each MXFP4 scale one token too far."""
    packed, scales = data[1]["mxfp4"]
    return run(ATTENTION, with_caches(data, mxfp4=(packed, scales.roll(-1, 0))), "mxfp4")


def fp8_scale_forgotten(data: input_t) -> output_t:
    """Takes the fp8 cache without its scale."""
    codes, scale = data[1]["fp8"]
    return run(ATTENTION, with_caches(data, fp8=(codes, torch.ones_like(scale))), "fp8-kv")


def fp8_scale_for_keys_only(data: input_t) -> output_t:
    """Applies the fp8 cache's scale to the scores and forgets it for the values."""
    scale = data[1]["fp8"][1]
    return run(lambda q, k: ATTENTION(q, k) / scale, data, "fp8-kv")


def own_rounding_of_the_cache(data: input_t) -> output_t:
    """Quantises the bfloat16 cache to MXFP4 with ties away from zero."""
    packed, scales = quantize_mxfp4(data[1]["bf16"], rounding="half-away")
    return run(ATTENTION, with_caches(data, mxfp4=(packed, scales.view(len(packed), -1))), "mxfp4")


def own_scales_of_the_cache(data: input_t) -> output_t:
    """Quantises the bfloat16 cache to MXFP4 by OCP's floor rule."""
    packed, scales = quantize_mxfp4(data[1]["bf16"], "floor")
    return run(ATTENTION, with_caches(data, mxfp4=(packed, scales.view(len(packed), -1))), "mxfp4")


def fp8_queries_on_mxfp4(data: input_t) -> output_t:
    """Quantises q to fp8 and reads the MXFP4 cache, which no declared precision does."""
    codes, scale = quantize_fp8(data[0])
    return run(ATTENTION, ((codes.float() * scale).bfloat16(), *data[1:]), "mxfp4")


def mxfp4_queries(data: input_t) -> output_t:
    """Quantises q to MXFP4, too, and reads the MXFP4 cache."""
    return run(replace(ATTENTION, round_q=to_mxfp4), data, "mxfp4")


# --- wrong: arithmetic ---------------------------------------------------------------------------------------


def scores_not_scaled(data: input_t, precision: str) -> output_t:
    """Forgets the division by 24."""
    return run(replace(ATTENTION, scale=1.0), data, precision)


def scaled_by_the_latent_size(data: input_t, precision: str) -> output_t:
    """Divides scores by sqrt(512) instead of sqrt(576)."""
    return run(replace(ATTENTION, scale=VALUE_DIM**-0.5), data, precision)


def no_maximum(data: input_t, precision: str) -> output_t:
    """Computes exp(score) without subtracting a maximum."""
    return run(replace(ATTENTION, with_maximum=False), data, precision)


def no_rescaling(data: input_t, precision: str) -> output_t:
    """Does not shrink what it has added when the maximum grows."""
    return run(replace(ATTENTION, with_rescaling=False), data, precision)


def shares_averaged(data: input_t, precision: str) -> output_t:
    """Combines four shares of the keys by their mean."""
    return run(lambda q, k: in_shares(q, k, by_sum=False), data, precision)


def exp2_without_log2e(data: input_t, precision: str) -> output_t:
    """Takes powers of two instead of e."""
    return run(replace(ATTENTION, scale=ATTENTION.scale * 0.6931471805599453), data, precision)


def scores_in_bfloat16(data: input_t, precision: str) -> output_t:
    """Rounds the scores to bfloat16."""
    return run(replace(ATTENTION, round_scores=to_bf16), data, precision)


def bfloat16_accumulation(data: input_t) -> output_t:
    """Keeps the result in bfloat16 from one block of 16 keys to the next, on the MXFP4 cache."""
    return run(replace(ATTENTION, round_sums=to_bf16, block=16), data, "mxfp4")


# --- right ---------------------------------------------------------------------------------------------------


def exact(data: input_t, precision: str) -> output_t:
    """Goes through the keys in blocks of 64, in float32."""
    return run(ATTENTION, data, precision)


def one_block(data: input_t, precision: str) -> output_t:
    """Takes all keys at once, the last one first, in float32."""
    return run(lambda q, k: replace(ATTENTION, block=len(k))(q, k.flip(0)), data, precision)


def weights_in_bfloat16(data: input_t, precision: str) -> output_t:
    """Rounds P to bfloat16."""
    return run(replace(ATTENTION, round_p=to_bf16), data, precision)


def weights_in_float16(data: input_t, precision: str) -> output_t:
    """Rounds P to float16."""
    return run(replace(ATTENTION, round_p=to_fp16), data, precision)


def normalised_weights_in_bfloat16(data: input_t, precision: str) -> output_t:
    """Divides P by its sum, then rounds it to bfloat16."""
    return run(lambda q, k: to_bf16((q @ k.T / 24).softmax(1)) @ k[:, :VALUE_DIM], data, precision)


def shares(data: input_t, precision: str) -> output_t:
    """Splits the keys in four and combines the float32 parts."""
    return run(in_shares, data, precision)


def shares_in_bfloat16(data: input_t, precision: str) -> output_t:
    """Splits the keys in four and rounds P and the parts to bfloat16."""
    attention = replace(ATTENTION, round_p=to_bf16)
    return run(lambda q, k: in_shares(q, k, attention, to_bf16), data, precision)


def scaled_queries_in_bfloat16(data: input_t, precision: str) -> output_t | None:
    """Rounds q / 24 to bfloat16, where q was not in fp8."""
    attention = replace(ATTENTION, round_q=lambda q: to_bf16(q / 24), scale=1.0, round_p=to_bf16)
    return None if precision == "fp8" else run(attention, data, precision)


def cache_decoded_to_bfloat16(data: input_t, precision: str) -> output_t | None:
    """Rounds the decoded cache to bfloat16; only the fp8 cache loses by it."""
    attention = replace(ATTENTION, round_k=to_bf16, round_p=to_bf16)
    return run(attention, data, precision) if precision.startswith("fp8") else None


def weights_in_fp8(data: input_t) -> output_t:
    """Rounds P to fp8, with q and cache in fp8."""
    return run(replace(ATTENTION, round_p=to_fp8), data, "fp8")


def weights_in_fp8_by_small_blocks(data: input_t) -> output_t:
    """Rounds P to fp8 in blocks of 16 keys, with q and cache in fp8."""
    return run(replace(ATTENTION, round_p=to_fp8, block=16), data, "fp8")


def shares_in_fp8(data: input_t) -> output_t:
    """Splits the keys in four and rounds P to fp8, with q and cache in fp8."""
    attention = replace(ATTENTION, round_p=to_fp8)
    return run(lambda q, k: in_shares(q, k, attention, to_bf16), data, "fp8")


def with_caches(data: input_t, **caches: tuple[torch.Tensor, torch.Tensor]) -> input_t:
    """The same with other caches under these names."""
    return data[0], {**data[1], **caches}, *data[2:]


WRONG = (
    zeros,
    closed_form,
    mean_of_the_values,
    half_of_the_keys,
    every_other_key,
    last_split_dropped,
    last_partial_block_dropped,
    last_key_dropped,
    first_key_dropped,
    one_key_too_many,
    padding_not_masked,
    equal_lengths_assumed,
    keys_of_the_next_sequence,
    rope_dropped,
    rope_first,
    last_head_repeated,
    last_values_missing,
    swapped_nibbles,
    scales_of_the_next_block,
    scales_of_the_next_token,
    fp8_scale_forgotten,
    fp8_scale_for_keys_only,
    own_rounding_of_the_cache,
    own_scales_of_the_cache,
    fp8_queries_on_mxfp4,
    mxfp4_queries,
    scores_not_scaled,
    scaled_by_the_latent_size,
    exp2_without_log2e,
    no_maximum,
    no_rescaling,
    shares_averaged,
    scores_in_bfloat16,
    bfloat16_accumulation,
)
HONEST = (
    exact,
    one_block,
    weights_in_bfloat16,
    weights_in_float16,
    normalised_weights_in_bfloat16,
    shares,
    shares_in_bfloat16,
    scaled_queries_in_bfloat16,
    cache_decoded_to_bfloat16,
    weights_in_fp8,
    weights_in_fp8_by_small_blocks,
    shares_in_fp8,
)
