#!POPCORN leaderboard mxfp4_moe
"""The plain-torch baseline that other kernels are compared with: every expert on every token, in two products.

That is many times the arithmetic that the routing asks for, but the GPU never has to tell the host how many tokens an
expert has, and what costs most is to unpack the weights anyway.
"""

import torch
from mxfp4 import dequantize_mxfp4, quantize_mxfp4
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 [M, D]. Never waits for the device."""
    hidden, gate_up, down, gate_up_scale, down_scale, *_tiled, topk_weights, topk_ids, _config = data
    tokens, experts = len(hidden), len(gate_up)

    w1 = unpacked(gate_up, gate_up_scale)  # [E, 2I, D]: an expert's gate rows, then its up rows
    gate, up = (through_mxfp4(hidden) @ w1.flatten(0, 1).T).view(tokens, experts, -1).chunk(2, dim=-1)
    del w1
    h = through_mxfp4((torch.nn.functional.silu(gate) * up).bfloat16())  # [M, E, I]

    # 0 for the experts that a token does not go to. Weighting before the second product lets that sum over experts too.
    weights = torch.zeros(tokens, experts, device=hidden.device).scatter_add_(1, topk_ids.long(), topk_weights)
    w2 = unpacked(down, down_scale)  # [E, D, I]
    return ((h * weights.unsqueeze(-1)).flatten(1) @ w2.transpose(1, 2).flatten(0, 1)).bfloat16()


def unpacked(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [E, N, K] from bytes [E, N, K/2] and scales [E * N, K/32]."""
    packed = packed.view(torch.uint8)
    return dequantize_mxfp4(packed, scales.view(torch.uint8).view(*packed.shape[:2], -1))


def through_mxfp4(x: torch.Tensor) -> torch.Tensor:
    """What is left of x after quantising it, in float32."""
    return dequantize_mxfp4(*quantize_mxfp4(x))
