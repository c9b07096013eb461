#!POPCORN leaderboard mixing
import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, weights = data
    return (x.float() * weights[..., None]).sum(1).to(torch.bfloat16)
