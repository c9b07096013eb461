"""The exact numerics of MXFP4 (FP4 E2M1 elements, one E8M0 scale per 32) in plain torch, with no vendor library.

Every shift of scale is done on the bits of a float32, never with exp2 or log2, whose last bit differs between
devices: the CPU and any GPU give the same bytes for every block whose scale byte is 1..253. (Blocks with byte 0 or
254 need subnormal arithmetic, which torch honours unless `torch.set_flush_denormal` says otherwise; our input
generators never make them.)
"""

import functools
from collections.abc import Callable

import torch

BLOCK = 32
FP8_MAX = 448.0
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MANTISSA = 0x7FFFFF
_HALF = 0x400000
_CHUNK_BLOCKS = {"cpu": 1 << 12, "cuda": 1 << 19}


def quantize_mxfp4(
    x: torch.Tensor, scale_rule: str = "even", rounding: str = "nearest-even"
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., N] (bfloat16, float16 or float32, N % 32 == 0) -> (packed uint8 [..., N/2], scales uint8 [..., N/32]).

    A scale byte b stands for 2**(b - 127); element 2j is the low nibble of byte j. `scale_rule` says how b follows
    from the block's largest magnitude (amax): "even" is aiter's dynamic_mxfp4_quant and torchao's EVEN; "round15" is
    aiter's per_1x32_f4_quant until June 2026; "rceil" is torchao's and NVIDIA's RCEIL; "floor" is OCP MX v1.0 section
    6.3; "ceil" is torchao's CEIL. `rounding` of the elements: "nearest-even", or "half-away" (aiter before its pull
    request 975). Magnitudes above 6 saturate; the sign of zero is kept. The result for infinities and NaN is
    unspecified. Works in chunks: beyond the result it needs about 20 bytes for each of at most 16 Mi elements. Raises
    ValueError for an unknown rule or a ragged N.
    """
    if x.shape[-1] % BLOCK:
        raise ValueError(f"the last dimension is {x.shape[-1]}: expected a multiple of {BLOCK}")
    if scale_rule not in _SCALE_RULES:
        raise ValueError(f"unknown scale rule {scale_rule!r}: expected one of {', '.join(_SCALE_RULES)}")
    if rounding not in ("nearest-even", "half-away"):
        raise ValueError(f"unknown rounding {rounding!r}: expected nearest-even or half-away")
    packed = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((*x.shape[:-1], x.shape[-1] // BLOCK), dtype=torch.uint8, device=x.device)
    pieces = (x.reshape(-1, BLOCK), packed.view(-1, BLOCK // 2), scales.view(-1))
    chunk = _CHUNK_BLOCKS.get(x.device.type, _CHUNK_BLOCKS["cpu"])
    for blocks, packed_out, scales_out in zip(*(piece.split(chunk) for piece in pieces), strict=True):
        values = blocks.float()
        amax_bits = values.abs().amax(dim=-1).view(torch.int32)
        exponents = _SCALE_RULES[scale_rule](amax_bits)
        scales_out.copy_(exponents)
        packed_out.copy_(pack_fp4(_element_codes(values, exponents, half_away=rounding == "half-away")))
    return packed, scales


def dequantize_mxfp4(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(packed [..., N/2], scales [..., N/32]), bytes of any one-byte dtype -> the exact values [..., N] in `dtype`.

    Exact in float32 and, for scales within its range, in bfloat16: an FP4 value has two significant bits.
    """
    packed, scales = packed.view(torch.uint8), scales.view(torch.uint8)
    pairs = _value_pairs(dtype, packed.device)
    decoded = pairs.index_select(0, packed.reshape(-1).to(torch.int32)).view(*scales.shape, BLOCK)
    decoded.mul_(e8m0_to_float(scales).to(dtype).unsqueeze(-1))
    return decoded.view(*packed.shape[:-1], packed.shape[-1] * 2)


def pack_fp4(codes: torch.Tensor) -> torch.Tensor:
    """FP4 codes 0..15 [..., N] (any integer dtype) -> uint8 bytes [..., N/2]; the even element is the low nibble."""
    codes = codes.to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_fp4(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of pack_fp4: bytes [..., N/2] -> uint8 codes 0..15 [..., N]; bit 3 of a code is the sign."""
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def e8m0_to_float(scales: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes b -> float32 2**(b - 127), of the same shape; byte 0 is the subnormal 2**-127 and byte 255 is NaN."""
    indices = scales.view(torch.uint8).reshape(-1).to(torch.int32)
    return _scale_values(scales.device).index_select(0, indices).view(scales.shape)


def quantize_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x bfloat16 -> (float8_e4m3fn of the same shape, float32 scalar scale), one scale for the whole tensor.

    As the competition's MLA problem does it, in bfloat16 steps: scale = bf16(amax / 448) and elements
    fp8(clamp(bf16(x / scale), +-448)). An all-zero tensor gets the scale of amax = 1e-12. The divisions are done
    between float32 tensors, which every device rounds correctly; dividing by a Python number would multiply by a
    reciprocal on a GPU.
    """
    smallest, largest = torch.aminmax(x)
    amax = torch.maximum(-smallest, largest).clamp(min=1e-12).float()
    scale = (amax / torch.full_like(amax, FP8_MAX)).bfloat16().float()
    quantized = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    chunk = BLOCK * _CHUNK_BLOCKS.get(x.device.type, _CHUNK_BLOCKS["cpu"])
    for values, out in zip(x.reshape(-1).split(chunk), quantized.view(-1).split(chunk), strict=True):
        out.copy_((values.float() / scale).bfloat16().clamp_(-FP8_MAX, FP8_MAX))
    return quantized, scale


# Tables are kept, one per device: sending them to a GPU anew would make every call wait for the device.
@functools.cache
def _value_pairs(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[256, 2]: the two values of each packed byte."""
    values = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=dtype)
    return torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=-1).to(device)


@functools.cache
def _scale_values(device: torch.device) -> torch.Tensor:
    """[256]: the float32 value of each scale byte."""
    bits = torch.arange(256, dtype=torch.int32) << 23
    bits[0] = _HALF
    bits[255] = (255 << 23) | _HALF
    return bits.view(torch.float32).to(device)


def _element_codes(values: torch.Tensor, exponents: torch.Tensor, *, half_away: bool) -> torch.Tensor:
    """float32 blocks [n, 32] and int32 scale bytes [n] -> int32 FP4 codes [n, 32].

    With p the power of two below the magnitude (at least 1: below it FP4 is subnormal), FP4 is a grid of spacing p/2.
    Adding p * 2**22, whose unit in the last place is p/2, makes the adder round to that grid, ties to even, and
    leaves the grid index in the low bits of the sum and 2 * log2(p) above bit 22: together they are the code.
    """
    codes = (values.view(torch.int32) >> 28) & 8
    magnitudes = values.mul(_reciprocal_scale(exponents).unsqueeze(-1)).abs_().clamp_(max=6.0)
    bits = magnitudes.view(torch.int32)
    if half_away:
        # Sticky bits off, then a hair upwards: a tie now lies above the midpoint, anything less stays below it.
        bits.bitwise_and_(0x7FE00000).add_(1)
    powers = (bits & 0x7F800000).view(torch.float32).clamp_(min=1.0)
    sums = magnitudes.add_(powers, alpha=2.0**22).view(torch.int32)
    grid_index = (sums & 7).sub_(2 * (127 + 22))
    return codes.bitwise_or_(grid_index.add_(sums.bitwise_right_shift_(22)))


def _reciprocal_scale(exponents: torch.Tensor) -> torch.Tensor:
    """2**(127 - b) as float32 for int32 bytes b; subnormal for b = 254 and 255."""
    bits = (254 - exponents) << 23
    bits.masked_fill_(exponents == 254, _HALF).masked_fill_(exponents == 255, _HALF >> 1)
    return bits.view(torch.float32)


def _even_scale(amax_bits: torch.Tensor) -> torch.Tensor:
    """Up by one exponent from significand 1.75 on, then two down: amax / scale in [3.5, 7), saturating above 6."""
    exponents = (amax_bits + 0x200000) >> 23
    return (exponents - 2).clamp_(min=0).masked_fill_(exponents == 255, 254)


def _round15_scale(amax_bits: torch.Tensor) -> torch.Tensor:
    """Up by one exponent from significand 1.5 on, then two down: amax / scale in [3, 6).

    The exception is aiter's: a quarter of amax that is exactly 2**-127 is not bumped."""
    quarter = (amax_bits.view(torch.float32) * 0.25).view(torch.int32)
    exponents, mantissas = quarter >> 23, quarter & _MANTISSA
    bump = (mantissas >= _HALF) & (exponents != 255) & (quarter != _HALF)
    return exponents + bump


def _rceil_scale(amax_bits: torch.Tensor) -> torch.Tensor:
    """The smallest power of two with amax / scale <= 6, decided on bits: devices differ in how they divide by 6.

    fp32(amax / 6) is a power of two exactly when amax's significand is 1.5; where it is a nonzero subnormal, b is 1.
    """
    exponents = (amax_bits >> 23) - 2 + ((amax_bits & _MANTISSA) > _HALF).int()
    return exponents.clamp_(min=1).masked_fill_(amax_bits <= 3, 0)


def _floor_scale(amax_bits: torch.Tensor) -> torch.Tensor:
    """amax's exponent minus two: amax / scale in [4, 8)."""
    return ((amax_bits >> 23) - 2).clamp_(min=0)


def _ceil_scale(amax_bits: torch.Tensor) -> torch.Tensor:
    """amax's exponent, rounded up to the next power of two, minus two: amax / scale in (2, 4]."""
    return ((amax_bits + _MANTISSA) >> 23).sub_(2).clamp_(min=0)


_SCALE_RULES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "even": _even_scale,
    "round15": _round15_scale,
    "rceil": _rceil_scale,
    "floor": _floor_scale,
    "ceil": _ceil_scale,
}
