"""The judge's side of nvfp4_gemm: draws codes and scales, and multiplies what they mean exactly, in float64."""

import functools

import torch
from mxfp4 import pack_fp4
from nvfp4 import BLOCK, FORMATS, SIGN_BIT, SPECIAL_CODE, dequantize_nvfp4
from portable import default_device, normal_table, portable_integers, sample_table
from task import input_t, output_t

REGIMES = ("normal", "shifted", "extremes", "zeros", "sparse", "cancelling")
CHECK_RTOL = CHECK_ATOL = 1e-2
REFRESH_ROWS = 32
# Elements are a standard normal times this, as if a block's scale were made from the largest of 16 of them.
_SPREAD = 3.375
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_LARGEST_SCALE = 0x7E
# Zero, the smallest and the largest subnormal, the smallest normal one and its neighbour: 0, 1, 7, 8 and 9 times 2**-9.
_LOWEST_SCALES = (0x00, 0x01, 0x07, 0x08, 0x09)
_HIGHEST_SCALES = (0x78, 0x7A, 0x7D, 0x7E)
_DECODED_AT_A_TIME = 1 << 26


def generate_input(m: int, n: int, k: int, format: str, seed: int, regime: str = "normal") -> input_t:
    """The tuple (A_q, A_scales, A_scale, B_q, B_scales, B_scale, format) of README.md, on the default device.

    Needs k % 64 == 0 and n % 16 == 0; raises ValueError otherwise, and for an unknown format or regime.
    """
    if k % 64 or n % 16:
        raise ValueError(f"n = {n}, k = {k}: expected n to be a multiple of 16 and k of 64")
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: expected one of {', '.join(FORMATS)}")
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}: expected one of {', '.join(REGIMES)}")
    return *_operand(m, k, format, seed, "A", regime), *_operand(n, k, format, seed, "B", regime), format


def renew_input(data: input_t, m: int, n: int, k: int, format: str, seed: int, regime: str = "normal") -> input_t:
    """The same B (the very tensors), and the A that generate_input makes for this seed."""
    return *_operand(m, k, format, seed, "A", regime), *data[3:]


def refresh(data: input_t, offset: int) -> input_t:
    """B with its rows moved down by 32 * `offset`, wrapping at n: row j is row (j - 32 * offset) % n of the old."""
    shift = REFRESH_ROWS * offset % len(data[3])
    return *data[:3], data[3].roll(shift, 0), data[4].roll(shift, 0), data[5].clone(), data[6]


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [m, n] (or [len(rows), n]): A_scale * B_scale * sum over k of a * b, before the rounding to bfloat16.

    There is one precision, so `precision` changes nothing. A product of two values is a multiple of 2**-20 below 2**23;
    in no regime do both ends meet in one sum, so that float64 holds each sum exactly, in any order. Then come two
    roundings of float64 and one to float32. B is decoded 512 MiB at a time.
    """
    a_q, a_scales, a_scale, b_q, b_scales, b_scale, format = data
    if rows is not None:
        a_q, a_scales = (tensor.index_select(0, rows.to(a_q.device)) for tensor in (a_q, a_scales))
    left = dequantize_nvfp4(a_q, a_scales, format, torch.float64)
    step = max(1, _DECODED_AT_A_TIME // left.shape[1])
    pieces = zip(b_q.split(step), b_scales.split(step), strict=True)
    sums = torch.cat([left @ dequantize_nvfp4(*piece, format, torch.float64).T for piece in pieces], 1)
    return (sums * (a_scale.double() * b_scale.double())).float()


def ref_kernel(data: input_t) -> output_t:
    """bfloat16 [m, n]: the output a submission must give, to one unit in the last place."""
    return expected(data).bfloat16()


def check_implementation(data: input_t, output: output_t) -> tuple[bool, str]:
    """The plain check that GPU MODE's folder layout asks for: every |err| <= 1e-2 + 1e-2 * |reference|.

    Returns (ok, message). The limits of task.yml decide here, not this.
    """
    reference = ref_kernel(data)
    if output.shape != reference.shape or output.dtype != reference.dtype:
        expectation = f"{reference.dtype} {tuple(reference.shape)}"
        return False, f"the output is {output.dtype} {tuple(output.shape)}: expected {expectation}"
    errors = (output.float() - reference.float()).abs()
    accepted = errors <= CHECK_ATOL + CHECK_RTOL * reference.float().abs()
    wrong = int((~accepted).sum())
    if not wrong:
        return True, f"largest error {errors.max().item():.3g}"
    row, column = (~accepted).nonzero()[0].tolist()
    got, wanted = output[row, column].item(), reference[row, column].item()
    return False, f"{wrong} of {errors.numel()} elements differ; the first is [{row}, {column}]: {got} for {wanted}"


def _operand(
    rows: int, k: int, format: str, seed: int, stream: str, regime: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(packed uint8 [rows, k/2], scales uint8 [rows, k/16], tensor scale float32 [1]) of "A" or "B"."""
    device = default_device()
    codes = sample_table(_code_table(format, regime == "shifted"), (rows, k), seed, f"{stream} codes")
    scales = sample_table(_scale_table(), (rows, k // BLOCK), seed, f"{stream} scales")
    if format == "razer":
        scales |= (portable_integers(tuple(scales.shape), 2, seed, f"{stream} signs", device) << 7).to(torch.uint8)
    if regime == "extremes":
        _to_the_ends(scales, seed, stream)
    if regime == "zeros":
        codes = torch.where(_chosen_blocks(scales, seed, stream), codes & 8, codes)
    if regime == "sparse":
        _only_one_special(codes, scales, seed, stream)
    if regime == "cancelling":
        _repeat_first_half(codes, scales, format, negated=stream == "A")
    draw = int(portable_integers((1,), 1 << 10, seed, f"{stream} tensor scale", "cpu"))
    return pack_fp4(codes), scales, torch.tensor([(1024 + draw) / 2**20], device=device)


@functools.cache
def _code_table(format: str, shifted: bool) -> torch.Tensor:
    """uint8 [65536]: equally likely FP4 codes, of 3.375 z to the nearest value (shifted: of 2 z + 1.5).

    NVFP4 keeps the sign of what rounds to zero: code 8 is -0. RaZeR writes all zeros as code 0, and what lies from 4.5
    up to 5.5 as code 8. (Where the block's special value is -5 that leaves a distribution which is not symmetric.)
    """
    z = normal_table().float()
    values = 2 * z + 1.5 if shifted else _SPREAD * z
    magnitudes = torch.bucketize(values.abs(), torch.tensor(_MIDDLES))
    codes = magnitudes | (values < 0).long() << 3
    if format == "razer":
        codes[magnitudes == 0] = 0
        codes[(values >= 4.5) & (values < 5.5)] = SPECIAL_CODE
    return codes.to(torch.uint8)


@functools.cache
def _scale_table() -> torch.Tensor:
    """uint8 [65536]: equally likely E4M3 bytes of 176 + 44 z, from 64 to 448.

    The largest of 16 normal numbers is 1.77 on average, the largest of a large matrix 4.5: 448 * 1.77 / 4.5 is 176.
    """
    values = (176 + 44 * normal_table().float()).clamp(64, 448)
    return values.to(torch.float8_e4m3fn).view(torch.uint8)


def _to_the_ends(scales: torch.Tensor, seed: int, stream: str) -> None:
    """Scale bytes from both ends, in place, but for their sign bits: B's from the lower, A's by rows in turn.

    One row has one kind, since the large ones would hide the others.
    """
    picks = portable_integers(tuple(scales.shape), 20, seed, f"{stream} extremes", scales.device)
    low, high = (torch.tensor(values, device=scales.device) for values in (_LOWEST_SCALES, _HIGHEST_SCALES))
    ends = low[picks % len(low)]
    if stream == "A":
        ends[1::2] = high[picks[1::2] % len(high)]
    scales.copy_(ends.to(torch.uint8) | scales & SIGN_BIT)


def _chosen_blocks(scales: torch.Tensor, seed: int, stream: str) -> torch.Tensor:
    """bool [rows, k]: about half of the blocks."""
    blocks = portable_integers(tuple(scales.shape), 2, seed, f"{stream} zeros", scales.device)
    return (blocks == 1).repeat_interleave(BLOCK, 1)


def _only_one_special(codes: torch.Tensor, scales: torch.Tensor, seed: int, stream: str) -> None:
    """Code 8 once a row, in a block of the largest scale, and nowhere else (code 7 instead), in place."""
    columns = portable_integers((len(codes), 1), codes.shape[1], seed, f"{stream} sparse", codes.device)
    codes.masked_fill_(codes == SPECIAL_CODE, 7)
    codes.scatter_(1, columns, torch.full_like(columns, SPECIAL_CODE, dtype=codes.dtype))
    signs = scales.gather(1, columns // BLOCK) & SIGN_BIT
    scales.scatter_(1, columns // BLOCK, signs | _LARGEST_SCALE)


def _repeat_first_half(codes: torch.Tensor, scales: torch.Tensor, format: str, *, negated: bool) -> None:
    """The first half of k once more (or its negative) in place of the second, but for the last block.

    Code 8 stays what it is: in NVFP4 it is zero, in RaZeR its sign is the block's.
    """
    half = codes.shape[1] // 2
    first, last = codes[:, : half - BLOCK], codes[:, half:-BLOCK]
    last.copy_(torch.where(first & 7 == 0, first, first ^ 8) if negated else first)
    blocks = half // BLOCK
    flip = SIGN_BIT if negated and format == "razer" else 0
    scales[:, blocks:-1] = scales[:, : blocks - 1] ^ flip
