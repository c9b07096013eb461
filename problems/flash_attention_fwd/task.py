"""What goes into and comes out of a flash_attention_fwd kernel; README.md says what the tensors mean."""

from typing import TypeAlias

import torch

# (q bf16 [T, heads_q, d], k bf16 [T, heads_kv, d], v bf16 [T, heads_kv, d], cu_seqlens int32 [batch + 1],
#  max_seqlen int, softmax_scale float)
input_t: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, float]

# bf16 [T, heads_q, d]
output_t: TypeAlias = torch.Tensor
