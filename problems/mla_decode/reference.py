"""The judge's side of mla_decode: makes queries and caches, and attends in float32 at each declared precision."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from mxfp4 import dequantize_mxfp4, quantize_fp8, quantize_mxfp4
from portable import REGIMES, default_device, normal_table, portable_integers, sample_table
from task import input_t, output_t

HEADS, KEY_DIM, ROPE_DIM = 16, 576, 64
VALUE_DIM = KEY_DIM - ROPE_DIM
SM_SCALE = 1 / math.sqrt(KEY_DIM)
PRECISIONS = ("bf16", "fp8", "fp8-kv", "mxfp4")
LENGTH_REGIMES = ("ragged",)
KEY_REGIMES = ("rivals",)
PUBLISHED_RTOL = PUBLISHED_ATOL = 0.1
PUBLISHED_MISMATCHES = 0.05
# Means in the shifted regime: scores near 24 * 1 * 4 = 96, where exp without a maximum overflows.
_SHIFTS = {"q": 1.0, "kv": 4.0}
# Heavy tails reach 9, and 18 standard deviations; larger ones would let rounding q to bfloat16 once more move a score.
_HEAVY_DIVISOR = 8.0
_DOMINANT_QUERY = 0.5
# In the RoPE dimensions of queries and rival keys: scores near 6 * 6 * 64 / 24 = 96, where bfloat16 has steps of 0.5.
_RIVAL = 6.0
_DECODED_AT_A_TIME = 1 << 26


def generate_input(batchsize: int, kvseqlen: int, seed: int, qseqlen: int = 1, regime: str = "normal") -> input_t:
    """The tuple (q, kv_data, qo_indptr, kv_indptr, config) of README.md, on the default device, contiguous.

    Shapes depend on the case but not on its seed, in the ragged regime too. The peak of memory is the result and some
    hundred MB. Raises ValueError for an unknown regime, sizes below 1, or more than one query per sequence.
    """
    if qseqlen != 1 or batchsize < 1 or kvseqlen < 1:
        sizes = f"batchsize = {batchsize}, qseqlen = {qseqlen}, kvseqlen = {kvseqlen}"
        raise ValueError(f"{sizes}: expected qseqlen 1 and the others at least 1")
    config = {
        "batch_size": batchsize,
        "num_heads": HEADS,
        "num_kv_heads": 1,
        "qk_head_dim": KEY_DIM,
        "kv_lora_rank": VALUE_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "v_head_dim": VALUE_DIM,
        "q_seq_len": qseqlen,
        "kv_seq_len": kvseqlen,
        "sm_scale": SM_SCALE,
    }
    lengths = _lengths(batchsize, kvseqlen, seed, regime)
    return _queries(batchsize, seed, regime), _caches(lengths, seed, regime), *_pointers(lengths), config


def renew_input(
    data: input_t, batchsize: int, kvseqlen: int, seed: int, qseqlen: int = 1, regime: str = "normal"
) -> input_t:
    """The same caches (the very tensors), with this seed's queries and lengths of generate_input."""
    lengths = _lengths(batchsize, kvseqlen, seed, regime)
    return _queries(batchsize, seed, regime), data[1], *_pointers(lengths), data[4]


def refresh(data: input_t, offset: int) -> input_t:
    """All caches with their tokens moved down by `offset`, wrapping at the end: token t was (t - offset) % total.

    The fp8 scale belongs to the whole tensor and stays what it is. Queries, pointers and config are the same objects.
    """
    bf16, (fp8, fp8_scale), (fp4, fp4_scales) = (data[1][name] for name in ("bf16", "fp8", "mxfp4"))
    caches = {
        "bf16": _moved(bf16, offset),
        "fp8": (_moved(fp8, offset), fp8_scale.clone()),
        "mxfp4": (_moved(fp4, offset), _moved(fp4_scales, offset)),
    }
    return data[0], caches, *data[2:]


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [bs, 16, 512] (or [len(rows), 16, 512]: sequences `rows` only), before the rounding to bfloat16.

    `precision` is one of PRECISIONS and says which inputs are read: q and cache in bfloat16 (the default), both in fp8,
    or q in bfloat16 with the fp8 or MXFP4 cache. From there on everything is float32, provided float32 is meant:
    `torch.backends.cuda.matmul.allow_tf32` must be False, torch's default. Caches are decoded 256 MiB at a time.
    Raises ValueError for an unknown precision.
    """
    precision = precision or PRECISIONS[0]
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    q, caches, _, kv_indptr, _ = data
    queries = q.float()
    if precision == "fp8":
        quantized, scale = quantize_fp8(q)
        queries = quantized.float() * scale
    if rows is not None:
        queries = queries.index_select(0, rows.to(q.device))
    chosen = list(range(len(q))) if rows is None else rows.tolist()
    output = queries.new_empty(len(chosen), HEADS, VALUE_DIM)
    for first, last, begin, length in _runs(chosen, kv_indptr.tolist()):
        cached = _decoded(caches, precision, begin, begin + (last - first) * length).view(-1, length, KEY_DIM)
        weights = (queries[first:last] @ cached.mT).mul_(SM_SCALE).softmax(dim=-1)
        output[first:last] = weights @ cached[..., :VALUE_DIM]
    return output


def ref_kernel(data: input_t) -> output_t:
    """bfloat16 [bs, 16, 512] from q and cache in fp8, as the competition's reference (a8w8), but with exact weights."""
    return expected(data, "fp8").bfloat16()


def check_implementation(data: input_t, output: output_t) -> tuple[bool, str]:
    """The competition's own check: |err| <= 0.1 + 0.1 * |reference| for at least 95 % of the elements.

    Returns (ok, message). It accepts far too much (README.md); the limits of task.yml do not.
    """
    reference = ref_kernel(data)
    if output.shape != reference.shape or output.dtype != reference.dtype:
        expectation = f"{reference.dtype} {tuple(reference.shape)}"
        return False, f"the output is {output.dtype} {tuple(output.shape)}: expected {expectation}"
    errors = (output.float() - reference.float()).abs()
    accepted = errors <= PUBLISHED_ATOL + PUBLISHED_RTOL * reference.float().abs()
    wrong = int((~accepted).sum())
    share = f"{wrong} of {errors.numel()} elements differ"
    if wrong <= PUBLISHED_MISMATCHES * errors.numel():
        return True, f"{share}; largest error {errors.max().item():.3g}"
    index = (~accepted).nonzero()[0].tolist()
    got, wanted = output[tuple(index)].item(), reference[tuple(index)].item()
    return False, f"{share}; the first is {index}: {got} for {wanted}"


def _queries(batchsize: int, seed: int, regime: str) -> torch.Tensor:
    queries = sample_table(_table("q", regime), (batchsize, HEADS, KEY_DIM), seed, "q")
    if regime == "dominant":
        queries = (queries.float() + _DOMINANT_QUERY * _direction(queries.device)).bfloat16()
    if regime == "rivals":
        rope = queries[..., VALUE_DIM:]
        rope.copy_(rope.float() + _RIVAL * _direction(queries.device)[VALUE_DIM:])
    return queries


def _caches(lengths: list[int], seed: int, regime: str) -> dict[str, Any]:
    """One bfloat16 cache [sum of lengths, 1, 576] and its two quantised forms."""
    cache = sample_table(_table("kv", regime), (sum(lengths), 1, KEY_DIM), seed, "kv")
    if regime == "dominant":
        tokens = torch.tensor(_dominant_tokens(lengths, seed), device=cache.device)
        cache[tokens] = (cache[tokens].float() + _direction(cache.device)).bfloat16()
    if regime == "rivals":
        tokens = torch.tensor(_rival_tokens(lengths, seed), device=cache.device)
        cache[tokens, :, VALUE_DIM:] = (_RIVAL * _direction(cache.device)[VALUE_DIM:]).bfloat16()
    fp8, scale = quantize_fp8(cache)
    fp4, scales = quantize_mxfp4(cache)
    return {"bf16": cache, "fp8": (fp8, scale.reshape(1)), "mxfp4": (fp4, scales.view(-1, scales.shape[-1]))}


def _table(stream: str, regime: str) -> torch.Tensor:
    """The distribution of "q" or "kv" in a regime: standard normal, but for shifted and heavy."""
    own = (*LENGTH_REGIMES, *KEY_REGIMES)
    if regime not in (*REGIMES, *own):
        raise ValueError(f"unknown regime {regime!r}: expected one of {', '.join((*REGIMES, *own))}")
    if regime in own:
        return normal_table()
    return normal_table(regime, divisor=_HEAVY_DIVISOR if regime == "heavy" else 1.0, shift=_SHIFTS[stream])


def _lengths(batchsize: int, kvseqlen: int, seed: int, regime: str) -> list[int]:
    """KV length of each sequence: kvseqlen, or in the ragged regime one multiset for the case, its order by seed.

    The multiset has kvseqlen itself, 1, 7 and 33 as far as there is room, then multiples of the golden ratio, which
    spread evenly over 1..kvseqlen.
    """
    if regime != "ragged":
        return [kvseqlen] * batchsize
    spread = [1 + (index * 0x9E3779B1 % (1 << 32) * kvseqlen >> 32) for index in range(4, batchsize)]
    lengths = [min(length, kvseqlen) for length in ([kvseqlen, 1, 7, 33][:batchsize] + spread)]
    order = portable_integers((batchsize,), 1 << 31, seed, "lengths", "cpu").argsort(stable=True)
    return [lengths[index] for index in order.tolist()]


def _pointers(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(qo_indptr, kv_indptr), both int32 [bs + 1]: where each sequence's queries and keys begin, then the end."""
    begins = torch.tensor([0, *lengths]).cumsum(0).int()
    return torch.arange(len(begins), dtype=torch.int32).to(default_device()), begins.to(default_device())


def _direction(device: torch.device) -> torch.Tensor:
    """float32 [576] of signs, the same for all seeds: what queries and dominant keys have in common.

    Their score is 12 above the rest, so that one key weighs about ten times 8192 others.
    """
    return portable_integers((KEY_DIM,), 2, 0, "dominant direction", device).float() * 2 - 1


def _dominant_tokens(lengths: list[int], seed: int) -> list[int]:
    """One token for each sequence: in turn its last, its first and one anywhere, where wrong bounds show."""
    draws = portable_integers((len(lengths),), 1 << 31, seed, "dominant", "cpu").tolist()
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    places = zip(begins, lengths, draws, strict=True)
    return [begin + (length - 1, 0, draw % length)[index % 3] for index, (begin, length, draw) in enumerate(places)]


def _rival_tokens(lengths: list[int], seed: int) -> list[int]:
    """Of each sequence its first token, its last and one anywhere: they share the weight between them."""
    draws = portable_integers((len(lengths),), 1 << 31, seed, "rivals", "cpu").tolist()
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    places = zip(begins, lengths, draws, strict=True)
    return sorted({begin + place for begin, length, draw in places for place in (0, length - 1, draw % length)})


def _moved(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A new tensor: rows moved down by `offset`, wrapping. Two plain copies, which run at memory speed in any dtype."""
    cut = offset % len(tensor)
    moved = torch.empty_like(tensor)
    moved[cut:].copy_(tensor[: len(tensor) - cut])
    moved[:cut].copy_(tensor[len(tensor) - cut :])
    return moved


def _runs(chosen: list[int], bounds: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """(first, last, begin, length) for runs chosen[first:last] of neighbouring sequences of one length.

    The run's tokens begin at `begin`, and its decoded cache has at most _DECODED_AT_A_TIME elements (or is one
    sequence), so that equal lengths are computed together and memory stays bounded.
    """
    first = 0
    while first < len(chosen):
        begin, length = bounds[chosen[first]], bounds[chosen[first] + 1] - bounds[chosen[first]]
        limit = max(1, _DECODED_AT_A_TIME // (length * KEY_DIM))
        last = first + 1
        while last < min(len(chosen), first + limit) and chosen[last] == chosen[last - 1] + 1:
            if bounds[chosen[last] + 1] - bounds[chosen[last]] != length:
                break
            last += 1
        yield first, last, begin, length
        first = last


def _decoded(caches: dict[str, Any], precision: str, begin: int, end: int) -> torch.Tensor:
    """Tokens begin..end of one cache as float32 [end - begin, 1, 576]."""
    if precision == "bf16":
        return caches["bf16"][begin:end].float()
    if precision == "mxfp4":
        packed, scales = caches["mxfp4"]
        return dequantize_mxfp4(packed[begin:end], scales[begin:end])
    quantized, scale = caches["fp8"]
    return quantized[begin:end].float().mul_(scale)
