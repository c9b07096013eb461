#!POPCORN leaderboard mxfp4_moe
"""The plain-torch baseline that other kernels are compared with: sorted by expert, one expert at a time."""

import torch
from mxfp4 import dequantize_mxfp4, quantize_mxfp4
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 [M, D]. Waits for the device once, to learn how many tokens each expert has."""
    hidden, gate_up, down, gate_up_scale, down_scale, *_tiled, topk_weights, topk_ids, _config = data
    gate_up, down, gate_up_scale, down_scale = (
        tensor.view(torch.uint8) for tensor in (gate_up, down, gate_up_scale, down_scale)
    )
    # A slot is one token at one of its experts; sorted by expert, each expert's slots are a run of rows.
    slots = topk_ids.flatten().argsort(stable=True)
    counts = topk_ids.flatten().bincount(minlength=len(gate_up)).tolist()
    x = through_mxfp4(hidden)[slots // topk_ids.shape[1]]
    gate, up = grouped_matmul(x, counts, gate_up, gate_up_scale).chunk(2, dim=1)
    h = (torch.nn.functional.silu(gate) * up).bfloat16()
    y = grouped_matmul(through_mxfp4(h), counts, down, down_scale)
    # Back to the order of the tokens, so that each adds its experts' results in one order, run after run.
    by_slot = torch.empty_like(y)
    by_slot[slots] = y
    return (by_slot.view(*topk_ids.shape, -1) * topk_weights.unsqueeze(-1)).sum(dim=1).bfloat16()


def grouped_matmul(x: torch.Tensor, counts: list[int], packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 x [S, K], the rows of expert 0 first, times each row's own weights (packed [E, N, K/2]): [S, N].

    An expert without rows is skipped: unpacking its weights would be most of the time.
    """
    scales = scales.view(*packed.shape[:2], -1)
    products = [
        rows @ dequantize_mxfp4(packed[expert], scales[expert]).T
        for expert, rows in enumerate(x.split(counts))
        if len(rows)
    ]
    return torch.cat(products)


def through_mxfp4(x: torch.Tensor) -> torch.Tensor:
    """What is left of x after quantising it, in float32."""
    return dequantize_mxfp4(*quantize_mxfp4(x))
