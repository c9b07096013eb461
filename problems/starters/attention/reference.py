"""The judge's side: makes the inputs and computes the answer, in float64."""

import torch
from task import DTYPES, input_t, output_t


def generate_input(heads: int, queries: int, keys: int, width: int, seed: int, regime: str = "normal") -> input_t:
    """(query, key, value) of a case, made on the GPU where there is one: the same seed gives the same contents."""
    return (
        made((heads, queries, width), "query", seed, regime),
        made((heads, keys, width), "key", seed, regime),
        made((heads, keys, width), "value", seed, regime),
    )


def renew_input(
    data: input_t, heads: int, queries: int, keys: int, width: int, seed: int, regime: str = "normal"
) -> input_t:
    """The same cache, the very tensors, and the query that generate_input makes for this seed."""
    return made((heads, queries, width), "query", seed, regime), data[1], data[2]


def refresh(data: input_t, offset: int) -> input_t:
    """The first half of the cache moved on: other pairs, so that no answer of an earlier batch is one of the next."""
    query, key, value = data
    return query, key.roll(offset, 1), value


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [heads, queries, width], or only these heads of it: before it is rounded to the output's dtype."""
    query, key, value = (part.double() if rows is None else part[rows].double() for part in data)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    return (scores.softmax(dim=-1) @ value).float()


def ref_kernel(data: input_t) -> output_t:
    """What a right submission returns, in exactly this form."""
    return expected(data).to(DTYPES["result"])


def made(shape: tuple[int, int, int], name: str, seed: int, regime: str) -> torch.Tensor:
    """One of the three; their seeds are different ones."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(4 * (seed % (1 << 60)) + list(DTYPES).index(name))
    drawn = torch.randn(shape, generator=generator, device=device)
    if regime == "shifted" and name == "value":  # what forgets to divide by the sum, or divides by a wrong one, shows
        drawn = drawn + 1
    elif regime == "peaked" and name == "query":  # one score far above the others: without a maximum, exp overflows
        drawn = drawn * 32
    return drawn.to(DTYPES[name])
