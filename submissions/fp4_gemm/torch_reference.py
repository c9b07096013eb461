#!POPCORN leaderboard fp4_gemm
"""The plain-torch baseline that other kernels are compared with: unpack both sides to float32 and multiply."""

import torch
from mx_layout import unshuffle_scale
from mxfp4 import BLOCK, dequantize_mxfp4, quantize_mxfp4
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 C [m, n]; nothing here waits for the device."""
    a, _b, b_q, _b_shuffle, b_scale_sh = data
    b_q = b_q.view(torch.uint8)
    n, k = len(b_q), a.shape[1]
    left = dequantize_mxfp4(*quantize_mxfp4(a))
    right = dequantize_mxfp4(b_q, unshuffle_scale(b_scale_sh.view(torch.uint8), n, k // BLOCK))
    # Float32 holds the sum exactly. A bfloat16 product would be faster and round once too, but torch lets it
    # add partial sums in bfloat16 (allow_bf16_reduced_precision_reduction).
    return (left @ right.T).bfloat16()
