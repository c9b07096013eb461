#!POPCORN leaderboard flash_attention_fwd
"""A starting point: right, but it goes sequence by sequence in float32. Replace it with a kernel of your own."""

from itertools import pairwise

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 [T, heads_q, d] from the tuple that README.md describes."""
    q, k, v, cu_seqlens, _max_seqlen, scale = data
    group = q.shape[1] // k.shape[1]  # query heads that share a key and value head
    bounds = cu_seqlens.tolist()  # waits for the GPU; a fast kernel reads them on the device
    outputs = []
    for begin, end in pairwise(bounds):
        queries = q[begin:end].float().transpose(0, 1)  # [heads_q, length, d]
        keys, values = (
            tensor[begin:end].float().transpose(0, 1).repeat_interleave(group, 0) for tensor in (k, v)
        )  # fmt: skip
        scores = queries @ keys.mT * scale
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        outputs.append((weights @ values).transpose(0, 1))
    return torch.cat(outputs).to(torch.bfloat16)
