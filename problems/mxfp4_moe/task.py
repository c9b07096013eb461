"""What goes into and comes out of an mxfp4_moe kernel; README.md says what the parts mean."""

from typing import TypeAlias

import torch

# (hidden_states, gate_up_weight, down_weight, gate_up_weight_scale, down_weight_scale,
#  gate_up_weight_shuffled, down_weight_shuffled, gate_up_weight_scale_shuffled, down_weight_scale_shuffled,
#  topk_weights, topk_ids, config)
input_t: TypeAlias = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    dict[str, int],
]

# bf16 [M, d_hidden]
output_t: TypeAlias = torch.Tensor
