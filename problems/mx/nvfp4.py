"""What the bytes of NVFP4 and of its variant RaZeR mean, in plain torch: FP4 (E2M1) elements, an E4M3 scale per 16.

NVFP4: the scale byte's sign bit is 0, and the FP4 code 8 is a second zero. RaZeR (arXiv 2501.04052) gives both a use:
code 8 is +5 in a block whose scale byte has bit 7 clear, and -5 where it is set. problems/nvfp4_gemm/README.md says
what of that is the paper's.
"""

import functools

import torch
from mxfp4 import unpack_fp4

BLOCK = 16
FORMATS = ("nvfp4", "razer")
SPECIAL = 5.0
SPECIAL_CODE = 8
SIGN_BIT = 0x80
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantize_nvfp4(
    packed: torch.Tensor, scales: torch.Tensor, format: str = "nvfp4", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """uint8 (packed [..., N/2], scales [..., N/16]) -> the values [..., N] in `dtype`, without the tensor's own scale.

    Exact in float32, bfloat16 and float16 alike: an element has at most three significant bits, a scale four, and a
    product lies between 2**-10 and 2688. Raises ValueError for an unknown format.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: expected one of {', '.join(FORMATS)}")
    codes = unpack_fp4(packed).unflatten(-1, (-1, BLOCK)).to(torch.int32)
    # One table for each kind of block: 16 values where the special one is +5, then 16 where it is -5.
    values = _element_values(format, dtype, packed.device)
    elements = values[codes + (scales >> 7).to(torch.int32).unsqueeze(-1) * 16]
    return elements.mul_(e4m3_to_float(scales).to(dtype).unsqueeze(-1)).flatten(-2)


def e4m3_to_float(scales: torch.Tensor) -> torch.Tensor:
    """Scale bytes -> float32 of the same shape, by the lower seven bits: 4 of exponent (bias 7), 3 of mantissa.

    0x7F is NaN, 0x7E is 448; below 0x08 they are subnormal, multiples of 2**-9.
    """
    return _scale_values(scales.device)[(scales & 0x7F).to(torch.int32)]


# Tables are kept, one per device: sending them to a GPU anew would make every call wait for the device.
@functools.cache
def _element_values(format: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[32]: the value of each FP4 code, in blocks whose scale byte has bit 7 clear, then in those where it is set."""
    special = SPECIAL if format == "razer" else 0.0
    positive, negative = list(_MAGNITUDES), [-magnitude for magnitude in _MAGNITUDES[1:]]
    values = [*positive, special, *negative, *positive, -special, *negative]
    return torch.tensor(values, dtype=dtype).to(device)


@functools.cache
def _scale_values(device: torch.device) -> torch.Tensor:
    """[128]: the float32 value of each scale byte without its sign bit."""
    return torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)
