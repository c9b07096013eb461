"""What goes into and comes out of an fp4_gemm kernel; README.md says what the tensors mean."""

from typing import TypeAlias

import torch

# (A bf16 [m, k], B bf16 [n, k], B_q uint8 [n, k/2], B_shuffle uint8 [n, k/2], B_scale_sh uint8 [pad256(n), pad8(k/32)])
input_t: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

# C bf16 [m, n]
output_t: TypeAlias = torch.Tensor
