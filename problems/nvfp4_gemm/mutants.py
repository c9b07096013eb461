"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart.

Where a mistake concerns one format only, the others are computed rightly: it shows in the cases of that format.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from mxfp4 import pack_fp4, unpack_fp4
from nvfp4 import BLOCK, dequantize_nvfp4, e4m3_to_float
from task import input_t, output_t

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
Step = Callable[[torch.Tensor], torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Decoder:
    """(packed [rows, k/2], scales [rows, k/16]) -> float32 [rows, k], as some kernel understands them."""

    razer: bool
    special: float = 5.0
    special_code: int = 8
    sign_of_special: Step | None = None
    """The special value's sign from the scale bytes; None: bit 7 set means negative."""
    scale_of: Step = e4m3_to_float
    special_scaled: bool = True
    """Whether the special value is multiplied by its block's scale."""

    def __call__(self, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """float32 [rows, k]."""
        codes = unpack_fp4(packed).unflatten(1, (-1, BLOCK)).long()
        table = torch.tensor([*VALUES, *(-value for value in VALUES)], device=packed.device)
        factors = self.scale_of(scales)[..., None]
        values = table[codes] * factors
        if self.razer:
            signs = (self.sign_of_special or sign_by_bit)(scales)[..., None] * self.special
            special = signs * factors if self.special_scaled else signs.expand_as(values)
            values = torch.where(codes == self.special_code, special, values)
        return values.flatten(1)


def sign_by_bit(scales: torch.Tensor) -> torch.Tensor:
    """float32: -1 where bit 7 is set, else 1."""
    return 1.0 - 2.0 * (scales >> 7)


def decoder(data: input_t) -> Decoder:
    """The right one for the case's format."""
    return Decoder(data[6] == "razer")


def decoded(data: input_t, decode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None) -> Pair:
    """float32 ([m, k], [n, k]): both operands without their tensors' scales."""
    decode = decode or decoder(data)
    return decode(data[0], data[1]), decode(data[3], data[4])


def product(data: input_t, operands: Pair) -> output_t:
    """bfloat16 [m, n], summed in float64, then scaled by both tensors' scales."""
    left, right = operands
    return scaled(data, left.double() @ right.double().T)


def scaled(data: input_t, sums: torch.Tensor) -> output_t:
    """bfloat16 of the sums times both tensors' scales."""
    return (sums * (data[2] * data[5])).bfloat16()


def with_parts(data: input_t, **parts: torch.Tensor) -> input_t:
    """The same with other packed bytes or scales: a, a_scales, b, b_scales."""
    places = {"a": 0, "a_scales": 1, "b": 3, "b_scales": 4}
    changed = list(data)
    for name, tensor in parts.items():
        changed[places[name]] = tensor
    return tuple(changed)


# --- wrong: formats ------------------------------------------------------------------------------------------


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(exact(data))


def special_taken_for_zero(data: input_t) -> output_t:
    """Decodes RaZeR as NVFP4: code 8 is zero."""
    return product(data, decoded(data, Decoder(razer=False)))


def special_in_nvfp4_too(data: input_t) -> output_t:
    """Decodes NVFP4 as RaZeR: code 8 is 5."""
    return product(data, decoded(data, Decoder(razer=True)))


def special_always_positive(data: input_t) -> output_t:
    """Takes RaZeR's special value for +5 in every block."""
    return product(data, decoded(data, replace(decoder(data), sign_of_special=lambda scales: 1.0 + 0 * scales)))


def special_of_the_other_sign(data: input_t) -> output_t:
    """Takes a set bit 7 for +5 and a clear one for -5."""
    return product(data, decoded(data, replace(decoder(data), sign_of_special=lambda scales: -sign_by_bit(scales))))


def special_is_eight(data: input_t) -> output_t:
    """Takes 8 for RaZeR's special value."""
    return product(data, decoded(data, replace(decoder(data), special=8.0)))


def special_for_code_zero(data: input_t) -> output_t:
    """Takes code 0 for RaZeR's special value, and code 8 for zero."""
    return product(data, decoded(data, replace(decoder(data), special_code=0)))


def special_not_scaled(data: input_t) -> output_t:
    """Forgets to multiply RaZeR's special value by its block's scale."""
    return product(data, decoded(data, replace(decoder(data), special_scaled=False)))


def bit_7_is_the_scale_s_sign(data: input_t) -> output_t:
    """Takes bit 7 of a scale byte for the scale's sign."""
    signed = replace(decoder(data), scale_of=lambda scales: e4m3_to_float(scales) * sign_by_bit(scales))
    return product(data, decoded(data, signed))


def special_in_b_only(data: input_t) -> output_t:
    """Decodes A as NVFP4 whatever the format, and B rightly."""
    return product(data, (Decoder(razer=False)(data[0], data[1]), decoded(data)[1]))


def swapped_nibbles(data: input_t) -> output_t:
    """Takes the high nibble of a byte of B for the even element."""
    codes = unpack_fp4(data[3]).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return exact(with_parts(data, b=pack_fp4(codes)))


def elements_are_integers(data: input_t) -> output_t:
    """Takes an element's lower three bits for an integer."""
    integers = torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7, -0.0, -1, -2, -3, -4, -5, -6, -7], device=data[0].device)
    left, right = (
        integers[unpack_fp4(packed).long()] * e4m3_to_float(scales).repeat_interleave(BLOCK, 1)
        for packed, scales in (data[0:2], data[3:5])
    )
    return product(data, (left, right))


# --- wrong: scales -------------------------------------------------------------------------------------------


def subnormal_scales_lost(data: input_t) -> output_t:
    """Takes scales below 2**-6, which are subnormal, for zero."""
    flushed = replace(decoder(data), scale_of=lambda scales: e4m3_to_float(scales) * ((scales & 0x7F) >= 8))
    return product(data, decoded(data, flushed))


def subnormal_scales_with_a_hidden_bit(data: input_t) -> output_t:
    """Decodes scales below 2**-6 as if they were normal: 2**-7 times 1 and their mantissa."""
    normal = replace(decoder(data), scale_of=always_normal)
    return product(data, decoded(data, normal))


def always_normal(scales: torch.Tensor) -> torch.Tensor:
    """float32: 2**(exponent - 7) times 1 and eighths of the mantissa."""
    byte = (scales & 0x7F).int()
    return ((byte << 20) + (120 << 23)).view(torch.float32)


def exponent_bias_of_8(data: input_t) -> output_t:
    """Takes A's scales for E4M3 with a bias of 8, as AMD's fnuz has it."""
    left, right = decoded(data)
    return product(data, (left / 2, right))


def scales_as_e8m0(data: input_t) -> output_t:
    """Takes only the exponent of a scale and drops its mantissa."""
    return product(data, decoded(data, replace(decoder(data), scale_of=lambda scales: e4m3_to_float(scales & 0xF8))))


def scales_for_32(data: input_t) -> output_t:
    """Takes one scale for two blocks of 16, the first one's, as MXFP4 does."""
    halves = [tensor.unflatten(1, (-1, 2))[..., :1].expand(-1, -1, 2).flatten(1) for tensor in (data[1], data[4])]
    return exact(with_parts(data, a_scales=halves[0], b_scales=halves[1]))


def scales_of_the_next_block(data: input_t) -> output_t:
    """Reads each scale of B one block too far."""
    return exact(with_parts(data, b_scales=data[4].roll(-1, 1)))


def scales_of_the_next_row(data: input_t) -> output_t:
    """Reads each scale of B one row too far."""
    return exact(with_parts(data, b_scales=data[4].roll(-1, 0)))


def scales_read_as_if_transposed(data: input_t) -> output_t:
    """Reads A's scales as if they lay column by column."""
    blocks = data[1].shape[1]
    return exact(with_parts(data, a_scales=data[1].reshape(blocks, -1).T.contiguous()))


def tensor_scale_forgotten(data: input_t) -> output_t:
    """Forgets A's tensor scale."""
    return (exact(data) / data[2]).bfloat16()


def tensor_scale_of_a_twice(data: input_t) -> output_t:
    """Applies A's tensor scale in place of B's."""
    left, right = decoded(data)
    return ((left.double() @ right.double().T) * data[2] * data[2]).bfloat16()


def tensor_scale_in_bfloat16(data: input_t) -> output_t:
    """Rounds each element of A and B times its tensor's scale to bfloat16."""
    left, right = decoded(data)
    rounded = [(values * scale).bfloat16().double() for values, scale in ((left, data[2]), (right, data[5]))]
    return (rounded[0] @ rounded[1].T).bfloat16()


def values_in_fp8(data: input_t) -> output_t:
    """Rounds each element times its block's scale to fp8 (E4M3), scaled to fit."""
    left, right = ((values / 8).to(torch.float8_e4m3fn).float() * 8 for values in decoded(data))
    return product(data, (left, right))


# --- wrong: sums ---------------------------------------------------------------------------------------------


def last_block_of_k_lost(data: input_t) -> output_t:
    """Stops one block of 16 before the end of k."""
    left, right = decoded(data)
    return product(data, (left[:, :-BLOCK], right[:, :-BLOCK]))


def last_element_of_k_lost(data: input_t) -> output_t:
    """Stops one element before the end of k."""
    left, right = decoded(data)
    return product(data, (left[:, :-1], right[:, :-1]))


def first_block_of_k_twice(data: input_t) -> output_t:
    """Adds the first block of k twice."""
    left, right = (torch.cat([values, values[:, :BLOCK]], 1) for values in decoded(data))
    return product(data, (left, right))


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


def wrong_where_m_is_no_multiple_of_16(data: input_t) -> output_t:
    """Leaves out the rows beyond the last whole tile of 16."""
    output = exact(data)
    output[len(output) // 16 * 16 :] = 0
    return output


def bfloat16_accumulation(data: input_t) -> output_t:
    """Keeps the sum in bfloat16 from one block of 16 to the next."""
    return in_steps(data, torch.bfloat16)


def float16_accumulation(data: input_t) -> output_t:
    """Keeps the sum in float16 from one block of 16 to the next, with both tensors' scales applied before."""
    left, right = decoded(data)
    return in_steps(data, torch.float16, (left * data[2], right * data[5]), scaled_before=True)


def two_halves_in_bfloat16(data: input_t) -> output_t:
    """Splits k in two and rounds both parts to bfloat16 before they are added."""
    first, second = (part.bfloat16() for part in halves(data))
    return scaled(data, (first + second).float())


# --- right ---------------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Adds in float64."""
    return product(data, decoded(data))


def float32(data: input_t) -> output_t:
    """Adds in float32."""
    left, right = decoded(data)
    return scaled(data, left @ right.T)


def bfloat16_operands(data: input_t) -> output_t:
    """Decodes to bfloat16 by the problem's own code, and adds in float32."""
    left, right = (
        dequantize_nvfp4(packed, scales, data[6], torch.bfloat16) for packed, scales in (data[0:2], data[3:5])
    )
    return scaled(data, left.float() @ right.float().T)


def float16_operands(data: input_t) -> output_t:
    """Decodes to float16 and adds in float32."""
    left, right = (values.half().float() for values in decoded(data))
    return scaled(data, left @ right.T)


def backwards(data: input_t) -> output_t:
    """Adds block by block from the end of k, in float32."""
    return in_steps(data, torch.float32, backwards=True)


def split_k(data: input_t) -> output_t:
    """Splits k in two and adds the parts in float32."""
    first, second = halves(data)
    return scaled(data, first + second)


def scaled_by_block(data: input_t) -> output_t:
    """Multiplies the bare elements block by block, and each block's sum by its two scales."""
    bare = replace(decoder(data), scale_of=lambda scales: torch.ones(scales.shape, device=scales.device))
    left, right = (values.split(BLOCK, 1) for values in decoded(data, bare))
    factors = [e4m3_to_float(scales).T.contiguous() for scales in (data[1], data[4])]
    parts = zip(left, right, *factors, strict=True)
    return scaled(data, sum(x @ y.T * x_scale[:, None] * y_scale for x, y, x_scale, y_scale in parts))


def tensor_scales_first(data: input_t) -> output_t:
    """Multiplies each element by its tensor's scale in float32, and adds in float32."""
    left, right = decoded(data)
    return ((left * data[2]) @ (right * data[5]).T).bfloat16()


def tensor_scales_one_by_one(data: input_t) -> output_t:
    """Applies first A's tensor scale to the sum, then B's."""
    left, right = decoded(data)
    return ((left @ right.T) * data[2] * data[5]).bfloat16()


def truncated_result(data: input_t) -> output_t:
    """Rounds the result towards zero, one unit in the last place at most: Triton's interpreter does."""
    left, right = decoded(data)
    total = (left @ right.T) * (data[2] * data[5])
    return (total.view(torch.int32) & -0x10000).view(torch.float32).bfloat16()


# --- what they are made of -----------------------------------------------------------------------------------


def halves(data: input_t) -> Pair:
    """The two float32 parts [m, n] of the sum, split at half of k."""
    left, right = decoded(data)
    middle = left.shape[1] // 2
    return left[:, :middle] @ right[:, :middle].T, left[:, middle:] @ right[:, middle:].T


def in_steps(
    data: input_t,
    dtype: torch.dtype,
    operands: Pair | None = None,
    *,
    backwards: bool = False,
    scaled_before: bool = False,
) -> output_t:
    """Block by block of k, the sum rounded to `dtype` after each."""
    left, right = operands or decoded(data)
    blocks = list(zip(left.split(BLOCK, 1), right.split(BLOCK, 1), strict=True))
    total = torch.zeros(len(left), len(right), dtype=dtype, device=left.device)
    for x, y in reversed(blocks) if backwards else blocks:
        total = (total.float() + x @ y.T).to(dtype)
    return total.bfloat16() if scaled_before else scaled(data, total.float())


WRONG = (
    zeros,
    special_taken_for_zero,
    special_in_nvfp4_too,
    special_always_positive,
    special_of_the_other_sign,
    special_is_eight,
    special_for_code_zero,
    special_not_scaled,
    bit_7_is_the_scale_s_sign,
    special_in_b_only,
    swapped_nibbles,
    elements_are_integers,
    subnormal_scales_lost,
    subnormal_scales_with_a_hidden_bit,
    exponent_bias_of_8,
    scales_as_e8m0,
    scales_for_32,
    scales_of_the_next_block,
    scales_of_the_next_row,
    scales_read_as_if_transposed,
    tensor_scale_forgotten,
    tensor_scale_of_a_twice,
    tensor_scale_in_bfloat16,
    values_in_fp8,
    last_block_of_k_lost,
    last_element_of_k_lost,
    first_block_of_k_twice,
    last_row_repeated,
    last_column_lost,
    wrong_where_m_is_no_multiple_of_16,
    bfloat16_accumulation,
    float16_accumulation,
    two_halves_in_bfloat16,
)
HONEST = (
    exact,
    float32,
    bfloat16_operands,
    float16_operands,
    backwards,
    split_k,
    scaled_by_block,
    tensor_scales_first,
    tensor_scales_one_by_one,
    truncated_result,
)
