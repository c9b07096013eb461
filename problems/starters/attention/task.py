"""What goes into and comes out of a kernel: task.yml says what it means."""

import torch

DTYPES = {"query": torch.bfloat16, "key": torch.bfloat16, "value": torch.bfloat16, "result": torch.bfloat16}

# (query [heads, queries, width], key [heads, keys, width], value [heads, keys, width])
input_t = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# result [heads, queries, width]
output_t = torch.Tensor
