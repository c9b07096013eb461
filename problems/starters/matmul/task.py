"""What goes into and comes out of a kernel: task.yml says what it means."""

import torch

DTYPES = {"x": torch.bfloat16, "weight": torch.bfloat16, "y": torch.bfloat16}

# (x [m, k], weight [k, n])
input_t = tuple[torch.Tensor, torch.Tensor]

# y [m, n]
output_t = torch.Tensor
