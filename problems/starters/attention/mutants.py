"""Kernels as people write them, wrong and right, for `podium validate`: the tolerance must tell them apart."""

import torch
from task import DTYPES, input_t, output_t


def zeros(data: input_t) -> output_t:
    """Writes zeros."""
    return torch.zeros_like(exact(data))


def scores_never_computed(data: input_t) -> output_t:
    """Gives all places of the cache the same share, whatever the scores: nearly right where these differ little."""
    return combined(torch.softmax(torch.zeros_like(scores_of(data)), dim=-1), data)


def scores_not_divided(data: input_t) -> output_t:
    """Forgets to divide by the root of the width."""
    return combined(torch.softmax(scores_of(data) * data[0].shape[-1] ** 0.5, dim=-1), data)


def last_place_lost(data: input_t) -> output_t:
    """Stops one place before the end of the cache."""
    return exact((data[0], data[1][:, :-1], data[2][:, :-1]))


def second_half_lost(data: input_t) -> output_t:
    """Goes along half of the cache only."""
    half = data[1].shape[1] // 2
    return exact((data[0], data[1][:, :half], data[2][:, :half]))


def padding_counted(data: input_t) -> output_t:
    """Counts the zeros beyond the end of the cache, up to a multiple of 32 and 32 more, in the softmax's sum."""
    scores = scores_of(data)
    padded = torch.nn.functional.pad(scores, (0, 64 - scores.shape[-1] % 32))
    return combined(torch.softmax(padded, dim=-1)[..., : scores.shape[-1]], data)


def softmax_without_maximum(data: input_t) -> output_t:
    """Does not subtract the largest score before exp."""
    shares = scores_of(data).exp()
    return combined(shares / shares.sum(dim=-1, keepdim=True), data)


def cache_of_the_first_head(data: input_t) -> output_t | None:
    """Reads the first head's cache in every head."""
    return exact((data[0], *(part[:1].expand_as(part) for part in data[1:]))) if len(data[0]) > 1 else None


def last_column_lost(data: input_t) -> output_t:
    """Leaves the last column at zero."""
    output = exact(data)
    output[..., -1] = 0
    return output


# --- right ones ----------------------------------------------------------------------------------------------


def exact(data: input_t) -> output_t:
    """Computes in float32."""
    return combined(torch.softmax(scores_of(data), dim=-1), data)


def float64(data: input_t) -> output_t:
    """Computes in float64."""
    scores = data[0].double() @ data[1].double().mT / data[0].shape[-1] ** 0.5
    return (torch.softmax(scores, dim=-1) @ data[2].double()).to(DTYPES["result"])


def shares_rounded(data: input_t) -> output_t:
    """Rounds the shares to the inputs' dtype, and divides by their sum at the end."""
    scores = scores_of(data)
    shares = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    sums = shares.to(data[2].dtype).float() @ data[2].float()
    return (sums / shares.sum(dim=-1, keepdim=True)).to(DTYPES["result"])


def in_two_parts(data: input_t) -> output_t:
    """Attends to both halves of the cache on their own, and puts the parts together by their sums."""
    parts = zip(scores_of(data).tensor_split(2, dim=-1), data[2].float().tensor_split(2, dim=1), strict=True)
    found = [(scores.logsumexp(dim=-1, keepdim=True), torch.softmax(scores, -1) @ part) for scores, part in parts]
    shares = torch.softmax(torch.cat([size for size, _ in found], dim=-1), dim=-1)
    return (found[0][1] * shares[..., :1] + found[1][1] * shares[..., 1:]).to(DTYPES["result"])


# --- what they are made of -----------------------------------------------------------------------------------


def scores_of(data: input_t) -> torch.Tensor:
    """float32 [heads, queries, keys]."""
    return data[0].float() @ data[1].float().mT / data[0].shape[-1] ** 0.5


def combined(shares: torch.Tensor, data: input_t) -> output_t:
    """Sums over the cache by these shares, in the output's dtype."""
    return (shares @ data[2].float()).to(DTYPES["result"])


WRONG = (
    zeros,
    scores_never_computed,
    scores_not_divided,
    last_place_lost,
    second_half_lost,
    padding_counted,
    softmax_without_maximum,
    cache_of_the_first_head,
    last_column_lost,
)
HONEST = (exact, float64, shares_rounded, in_two_parts)
