#!POPCORN leaderboard mla_decode
"""A starting point: right, but it goes sequence by sequence in float32. Replace it with a kernel of your own."""

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    """bfloat16 [batch, 16, 512] from the tuple that README.md describes."""
    q, kv_data, _qo_indptr, kv_indptr, config = data

    # The cache comes three times: bfloat16, fp8 and MXFP4. A fast kernel reads a small one.
    cache = kv_data["bf16"].squeeze(1)
    bounds = kv_indptr.tolist()  # waits for the GPU; a fast kernel reads the pointers on the device
    outputs = []
    for query, begin, end in zip(q, bounds[:-1], bounds[1:], strict=True):
        keys = cache[begin:end].float()
        # All 576 numbers of a token are its key, the first 512 also its value; 16 heads share them.
        scores = torch.matmul(query.float(), keys.T) * config["sm_scale"]
        outputs.append(torch.matmul(scores.softmax(dim=-1), keys[:, : config["v_head_dim"]]))
    return torch.stack(outputs).to(torch.bfloat16)
