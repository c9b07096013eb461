"""The judge's side of fp4_gemm: makes the inputs and computes the one right answer in float32."""

import torch
from mx_layout import shuffle_scale, shuffle_weight, unshuffle_scale
from mxfp4 import BLOCK, dequantize_mxfp4, quantize_mxfp4
from portable import normal_table, plant_dominant, sample_table
from task import input_t, output_t

PUBLISHED_RTOL = PUBLISHED_ATOL = 1e-2
REFRESH_ROWS = 32


def generate_input(m: int, n: int, k: int, seed: int, regime: str = "normal") -> input_t:
    """The tuple (A, B, B_q, B_shuffle, B_scale_sh) described in README.md, on the default device, contiguous.

    Needs k % 64 == 0 and n % 16 == 0 (the tiled layout); raises ValueError otherwise, and for an unknown regime.
    """
    if k % 64 or n % 16:
        raise ValueError(f"n = {n}, k = {k}: expected n to be a multiple of 16 and k of 64")
    activations = _matrix((m, k), seed, "A", regime)
    weights = _matrix((n, k), seed, "B", regime)
    packed, scales = quantize_mxfp4(weights)
    return activations, weights, packed, shuffle_weight(packed), shuffle_scale(scales)


def renew_input(data: input_t, m: int, n: int, k: int, seed: int, regime: str = "normal") -> input_t:
    """The same B in all its forms (the very tensors), and the A that generate_input makes for this seed."""
    return _matrix((m, k), seed, "A", regime), *data[1:]


def refresh(data: input_t, offset: int) -> input_t:
    """B with its rows moved down by 32 * `offset`, wrapping at n, in all four forms; A is the same tensor.

    Row j of the new B is row (j - 32 * offset) % n of the old. Runs of 16 rows are contiguous in B_shuffle, so there
    the move is the same; the scales, a hundredth of the bytes, go through their plain layout.
    """
    activations, weights, packed, shuffled, shuffled_scales = data
    rows, depth = weights.shape
    shift = REFRESH_ROWS * offset % rows
    scales = unshuffle_scale(shuffled_scales, rows, depth // BLOCK).roll(shift, 0)
    moved = (tensor.roll(shift, 0) for tensor in (weights, packed, shuffled))
    return activations, *moved, shuffle_scale(scales)


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [m, n] (or [len(rows), n]): sum over k of fp4(A) * fp4(B), before the rounding to bfloat16.

    There is one precision, so `precision` changes nothing. For the problem's shapes on normal inputs every product and
    partial sum is an integer multiple of one quantum and stays below 2**24 of them, so float32 is exact in any order.
    That holds only where float32 is meant: `torch.backends.cuda.matmul.allow_tf32` must be False, torch's default.
    """
    activations, weights, packed, _, shuffled_scales = data
    if rows is not None:
        activations = activations.index_select(0, rows.to(activations.device))
    row_count, depth = weights.shape
    left = dequantize_mxfp4(*quantize_mxfp4(activations))
    right = dequantize_mxfp4(packed, unshuffle_scale(shuffled_scales, row_count, depth // BLOCK))
    return left @ right.T


def ref_kernel(data: input_t) -> output_t:
    """bfloat16 [m, n]: the output a submission must give, to one unit in the last place."""
    return expected(data).bfloat16()


def check_implementation(data: input_t, output: output_t) -> tuple[bool, str]:
    """The competition's own check: every element within 1e-2 + 1e-2 * |reference|. Returns (ok, message)."""
    reference = ref_kernel(data)
    if output.shape != reference.shape or output.dtype != reference.dtype:
        expectation = f"{reference.dtype} {tuple(reference.shape)}"
        return False, f"the output is {output.dtype} {tuple(output.shape)}: expected {expectation}"
    errors = (output.float() - reference.float()).abs()
    accepted = errors <= PUBLISHED_ATOL + PUBLISHED_RTOL * reference.float().abs()
    wrong = int((~accepted).sum())
    if not wrong:
        return True, f"largest error {errors.max().item():.3g}"
    row, column = (~accepted).nonzero()[0].tolist()
    got, wanted = output[row, column].item(), reference[row, column].item()
    return False, f"{wrong} of {errors.numel()} elements differ; the first is [{row}, {column}]: {got} for {wanted}"


def _matrix(shape: tuple[int, int], seed: int, stream: str, regime: str) -> torch.Tensor:
    matrix = sample_table(normal_table(regime), shape, seed, stream)
    return plant_dominant(matrix, seed, stream) if regime == "dominant" else matrix
