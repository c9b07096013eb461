"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from task import input_t, output_t

BLOCK = 64
LOG2_E = 1.4426950408889634
Step = Callable[[torch.Tensor], torch.Tensor]
Bounds = list[tuple[int, int]]


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


@dataclass(frozen=True)
class Attention:
    """One sequence, block by block of keys with a running maximum: float32 [heads, n, d] each -> [heads, n, d]."""

    block: int = BLOCK
    ahead: int = 0
    """How many keys after its own a query sees; -1: its own is not among them."""
    window: int | None = None
    """How many keys a query sees at most, the last ones."""
    whole_blocks: bool = False
    """Whether a query sees all keys of the last block that it sees a key of."""
    causal: bool = True
    backwards: bool = False
    """Whether blocks are taken from the last to the first."""
    round_q: Step = same
    round_scores: Step = same
    round_p: Step = same
    sum_rounded: bool = False
    """Whether the weights are summed as rounded."""
    round_sums: Step = same
    """What becomes of the accumulated result after each block."""
    with_exp2: bool = False
    with_maximum: bool = True
    with_rescaling: bool = True
    """Whether what was added so far shrinks when the maximum grows."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """float32 [heads, n, d]."""
        result, total, _ = self.parts(q, k, v, scale)
        return result / total[..., None]

    def parts(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, first: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The result and the sum of weights, both before the division, and the maximum, which is -inf where a query
        sees no key. `first` is the position of the first key in the sequence."""
        power = torch.exp2 if self.with_exp2 else torch.exp
        largest = q.new_full(q.shape[:-1], -torch.inf if self.with_maximum else 0.0)
        total, result = torch.zeros_like(largest), v.new_zeros(*q.shape[:-1], v.shape[-1])
        queries = self.round_q(q)
        begins = range(0, k.shape[1], self.block)
        for begin in reversed(begins) if self.backwards else begins:
            keys, values = k[:, begin : begin + self.block], v[:, begin : begin + self.block]
            hidden = ~self.visible(q.shape[1], first + begin, keys.shape[1], q.device)
            scores = self.round_scores(queries @ keys.mT * scale).masked_fill(hidden, -torch.inf)
            new_largest = torch.maximum(largest, scores.amax(-1)) if self.with_maximum else largest
            shift = new_largest.nan_to_num(neginf=0.0)
            weights = power(scores - shift[..., None])
            decay = power(largest - shift) if self.with_rescaling else 1.0 * (total > 0)
            rounded = self.round_p(weights)
            total = total * decay + (rounded if self.sum_rounded else weights).sum(-1)
            result = self.round_sums(result * decay[..., None] + rounded @ values)
            largest = new_largest
        return result, total, largest

    def visible(self, queries: int, first_key: int, keys: int, device: torch.device) -> torch.Tensor:
        """bool [queries, keys]: which of the keys from `first_key` on each query sees."""
        own = torch.arange(queries, device=device)[:, None]
        key = first_key + torch.arange(keys, device=device)
        if not self.causal:
            return (key >= 0) & (own >= 0)
        seen = key <= own + self.ahead
        if self.whole_blocks:
            seen = key // self.block <= own // self.block
        if self.ahead < 0:
            seen = seen | ((own == 0) & (key == 0))  # else the first query would see none
        return seen if self.window is None else seen & (key > own - self.window)


ATTENTION = Attention()
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def bounds_of(data: input_t) -> Bounds:
    """Where each sequence begins and ends."""
    return list(pairwise(data[3].tolist()))


def run(
    kernel: Kernel,
    data: input_t,
    bounds: Bounds | None = None,
    scale: float | None = None,
    kv_head: Callable[[int, int], list[int]] | None = None,
) -> output_t:
    """bfloat16 [T, heads_q, d]: the kernel on each sequence (or between other bounds), at another scale, or with other
    key and value heads for the query heads: `kv_head(heads_q, heads_kv)` lists them."""
    q, k, v = data[0], data[1], data[2]
    heads_q, heads_kv = q.shape[1], k.shape[1]
    heads = kv_head(heads_q, heads_kv) if kv_head else [head // (heads_q // heads_kv) for head in range(heads_q)]
    output = torch.zeros_like(q)
    for begin, end in bounds or bounds_of(data):
        queries = q[begin:end].float().transpose(0, 1)
        keys, values = (tensor[begin:end, heads].float().transpose(0, 1) for tensor in (k, v))
        output[begin:end] = kernel(queries, keys, values, scale or data[5]).transpose(0, 1).bfloat16()
    return output


def in_shares(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    attention: Attention = ATTENTION,
    by_sum: bool = True,
) -> torch.Tensor:
    """Four shares of the keys, combined by their sums of weights, or wrongly by their mean."""
    step = -(-k.shape[1] // 4)
    shares = [
        attention.parts(q, k[:, first : first + step], v[:, first : first + step], scale, first)
        for first in range(0, k.shape[1], step)
    ]
    parts = torch.stack([(result / total[..., None]).nan_to_num() for result, total, _ in shares])
    sums = torch.stack([total.log() + largest.nan_to_num(neginf=0.0) for _, total, largest in shares])
    weights = sums.softmax(0) if by_sum else (sums > -torch.inf) / (sums > -torch.inf).sum(0)
    return (weights[..., None] * parts).sum(0)


# --- wrong: what is read -------------------------------------------------------------------------------------


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(data[0])


def own_value(data: input_t) -> output_t:
    """Returns each token's own value."""
    return data[2].repeat_interleave(data[0].shape[1] // data[2].shape[1], 1)


def mean_of_the_values(data: input_t) -> output_t:
    """Weighs all keys alike."""
    return run(lambda q, k, v, scale: ATTENTION(0 * q, k, v, scale), data)


def not_causal(data: input_t) -> output_t:
    """Lets each token see its whole sequence."""
    return run(replace(ATTENTION, causal=False), data)


def mask_by_blocks(data: input_t) -> output_t:
    """Leaves out whole blocks of 64 keys only, and masks nothing within the block on the diagonal."""
    return run(replace(ATTENTION, whole_blocks=True), data)


def one_key_too_many(data: input_t) -> output_t:
    """Lets each token see the key after its own."""
    return run(replace(ATTENTION, ahead=1), data)


def own_key_not_seen(data: input_t) -> output_t:
    """Ends each token's keys before its own, but for the first, which has no other."""
    return run(replace(ATTENTION, ahead=-1), data)


def one_long_sequence(data: input_t) -> output_t:
    """Takes all tokens for one sequence."""
    return run(ATTENTION, data, [(0, len(data[0]))])


def equal_lengths_assumed(data: input_t) -> output_t:
    """Cuts the tokens into equal sequences."""
    count, total = len(data[3]) - 1, len(data[0])
    cuts = [index * total // count for index in range(count + 1)]
    return run(ATTENTION, data, list(pairwise(cuts)))


def begins_one_token_late(data: input_t) -> output_t:
    """Leaves the first key of each sequence out, for all tokens but the first."""
    return run(without_first_key, data)


def without_first_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [heads, n, d], where each query but the first sees no first key."""
    result, total, _ = ATTENTION.parts(q[:, 1:], k[:, 1:], v[:, 1:], scale)
    return torch.cat([v[:, :1], result / total[..., None]], 1)


def begins_one_token_early(data: input_t) -> output_t:
    """Reads the last key of the sequence before, too."""
    return run(ATTENTION, data, [(max(0, begin - 1), end) for begin, end in reversed(bounds_of(data))])


def tail_of_queries_lost(data: input_t) -> output_t:
    """Leaves out the queries beyond a sequence's last whole block of 64, where it has one."""
    output = run(ATTENTION, data)
    for begin, end in bounds_of(data):
        whole = (end - begin) // BLOCK * BLOCK
        output[begin + whole : end] = output[begin + whole : end] * (whole == 0)
    return output


def short_window(data: input_t) -> output_t:
    """Sees the last 64 keys only."""
    return run(replace(ATTENTION, window=64), data)


def every_other_key(data: input_t) -> output_t:
    """Reads every other key, from the first on."""
    return run(every_other, data)


def every_other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [heads, n, d] over the keys at even positions."""
    positions = torch.arange(k.shape[1], device=k.device)
    scores = (q @ k.mT * scale).masked_fill((positions > positions[:, None]) | (positions % 2 == 1), -torch.inf)
    return scores.softmax(-1) @ v


def values_of_the_next_token(data: input_t) -> output_t:
    """Pairs each key with the value of the token after it."""
    return run(lambda q, k, v, scale: ATTENTION(q, k, v.roll(-1, 1), scale), data)


def heads_interleaved(data: input_t) -> output_t:
    """Gives query head h the key and value head h modulo heads_kv."""
    return run(ATTENTION, data, kv_head=lambda queries, keys: [head % keys for head in range(queries)])


def first_kv_head_for_all(data: input_t) -> output_t:
    """Gives all query heads the first key and value head."""
    return run(ATTENTION, data, kv_head=lambda queries, keys: [0] * queries)


def last_head_repeated(data: input_t) -> output_t:
    """Gives the last query head the result of the one before it."""
    output = run(ATTENTION, data)
    output[:, -1] = output[:, -2]
    return output


def half_of_d_for_scores(data: input_t) -> output_t:
    """Leaves the second half of the dimensions out of the scores."""
    half = data[0].shape[2] // 2
    return run(lambda q, k, v, scale: ATTENTION(q[..., :half], k[..., :half], v, scale), data)


def last_values_missing(data: input_t) -> output_t:
    """Leaves the last 16 dimensions at zero."""
    output = run(ATTENTION, data)
    output[..., -16:] = 0
    return output


# --- wrong: arithmetic ---------------------------------------------------------------------------------------


def scores_not_scaled(data: input_t) -> output_t:
    """Forgets the scale."""
    return run(ATTENTION, data, scale=1.0)


def scale_taken_for_granted(data: input_t) -> output_t:
    """Scales by 1/sqrt(d), whatever the scale that is given."""
    return run(ATTENTION, data, scale=data[0].shape[2] ** -0.5)


def exp2_without_log2e(data: input_t) -> output_t:
    """Takes powers of two instead of e."""
    return run(replace(ATTENTION, with_exp2=True), data)


def no_maximum(data: input_t) -> output_t:
    """Computes exp(score) without subtracting a maximum."""
    return run(replace(ATTENTION, with_maximum=False), data)


def no_rescaling(data: input_t) -> output_t:
    """Does not shrink what it has added when the maximum grows."""
    return run(replace(ATTENTION, with_rescaling=False), data)


def sum_not_rescaled(data: input_t) -> output_t:
    """Shrinks the result when the maximum grows, but not the sum of weights."""
    return run(unscaled_sum, data)


def unscaled_sum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [heads, n, d]: the right result over the wrong sum."""
    result, _, _ = ATTENTION.parts(q, k, v, scale)
    _, total, _ = replace(ATTENTION, with_rescaling=False).parts(q, k, v, scale)
    return result / total[..., None]


def masked_keys_counted(data: input_t) -> output_t:
    """Adds a weight of exp(0 - maximum) to the sum for each key that the mask hides in the block on the diagonal."""
    return run(padded_sum, data)


def padded_sum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [heads, n, d]: masked scores are zeros in the sum, and left out of the result."""
    result, total, largest = ATTENTION.parts(q, k, v, scale)
    hidden = BLOCK - 1 - torch.arange(q.shape[1], device=q.device) % BLOCK
    return result / (total + hidden * (-largest).exp())[..., None]


def shares_averaged(data: input_t) -> output_t:
    """Combines four shares of the keys by their mean."""
    return run(lambda q, k, v, scale: in_shares(q, k, v, scale, by_sum=False), data)


def scores_in_bfloat16(data: input_t) -> output_t:
    """Rounds the scores to bfloat16."""
    return run(replace(ATTENTION, round_scores=to_bf16), data)


def weights_in_fp8(data: input_t) -> output_t:
    """Rounds P to fp8."""
    return run(replace(ATTENTION, round_p=to_fp8), data)


def values_in_fp8(data: input_t) -> output_t:
    """Rounds V to fp8."""
    return run(lambda q, k, v, scale: ATTENTION(q, k, to_fp8(v), scale), data)


def bfloat16_accumulation(data: input_t) -> output_t:
    """Keeps the result in bfloat16 from one block of 16 keys to the next."""
    return run(replace(ATTENTION, round_sums=to_bf16, block=16), data)


# --- right ---------------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Goes through the keys in blocks of 64, in float32."""
    return run(ATTENTION, data)


def float64(data: input_t) -> output_t:
    """Works in float64."""
    return run(lambda q, k, v, scale: ATTENTION(q.double(), k.double(), v.double(), scale), data)


def small_blocks(data: input_t) -> output_t:
    """Goes through the keys in blocks of 16."""
    return run(replace(ATTENTION, block=16), data)


def one_block(data: input_t) -> output_t:
    """Takes all keys at once."""
    return run(lambda q, k, v, scale: replace(ATTENTION, block=k.shape[1])(q, k, v, scale), data)


def from_the_diagonal(data: input_t) -> output_t:
    """Goes through the blocks from the last one to the first, with P in bfloat16."""
    return run(replace(ATTENTION, backwards=True, round_p=to_bf16), data)


def powers_of_two(data: input_t) -> output_t:
    """Computes exp2 of scores times log2(e)."""
    return run(replace(ATTENTION, with_exp2=True), data, scale=data[5] * LOG2_E)


def weights_in_bfloat16(data: input_t) -> output_t:
    """Rounds P to bfloat16 and sums it before that, as FlashAttention does."""
    return run(replace(ATTENTION, round_p=to_bf16), data)


def weights_in_bfloat16_by_small_blocks(data: input_t) -> output_t:
    """Rounds P to bfloat16 in blocks of 16 keys."""
    return run(replace(ATTENTION, round_p=to_bf16, block=16), data)


def rounded_weights_summed(data: input_t) -> output_t:
    """Rounds P to bfloat16 and sums it after that."""
    return run(replace(ATTENTION, round_p=to_bf16, sum_rounded=True), data)


def normalised_weights_in_bfloat16(data: input_t) -> output_t:
    """Divides P by its sum, then rounds it to bfloat16."""
    return run(normalised, data)


def normalised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [heads, n, d] with one rounding of the final weights."""
    hidden = ~ATTENTION.visible(q.shape[1], 0, k.shape[1], q.device)
    return to_bf16((q @ k.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1)) @ v


def weights_in_float16(data: input_t) -> output_t:
    """Rounds P to float16."""
    return run(replace(ATTENTION, round_p=to_fp16), data)


def shares(data: input_t) -> output_t:
    """Splits the keys in four, rounds P to bfloat16, and combines the float32 parts."""
    attention = replace(ATTENTION, round_p=to_bf16)
    return run(lambda q, k, v, scale: in_shares(q, k, v, scale, attention), data)


def truncated_result(data: input_t) -> output_t:
    """Rounds P to bfloat16, and the result towards zero, as Triton's interpreter does."""

    def truncated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        total = replace(ATTENTION, round_p=to_bf16)(q, k, v, scale)
        return (total.view(torch.int32) & -0x10000).view(torch.float32)

    return run(truncated, data)


WRONG = (
    zeros,
    own_value,
    mean_of_the_values,
    not_causal,
    mask_by_blocks,
    one_key_too_many,
    own_key_not_seen,
    one_long_sequence,
    equal_lengths_assumed,
    begins_one_token_late,
    begins_one_token_early,
    tail_of_queries_lost,
    short_window,
    every_other_key,
    values_of_the_next_token,
    heads_interleaved,
    first_kv_head_for_all,
    last_head_repeated,
    half_of_d_for_scores,
    last_values_missing,
    scores_not_scaled,
    scale_taken_for_granted,
    exp2_without_log2e,
    no_maximum,
    no_rescaling,
    sum_not_rescaled,
    masked_keys_counted,
    shares_averaged,
    scores_in_bfloat16,
    weights_in_fp8,
    values_in_fp8,
    bfloat16_accumulation,
)
HONEST = (
    exact,
    float64,
    small_blocks,
    one_block,
    from_the_diagonal,
    powers_of_two,
    weights_in_bfloat16,
    weights_in_bfloat16_by_small_blocks,
    rounded_weights_summed,
    normalised_weights_in_bfloat16,
    weights_in_float16,
    shares,
    truncated_result,
)
