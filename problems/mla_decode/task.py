"""What goes into and comes out of an mla_decode kernel; README.md says what the tensors mean."""

from typing import Any, TypeAlias

import torch

# (q bf16 [bs, 16, 576],
#  kv_data {"bf16": bf16 [T, 1, 576],
#           "fp8": (float8_e4m3fn [T, 1, 576], float32 [1]),
#           "mxfp4": (uint8 [T, 1, 288], uint8 [T, 18])},
#  qo_indptr int32 [bs + 1], kv_indptr int32 [bs + 1], config)
input_t: TypeAlias = tuple[torch.Tensor, dict[str, Any], torch.Tensor, torch.Tensor, dict[str, Any]]

# bf16 [bs, 16, 512]
output_t: TypeAlias = torch.Tensor
