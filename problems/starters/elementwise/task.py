"""What goes into and comes out of a kernel: task.yml says what it means."""

import torch

DTYPES = {"x": torch.bfloat16, "weight": torch.bfloat16, "y": torch.bfloat16}
EPSILON = 1e-5

# (x [tokens, hidden], weight [hidden])
input_t = tuple[torch.Tensor, torch.Tensor]

# y [tokens, hidden]
output_t = torch.Tensor
