"""What goes into and comes out of an nvfp4_gemm kernel; README.md says what the tensors mean."""

from typing import TypeAlias

import torch

# (A_q uint8 [m, k/2], A_scales uint8 [m, k/16], A_scale float32 [1],
#  B_q uint8 [n, k/2], B_scales uint8 [n, k/16], B_scale float32 [1], format "nvfp4" or "razer")
input_t: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, str]

# C bf16 [m, n]
output_t: TypeAlias = torch.Tensor
