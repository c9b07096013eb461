"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart."""

import torch
from task import DTYPES, input_t, output_t

BLOCK = 32


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(exact(data))


def last_element_of_the_sum_lost(data: input_t) -> output_t:
    """Stops one element before the end of the sum."""
    return product(data[0][:, :-1].float(), data[1][:-1].float())


def rows_beyond_the_last_tile_lost(data: input_t) -> output_t:
    """Leaves out the rows beyond the last whole tile of 16."""
    output = exact(data)
    output[len(output) // 16 * 16 :] = 0
    return output


def last_column_lost(data: input_t) -> output_t:
    """Leaves the last column at zero."""
    output = exact(data)
    output[:, -1] = 0
    return output


def weight_transposed(data: input_t) -> output_t | None:
    """Reads the weight in the other order, which has the right shape where it is square."""
    weight = data[1].float()
    return product(data[0].float(), weight.T) if weight.shape[0] == weight.shape[1] else None


def sums_in_few_bits(data: input_t) -> output_t | None:
    """Keeps the sum in the inputs' dtype from one block of 32 to the next."""
    return None if data[0].dtype == torch.float32 else in_steps(data, data[0].dtype)


def tf32(data: input_t) -> output_t | None:
    """Multiplies as tensor cores do float32 if they are let: with ten bits of each factor's fraction."""
    if data[0].dtype != torch.float32:
        return None  # narrower dtypes lose nothing there
    return product(*((part.view(torch.int32) & -0x2000).view(torch.float32) for part in data))


# --- right ones ----------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Adds in float32."""
    return product(data[0].float(), data[1].float())


def float64(data: input_t) -> output_t:
    """Adds in float64."""
    return product(data[0].double(), data[1].double())


def backwards(data: input_t) -> output_t:
    """Adds block by block from the end of the sum, in float32."""
    return in_steps((data[0].flip(1), data[1].flip(0)), torch.float32)


def split_in_two(data: input_t) -> output_t:
    """Adds both halves of the sum on their own, in float32."""
    lefts, rights = data[0].float().tensor_split(2, dim=1), data[1].float().tensor_split(2, dim=0)
    return (lefts[0] @ rights[0] + lefts[1] @ rights[1]).to(DTYPES["y"])


# --- what they are made of -----------------------------------------------------------------------------------


def product(left: torch.Tensor, right: torch.Tensor) -> output_t:
    """Of the two, in the output's dtype."""
    return (left @ right).to(DTYPES["y"])


def in_steps(data: input_t, dtype: torch.dtype) -> output_t:
    """Block by block of the sum, rounded to `dtype` after each."""
    total = torch.zeros(len(data[0]), data[1].shape[1], dtype=dtype, device=data[0].device)
    for left, right in zip(data[0].float().split(BLOCK, 1), data[1].float().split(BLOCK, 0), strict=True):
        total = (total.float() + left @ right).to(dtype)
    return total.to(DTYPES["y"])


WRONG = (
    zeros,
    last_element_of_the_sum_lost,
    rows_beyond_the_last_tile_lost,
    last_column_lost,
    weight_transposed,
    sums_in_few_bits,
    tf32,
)
HONEST = (exact, float64, backwards, split_in_two)
