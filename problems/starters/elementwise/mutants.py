"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart."""

import torch
from task import DTYPES, EPSILON, input_t, output_t


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(exact(data))


def weight_forgotten(data: input_t) -> output_t:
    """Does not multiply by the weight."""
    return normalised(data[0].float()).to(DTYPES["y"])


def mean_subtracted(data: input_t) -> output_t:
    """Subtracts the mean first, as a layer norm does."""
    x = data[0].float()
    return finished(x - x.mean(dim=1, keepdim=True), data)


def epsilon_forgotten(data: input_t) -> output_t:
    """Divides by the root mean square alone."""
    x = data[0].float()
    return rounded(x / x.square().mean(dim=1, keepdim=True).sqrt(), data)


def first_half_measured(data: input_t) -> output_t:
    """Takes the root mean square of the first half of a row for that of the row."""
    x = data[0].float()
    return rounded(x * scale_of(x[:, : x.shape[1] // 2]), data)


def last_column_lost(data: input_t) -> output_t:
    """Leaves the last column at zero."""
    output = exact(data)
    output[:, -1] = 0
    return output


# --- right ones ----------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Computes in float32."""
    return finished(data[0].float(), data)


def float64(data: input_t) -> output_t:
    """Computes in float64."""
    return finished(data[0].double(), data)


def rounded_twice(data: input_t) -> output_t:
    """Rounds to the output's dtype before it multiplies by the weight, too."""
    return rounded(normalised(data[0].float()).to(DTYPES["y"]).float(), data)


def summed_in_two_halves(data: input_t) -> output_t:
    """Adds the squares of both halves of a row on their own."""
    x = data[0].float()
    squares = sum(half.square().sum(dim=1, keepdim=True) for half in x.tensor_split(2, dim=1))
    return rounded(x * torch.rsqrt(squares / x.shape[1] + EPSILON), data)


# --- what they are made of -----------------------------------------------------------------------------------


def scale_of(x: torch.Tensor) -> torch.Tensor:
    """[tokens, 1]: one over the root mean square of each row."""
    return torch.rsqrt(x.square().mean(dim=1, keepdim=True) + EPSILON)


def normalised(x: torch.Tensor) -> torch.Tensor:
    """The rows, each divided by its root mean square."""
    return x * scale_of(x)


def rounded(unweighted: torch.Tensor, data: input_t) -> output_t:
    """Multiplied by the weight, in the output's dtype."""
    return (unweighted * data[1].to(unweighted.dtype)).to(DTYPES["y"])


def finished(x: torch.Tensor, data: input_t) -> output_t:
    """The whole norm of these rows."""
    return rounded(normalised(x), data)


WRONG = (zeros, weight_forgotten, mean_subtracted, epsilon_forgotten, first_half_measured, last_column_lost)
HONEST = (exact, float64, rounded_twice, summed_in_two_halves)
