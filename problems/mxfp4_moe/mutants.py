"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from mxfp4 import BLOCK, dequantize_mxfp4, pack_fp4, quantize_mxfp4, unpack_fp4
from task import input_t, output_t

Step = Callable[[torch.Tensor], torch.Tensor]


def fp4(x: torch.Tensor, rule: str = "even", rounding: str = "nearest-even") -> torch.Tensor:
    """float32 of the same shape: quantised along the last dimension."""
    return dequantize_mxfp4(*quantize_mxfp4(x, rule, rounding))


def to_bf16(x: torch.Tensor) -> torch.Tensor:
    """Rounded to bfloat16, as float32."""
    return x.bfloat16().float()


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    return gate / (1 + torch.exp(-gate)) * up


def into_float32(total: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The sum of two float32 tensors."""
    return total + result


def into_bf16(total: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The sum as an atomic addition in bfloat16 leaves it."""
    return to_bf16(total + to_bf16(result))


@dataclass(frozen=True)
class Layer:
    """The layer in its steps, expert by expert, each of which a kernel may do otherwise."""

    quantise_x: Step = fp4
    decode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = dequantize_mxfp4
    """float32 [N, K] from packed weights and their scales."""
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda x, w: x @ w.T
    split: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] = lambda both: both.chunk(2, 1)
    """gate and up from both."""
    activate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = swiglu
    round_h: Step = to_bf16
    requantise: Step = fp4
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = into_float32
    weights_first: bool = False
    """Whether an expert's h is weighed instead of its result."""
    backwards: bool = False
    tile: int | None = None
    """How many tokens an expert can take; None for all."""

    def __call__(self, data: input_t) -> output_t:
        """bfloat16 [M, D]."""
        hidden, gate_up, down, gate_up_scale, down_scale, *_, weights, ids, _ = data
        gate_up_scale, down_scale = (
            scale.view(*packed.shape[:2], -1) for packed, scale in ((gate_up, gate_up_scale), (down, down_scale))
        )
        x = self.quantise_x(hidden)
        total = torch.zeros_like(hidden, dtype=torch.float32)
        experts = ids.unique().tolist()
        for expert in reversed(experts) if self.backwards else experts:
            tokens, slots = (part[: self.tile] for part in (ids == expert).nonzero(as_tuple=True))
            share = weights[tokens, slots].unsqueeze(1)
            both = self.multiply(x[tokens], self.decode(gate_up[expert], gate_up_scale[expert]))
            h = self.activate(*self.split(both))
            h = self.requantise(self.round_h(h * share if self.weights_first else h))
            result = self.multiply(h, self.decode(down[expert], down_scale[expert]))
            total[tokens] = self.add(total[tokens], result if self.weights_first else result * share)
        return total.bfloat16()


LAYER = Layer()


def with_weights(data: input_t, weights: torch.Tensor) -> input_t:
    """The same with other routing weights [M, T]."""
    return *data[:9], weights.float(), *data[10:]


def with_ids(data: input_t, ids: torch.Tensor) -> input_t:
    """The same with other experts [M, T]."""
    return *data[:10], ids.int(), data[11]


def with_part(data: input_t, index: int, part: torch.Tensor) -> input_t:
    """The same with one part replaced."""
    return *data[:index], part, *data[index + 1 :]


# --- wrong: routing ------------------------------------------------------------------------------------------


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(data[0])


def least_expert_dropped(data: input_t) -> output_t:
    """Leaves out each token's routed expert of least weight."""
    weights = data[9]
    return LAYER(with_weights(data, weights * (weights > weights.amin(1, keepdim=True))))


def routed_experts_dropped(data: input_t) -> output_t:
    """Computes the shared experts only."""
    routed = data[10] < data[11]["n_routed_experts"]
    return LAYER(with_weights(data, data[9] * ~routed))


def shared_expert_dropped(data: input_t) -> output_t:
    """Computes the routed experts only."""
    routed = data[10] < data[11]["n_routed_experts"]
    return LAYER(with_weights(data, data[9] * routed))


def weights_ignored(data: input_t) -> output_t:
    """Counts every expert once, whatever its weight."""
    return LAYER(with_weights(data, torch.ones_like(data[9])))


def weights_renormalised(data: input_t) -> output_t:
    """Divides the routed weights by their sum."""
    routed = data[9] * (data[10] < data[11]["n_routed_experts"])
    weights = torch.where(routed > 0, routed / routed.sum(1, keepdim=True), data[9])
    return LAYER(with_weights(data, weights))


def weights_averaged(data: input_t) -> output_t:
    """Gives a token's routed experts the mean of their weights."""
    routed = data[10] < data[11]["n_routed_experts"]
    mean = (data[9] * routed).sum(1, keepdim=True) / routed.sum(1, keepdim=True)
    return LAYER(with_weights(data, torch.where(routed, mean, data[9])))


def weights_of_the_next_token(data: input_t) -> output_t:
    """Reads the routing weights one token too far."""
    return LAYER(with_weights(data, data[9].roll(-1, 0)))


def two_slots_swapped(data: input_t) -> output_t:
    """Takes the weights of a token's first two experts for one another."""
    swapped = data[9].clone()
    swapped[:, :2] = data[9][:, :2].flip(1)
    return LAYER(with_weights(data, swapped))


def experts_off_by_one(data: input_t) -> output_t:
    """Takes the weights of the expert after the one that was chosen."""
    return LAYER(with_ids(data, (data[10] + 1) % len(data[1])))


def empty_experts_not_skipped(data: input_t) -> output_t:
    """Gives the i-th group of tokens to the i-th expert, right only when no expert is without a token."""
    return LAYER(with_ids(data, data[10].unique(return_inverse=True)[1]))


def only_four_tokens_for_an_expert(data: input_t) -> output_t:
    """Has room for four tokens of an expert and forgets the others, right only when there are no more."""
    return replace(LAYER, tile=4)(data)


def last_token_dropped(data: input_t) -> output_t:
    """Leaves the last token at zero."""
    output = LAYER(data)
    output[-1] = 0
    return output


# --- wrong: weights ------------------------------------------------------------------------------------------


def gate_and_up_swapped(data: input_t) -> output_t:
    """Takes the first half of the rows for up and the second for gate."""
    return replace(LAYER, split=lambda both: both.chunk(2, 1)[::-1])(data)


def gate_and_up_interleaved(data: input_t) -> output_t:
    """Takes even rows for gate and odd ones for up."""
    return replace(LAYER, split=lambda both: (both[:, ::2], both[:, 1::2]))(data)


def transposed_weights(data: input_t) -> output_t:
    """Reads each expert's second matrix along the wrong dimension."""

    def decode(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        values = dequantize_mxfp4(packed, scales)
        return values if len(values) != data[0].shape[1] else values.T.reshape(values.shape)

    return replace(LAYER, decode=decode)(data)


def swapped_nibbles(data: input_t) -> output_t:
    """Takes the high nibble of a weight's byte for the even element."""

    def decode(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        codes = unpack_fp4(packed).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return dequantize_mxfp4(pack_fp4(codes), scales)

    return replace(LAYER, decode=decode)(data)


def tiled_weights_read_as_if_plain(data: input_t) -> output_t:
    """Reads the tiled bytes of the first product's weights as if they were in plain order."""
    return LAYER(with_part(data, 1, data[5]))


def tiled_scales_read_as_if_plain(data: input_t) -> output_t:
    """Reads the tiled scales of the second product as if they were in plain order."""
    return LAYER(with_part(data, 4, data[8].flatten()[: data[4].numel()].view(data[4].shape)))


def scales_of_the_first_expert(data: input_t) -> output_t:
    """Uses expert 0's scales of the second product for all experts."""
    first = data[4].view(len(data[2]), -1)[:1]
    return LAYER(with_part(data, 4, first.expand(len(data[2]), -1).reshape(data[4].shape)))


# --- wrong: arithmetic ---------------------------------------------------------------------------------------


def last_block_of_the_first_sum_lost(data: input_t) -> output_t:
    """Stops one block of 32 before the end of the first product's sums."""
    return replace(LAYER, quantise_x=lambda x: without_last_block(fp4(x)))(data)


def last_block_of_the_second_sum_lost(data: input_t) -> output_t:
    """Stops one block of 32 before the end of the second product's sums."""
    return replace(LAYER, requantise=lambda h: without_last_block(fp4(h)))(data)


def x_not_quantised(data: input_t) -> output_t:
    """Multiplies the tokens as they are, in bfloat16."""
    return replace(LAYER, quantise_x=torch.Tensor.float)(data)


def h_not_requantised(data: input_t) -> output_t:
    """Multiplies h in bfloat16."""
    return replace(LAYER, requantise=lambda h: h)(data)


def h_in_fp8(data: input_t) -> output_t:
    """Quantises h to fp8 instead of FP4."""
    return replace(LAYER, requantise=lambda h: h.to(torch.float8_e4m3fn).float())(data)


def h_not_rounded(data: input_t) -> output_t:
    """Requantises h in float32, without rounding it to bfloat16 first."""
    return replace(LAYER, round_h=lambda h: h)(data)


def gate_and_up_rounded(data: input_t) -> output_t:
    """Rounds gate and up to bfloat16 before SwiGLU."""
    return replace(LAYER, activate=lambda gate, up: swiglu(to_bf16(gate), to_bf16(up)))(data)


def silu_in_bfloat16(data: input_t) -> output_t:
    """Rounds silu(gate) to bfloat16 before it is multiplied."""
    return replace(LAYER, activate=lambda gate, up: to_bf16(gate / (1 + torch.exp(-gate))) * up)(data)


def gelu_for_silu(data: input_t) -> output_t:
    """Activates by GELU."""
    return replace(LAYER, activate=lambda gate, up: torch.nn.functional.gelu(gate) * up)(data)


def no_activation(data: input_t) -> output_t:
    """Multiplies gate and up without SiLU."""
    return replace(LAYER, activate=lambda gate, up: gate * up)(data)


def weighed_before_requantising(data: input_t) -> output_t:
    """Multiplies h by the routing weight before it is quantised, instead of the expert's result."""
    return replace(LAYER, weights_first=True)(data)


def ties_away_in_x(data: input_t) -> output_t:
    """Rounds ties in the tokens away from zero."""
    return replace(LAYER, quantise_x=lambda x: fp4(x, rounding="half-away"))(data)


def ties_away_in_h(data: input_t) -> output_t:
    """Rounds ties in h away from zero."""
    return replace(LAYER, requantise=lambda h: fp4(h, rounding="half-away"))(data)


def floor_scales(data: input_t) -> output_t:
    """Takes the tokens' scales by OCP's floor rule."""
    return replace(LAYER, quantise_x=lambda x: fp4(x, "floor"))(data)


def round15_scales(data: input_t) -> output_t:
    """Bumps the scales of h from a significand of 1.5 on instead of 1.75."""
    return replace(LAYER, requantise=lambda h: fp4(h, "round15"))(data)


def rounded_up_scales(data: input_t) -> output_t:
    """Takes the scales of h by NVIDIA's rule, rounded up until nothing clips."""
    return replace(LAYER, requantise=lambda h: fp4(h, "rceil"))(data)


def ceil_scales(data: input_t) -> output_t:
    """Takes the scales of h from the next power of two above the largest magnitude."""
    return replace(LAYER, requantise=lambda h: fp4(h, "ceil"))(data)


def bfloat16_accumulation(data: input_t) -> output_t:
    """Keeps both products' sums in bfloat16 from one block of 32 to the next."""
    return replace(LAYER, multiply=lambda x, w: in_steps(x, w, torch.bfloat16))(data)


def float16_accumulation(data: input_t) -> output_t:
    """Keeps both products' sums in float16 from one block of 32 to the next."""
    return replace(LAYER, multiply=lambda x, w: in_steps(x, w, torch.float16))(data)


# --- right ---------------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Adds in float32, the first expert first."""
    return LAYER(data)


def backwards(data: input_t) -> output_t:
    """Adds in float32, the last expert first."""
    return replace(LAYER, backwards=True)(data)


def bfloat16_atomics(data: input_t) -> output_t:
    """Adds the experts' results in bfloat16, the first expert first."""
    return replace(LAYER, add=into_bf16)(data)


def bfloat16_atomics_backwards(data: input_t) -> output_t:
    """Adds the experts' results in bfloat16, the last expert first."""
    return replace(LAYER, add=into_bf16, backwards=True)(data)


def results_in_bfloat16(data: input_t) -> output_t:
    """Rounds each expert's result to bfloat16 and adds them in float32."""
    return replace(LAYER, add=lambda total, result: total + to_bf16(result))(data)


def products_in_blocks(data: input_t) -> output_t:
    """Adds both products block by block of 32, in float32."""
    return replace(LAYER, multiply=lambda x, w: in_steps(x, w, torch.float32))(data)


def exp2_for_exp(data: input_t) -> output_t:
    """Computes SiLU by a power of two, as GPUs do."""
    return replace(LAYER, activate=lambda gate, up: gate / (1 + torch.exp2(gate * -math.log2(math.e))) * up)(data)


def silu_by_tanh(data: input_t) -> output_t:
    """Computes SiLU by a hyperbolic tangent."""
    return replace(LAYER, activate=lambda gate, up: gate * (0.5 + 0.5 * torch.tanh(0.5 * gate)) * up)(data)


def without_last_block(x: torch.Tensor) -> torch.Tensor:
    """The same with the last 32 columns at zero."""
    return torch.cat([x[..., :-BLOCK], torch.zeros_like(x[..., -BLOCK:])], -1)


def in_steps(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 x @ w.T, the sum rounded to `dtype` after each block of 32."""
    total = torch.zeros(len(x), len(w), dtype=dtype, device=x.device)
    for left, right in zip(x.split(BLOCK, 1), w.split(BLOCK, 1), strict=True):
        total = (total.float() + left @ right.T).to(dtype)
    return total.float()


WRONG = (
    zeros,
    least_expert_dropped,
    routed_experts_dropped,
    shared_expert_dropped,
    weights_ignored,
    weights_renormalised,
    weights_averaged,
    weights_of_the_next_token,
    two_slots_swapped,
    experts_off_by_one,
    empty_experts_not_skipped,
    only_four_tokens_for_an_expert,
    last_token_dropped,
    gate_and_up_swapped,
    gate_and_up_interleaved,
    transposed_weights,
    swapped_nibbles,
    tiled_weights_read_as_if_plain,
    tiled_scales_read_as_if_plain,
    scales_of_the_first_expert,
    last_block_of_the_first_sum_lost,
    last_block_of_the_second_sum_lost,
    x_not_quantised,
    h_not_requantised,
    h_in_fp8,
    h_not_rounded,
    gate_and_up_rounded,
    silu_in_bfloat16,
    gelu_for_silu,
    no_activation,
    weighed_before_requantising,
    ties_away_in_x,
    ties_away_in_h,
    floor_scales,
    round15_scales,
    rounded_up_scales,
    ceil_scales,
    bfloat16_accumulation,
    float16_accumulation,
)
HONEST = (
    exact,
    backwards,
    bfloat16_atomics,
    bfloat16_atomics_backwards,
    results_in_bfloat16,
    products_in_blocks,
    exp2_for_exp,
    silu_by_tanh,
)
