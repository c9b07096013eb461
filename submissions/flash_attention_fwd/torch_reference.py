#!POPCORN leaderboard flash_attention_fwd
"""The plain torch baseline: pad every sequence to the longest and call torch's own fused attention."""

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 [T, heads_q, d]. Never waits for the device: shapes follow from shapes alone."""
    q, k, v, cu_seqlens, longest, scale = data
    begins, ends = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    # Padding comes after a sequence's own tokens, where causality hides it: any token will do.
    tokens = (begins + torch.arange(longest, device=q.device)).clamp(max=len(q) - 1)
    padded = (tensor[tokens].transpose(1, 2) for tensor in (q, k, v))  # [batch, heads, longest, d]
    grouped = q.shape[1] != k.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(*padded, is_causal=True, scale=scale, enable_gqa=grouped)

    every = torch.arange(len(q), device=q.device, dtype=torch.int32)
    sequences = torch.searchsorted(ends.flatten(), every, right=True)
    return out.transpose(1, 2)[sequences, every - begins.flatten()[sequences]].contiguous()
