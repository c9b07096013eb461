"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart."""

import torch
from mx_layout import unshuffle_scale
from mxfp4 import BLOCK, dequantize_mxfp4, e8m0_to_float, pack_fp4, quantize_mxfp4, unpack_fp4
from task import input_t, output_t

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(exact(data))


def a_not_quantised(data: input_t) -> output_t:
    """Multiplies A as it is, in bfloat16."""
    return (data[0].float() @ weights(data).T).bfloat16()


def b_not_quantised(data: input_t) -> output_t:
    """Multiplies the bfloat16 B that is given beside the quantised one."""
    return (activations(data) @ data[1].float().T).bfloat16()


def ties_away(data: input_t) -> output_t:
    """Rounds ties in A away from zero."""
    return product(activations(data, rounding="half-away"), weights(data))


def truncated_elements(data: input_t) -> output_t:
    """Rounds A's elements towards zero."""
    scale = e8m0_to_float(quantize_mxfp4(data[0])[1]).repeat_interleave(BLOCK, 1)
    return product(to_grid(data[0].float() / scale, VALUES[1:]) * scale, weights(data))


def floor_scales(data: input_t) -> output_t:
    """Takes A's scales by OCP's floor rule."""
    return product(activations(data, "floor"), weights(data))


def rounded_up_scales(data: input_t) -> output_t:
    """Takes A's scales by NVIDIA's rule, rounded up until nothing clips."""
    return product(activations(data, "rceil"), weights(data))


def ceil_scales(data: input_t) -> output_t:
    """Takes A's scales from the next power of two above the largest magnitude."""
    return product(activations(data, "ceil"), weights(data))


def round15_scales(data: input_t) -> output_t:
    """Bumps A's scales from a significand of 1.5 on instead of 1.75."""
    return product(activations(data, "round15"), weights(data))


def a_scale_for_a_row(data: input_t) -> output_t:
    """Gives all blocks of a row of A the scale of its largest element."""
    scale = torch.exp2(data[0].float().abs().amax(dim=1, keepdim=True).log2().floor() - 2)
    return product(to_grid(data[0].float() / scale, MIDDLES) * scale, weights(data))


def blocks_of_16(data: input_t) -> output_t:
    """Gives each 16 elements of A a scale of their own, as NVFP4 does."""
    halves = data[0].unflatten(1, (-1, 16))
    doubled = torch.cat([halves, halves], dim=-1)
    return product(dequantize_mxfp4(*quantize_mxfp4(doubled))[..., :16].flatten(1), weights(data))


def swapped_nibbles(data: input_t) -> output_t:
    """Takes the high nibble of a byte of B for the even element."""
    codes = unpack_fp4(data[2]).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return product(activations(data), dequantize_mxfp4(pack_fp4(codes), scales(data)))


def last_block_of_k_lost(data: input_t) -> output_t:
    """Stops one block of 32 before the end of k."""
    return product(activations(data)[:, :-BLOCK], weights(data)[:, :-BLOCK])


def last_element_of_k_lost(data: input_t) -> output_t:
    """Stops one element before the end of k."""
    return product(activations(data)[:, :-1], weights(data)[:, :-1])


def first_block_of_k_twice(data: input_t) -> output_t:
    """Adds the first block of k twice."""
    return (activations(data) @ weights(data).T + activations(data)[:, :BLOCK] @ weights(data)[:, :BLOCK].T).bfloat16()


def last_row_repeated(data: input_t) -> output_t:
    """Computes the last row of a tile from the row before it."""
    output = exact(data)
    output[-1] = output[max(0, len(output) - 2)] if len(output) > 1 else 0
    return output


def last_column_lost(data: input_t) -> output_t:
    """Leaves the last column at zero."""
    output = exact(data)
    output[:, -1] = 0
    return output


def scales_of_the_next_block(data: input_t) -> output_t:
    """Reads each scale of B one block too far."""
    return product(activations(data), dequantize_mxfp4(data[2], scales(data).roll(-1, 1)))


def scales_of_the_next_row(data: input_t) -> output_t:
    """Reads each scale of B one row too far."""
    return product(activations(data), dequantize_mxfp4(data[2], scales(data).roll(-1, 0)))


def scales_read_as_if_plain(data: input_t) -> output_t:
    """Reads the tiled scales of B as if they were in plain order."""
    plain = data[4].flatten()[: scales(data).numel()].view(scales(data).shape)
    return product(activations(data), dequantize_mxfp4(data[2], plain))


def weights_read_as_if_plain(data: input_t) -> output_t:
    """Reads the tiled bytes of B as if they were in plain order."""
    return product(activations(data), dequantize_mxfp4(data[3], scales(data)))


def bfloat16_accumulation(data: input_t) -> output_t:
    """Keeps the sum in bfloat16 from one block of 32 to the next."""
    return in_steps(data, torch.bfloat16)


def float16_accumulation(data: input_t) -> output_t:
    """Keeps the sum in float16 from one block of 32 to the next."""
    return in_steps(data, torch.float16)


def two_halves_in_bfloat16(data: input_t) -> output_t:
    """Splits k in two and rounds both parts to bfloat16 before they are added."""
    left, right = (part.bfloat16() for part in halves(data))
    return left + right


def wrong_where_m_is_no_multiple_of_16(data: input_t) -> output_t:
    """Leaves out the rows beyond the last whole tile of 16."""
    output = exact(data)
    output[len(output) // 16 * 16 :] = 0
    return output


# --- right ones ----------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Adds in float32."""
    return product(activations(data), weights(data))


def float64(data: input_t) -> output_t:
    """Adds in float64."""
    return (activations(data).double() @ weights(data).double().T).bfloat16()


def backwards(data: input_t) -> output_t:
    """Adds block by block from the end of k, in float32."""
    return in_steps(data, torch.float32, backwards=True)


def split_k(data: input_t) -> output_t:
    """Splits k in two and adds the parts in float32."""
    left, right = halves(data)
    return (left + right).bfloat16()


def scaled_by_block(data: input_t) -> output_t:
    """Multiplies the bare FP4 values block by block, and each block's sum by its two scales."""
    (a, a_scales), (b, b_scales) = quantize_mxfp4(data[0]), (data[2], scales(data))
    left, right = (
        dequantize_mxfp4(packed, torch.full_like(by_block, 127)).split(BLOCK, 1)
        for packed, by_block in ((a, a_scales), (b, b_scales))
    )
    factors = [e8m0_to_float(by_block.T.contiguous()) for by_block in (a_scales, b_scales)]
    parts = zip(left, right, *factors, strict=True)
    return sum(x @ y.T * x_scale[:, None] * y_scale for x, y, x_scale, y_scale in parts).bfloat16()


def truncated_result(data: input_t) -> output_t:
    """Rounds the result towards zero, one unit in the last place at most: Triton's interpreter does."""
    total = activations(data) @ weights(data).T
    return (total.view(torch.int32) & -0x10000).view(torch.float32).bfloat16()


# --- what they are made of -----------------------------------------------------------------------------------


def activations(data: input_t, rule: str = "even", rounding: str = "nearest-even") -> torch.Tensor:
    """float32 [m, k]: A, quantised by a rule."""
    return dequantize_mxfp4(*quantize_mxfp4(data[0], rule, rounding))


def to_grid(values: torch.Tensor, thresholds: tuple[float, ...]) -> torch.Tensor:
    """Values already divided by their scale, as FP4 values: the i-th from where the i-th threshold is reached."""
    grid, edges = (torch.tensor(numbers, device=values.device) for numbers in (VALUES, thresholds))
    return grid[torch.bucketize(values.abs(), edges, right=True)] * values.sign()


def scales(data: input_t) -> torch.Tensor:
    """uint8 [n, k/32]: B's scales in plain order."""
    return unshuffle_scale(data[4], len(data[1]), data[1].shape[1] // BLOCK)


def weights(data: input_t) -> torch.Tensor:
    """float32 [n, k]: B as quantised."""
    return dequantize_mxfp4(data[2], scales(data))


def product(left: torch.Tensor, right: torch.Tensor) -> output_t:
    """bfloat16 [m, n] of float32 [m, k] and [n, k]."""
    return (left @ right.T).bfloat16()


def halves(data: input_t) -> tuple[torch.Tensor, torch.Tensor]:
    """The two float32 parts [m, n] of the sum, split at half of k."""
    middle = data[0].shape[1] // 2
    left, right = activations(data), weights(data)
    return left[:, :middle] @ right[:, :middle].T, left[:, middle:] @ right[:, middle:].T


def in_steps(data: input_t, dtype: torch.dtype, *, backwards: bool = False) -> output_t:
    """Block by block of k, the sum rounded to `dtype` after each."""
    blocks = list(zip(activations(data).split(BLOCK, 1), weights(data).split(BLOCK, 1), strict=True))
    total = torch.zeros(len(data[0]), len(data[1]), dtype=dtype, device=data[0].device)
    for left, right in reversed(blocks) if backwards else blocks:
        total = (total.float() + left @ right.T).to(dtype)
    return total.bfloat16()


WRONG = (
    zeros,
    a_not_quantised,
    b_not_quantised,
    ties_away,
    truncated_elements,
    floor_scales,
    round15_scales,
    rounded_up_scales,
    ceil_scales,
    a_scale_for_a_row,
    blocks_of_16,
    swapped_nibbles,
    last_block_of_k_lost,
    last_element_of_k_lost,
    first_block_of_k_twice,
    last_row_repeated,
    last_column_lost,
    wrong_where_m_is_no_multiple_of_16,
    scales_of_the_next_block,
    scales_of_the_next_row,
    scales_read_as_if_plain,
    weights_read_as_if_plain,
    bfloat16_accumulation,
    float16_accumulation,
    two_halves_in_bfloat16,
)
HONEST = (exact, float64, backwards, split_k, scaled_by_block, truncated_result)
