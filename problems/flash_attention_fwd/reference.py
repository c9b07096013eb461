"""The judge's side of flash_attention_fwd: makes packed sequences and attends in float32."""

from itertools import pairwise

import torch
from portable import default_device, normal_table, portable_integers, sample_table
from task import input_t, output_t

REGIMES = ("normal", "rivals", "sink", "late", "offset", "uneven")
HEAD_DIMS = (64, 128)
CHECK_RTOL = CHECK_ATOL = 1e-2
# What queries have in common with single keys in the regimes sink and late, per dimension.
_QUERY_SHARE = 0.5
# How far above the others a single key's score then lies: exp(12) outweighs 8192 others by a factor of about ten.
_SINK_SCORE, _LATE_SCORE = 12.0, 20.0
# In half of the dimensions of queries and rival keys: scores near 90 and 100, where bfloat16 has steps of a half.
_RIVAL = {64: 5.0, 128: 4.0}
_VALUE_OFFSET = 8.0
_SCORES_AT_A_TIME = {"cpu": 1 << 22, "cuda": 1 << 27}


def generate_input(
    batch: int, seqlen: int, heads_q: int, heads_kv: int, d: int, seed: int, regime: str = "normal"
) -> input_t:
    """The tuple (q, k, v, cu_seqlens, max_seqlen, softmax_scale) of README.md, on the default device, contiguous.

    Shapes depend on the case but not on its seed. Raises ValueError for an unknown regime, another d than 64 and 128,
    heads_q that is no multiple of heads_kv, and a seqlen that is no multiple of batch (the lengths are its fractions).
    """
    if d not in HEAD_DIMS or min(batch, seqlen, heads_kv) < 1 or heads_q % heads_kv or seqlen % batch:
        sizes = f"batch = {batch}, seqlen = {seqlen}, heads_q = {heads_q}, heads_kv = {heads_kv}, d = {d}"
        raise ValueError(f"{sizes}: expected d 64 or 128, heads_q a multiple of heads_kv, seqlen a multiple of batch")
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}: expected one of {', '.join(REGIMES)}")
    lengths = _lengths(batch, seqlen, seed, regime)
    total = sum(lengths)
    values = normal_table("shifted", shift=_VALUE_OFFSET) if regime == "offset" else normal_table()
    q = sample_table(normal_table(), (total, heads_q, d), seed, "q")
    k = sample_table(normal_table(), (total, heads_kv, d), seed, "k")
    v = sample_table(values, (total, heads_kv, d), seed, "v")
    _plant(q, k, lengths, seed, regime)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(default_device())
    return q, k, v, cu_seqlens, seqlen, 1 / d if regime == "uneven" else d**-0.5


def expected(data: input_t, precision: str | None = None, rows: torch.Tensor | None = None) -> torch.Tensor:
    """float32 [T, heads_q, d], or [len(rows), heads_q, d] for these tokens: attention before the rounding to bfloat16.

    out_i = sum over j <= i of exp(s_ij) v_j / sum over j <= i of exp(s_ij), s_ij being softmax_scale * q_i . k_j, and i
    and j tokens of one sequence. There is one precision, so `precision` changes nothing. Everything is float32,
    provided float32 is meant: `torch.backends.cuda.matmul.allow_tf32` must be False, torch's default. At most 2**27
    scores (512 MiB) exist at a time, or those of one token.
    """
    q, _, _, cu_seqlens, *_ = data
    tokens = torch.arange(len(q), device=q.device) if rows is None else rows.to(q.device)
    output = torch.empty(len(tokens), *q.shape[1:], device=q.device)
    bounds = cu_seqlens.tolist()
    for begin, end in pairwise(bounds):
        places = ((tokens >= begin) & (tokens < end)).nonzero().flatten()
        step = max(1, _SCORES_AT_A_TIME.get(q.device.type, 1 << 22) // (q.shape[1] * (end - begin)))
        for some in places.split(step) if len(places) else ():
            output[some] = _attended(data, tokens[some], begin)
    return output


def ref_kernel(data: input_t) -> output_t:
    """bfloat16 [T, heads_q, d]."""
    return expected(data).bfloat16()


def check_implementation(data: input_t, output: output_t) -> tuple[bool, str]:
    """The plain check that GPU MODE's folder layout asks for: every |err| <= 1e-2 + 1e-2 * |reference|.

    Returns (ok, message). The limits of task.yml decide here, not this.
    """
    reference = ref_kernel(data)
    if output.shape != reference.shape or output.dtype != reference.dtype:
        expectation = f"{reference.dtype} {tuple(reference.shape)}"
        return False, f"the output is {output.dtype} {tuple(output.shape)}: expected {expectation}"
    errors = (output.float() - reference.float()).abs()
    accepted = errors <= CHECK_ATOL + CHECK_RTOL * reference.float().abs()
    wrong = int((~accepted).sum())
    if not wrong:
        return True, f"largest error {errors.max().item():.3g}"
    index = (~accepted).nonzero()[0].tolist()
    got, wanted = output[tuple(index)].item(), reference[tuple(index)].item()
    return False, f"{wrong} of {errors.numel()} elements differ; the first is {index}: {got} for {wanted}"


def _attended(data: input_t, tokens: torch.Tensor, begin: int) -> torch.Tensor:
    """float32 [len(tokens), heads_q, d] for tokens of the one sequence that begins at `begin`."""
    q, k, v, _, _, scale = data
    end = int(tokens.max()) + 1  # later keys are nobody's
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    queries = q[tokens].float().unflatten(1, (kv_heads, group)).permute(1, 2, 0, 3)
    keys, values = (tensor[begin:end].float().transpose(0, 1) for tensor in (k, v))  # [heads_kv, keys, d]
    scores = (queries.flatten(1, 2) @ keys.mT).mul_(scale).unflatten(1, (group, len(tokens)))
    future = torch.arange(begin, end, device=q.device) > tokens[:, None]
    weights = scores.masked_fill_(future, -torch.inf).softmax(dim=-1)
    result = weights.flatten(1, 2) @ values
    return result.unflatten(1, (group, len(tokens))).permute(2, 0, 1, 3).flatten(1, 2)


def _lengths(batch: int, seqlen: int, seed: int, regime: str) -> list[int]:
    """The sequences' lengths: 1/batch, 2/batch, ... of seqlen, up to all of it, in an order that the seed decides.

    In the regime uneven they are, as far as there is room, seqlen, 1, 7 and 33, then multiples of the golden ratio,
    which spread over 1..seqlen. Either way the multiset is the case's.
    """
    lengths = [seqlen * (index + 1) // batch for index in range(batch)]
    if regime == "uneven":
        spread = [1 + (index * 0x9E3779B1 % (1 << 32) * seqlen >> 32) for index in range(4, batch)]
        lengths = [min(length, seqlen) for length in ([seqlen, 1, 7, 33][:batch] + spread)]
    order = portable_integers((batch,), 1 << 31, seed, "lengths", "cpu").argsort(stable=True)
    return [lengths[index] for index in order.tolist()]


def _plant(q: torch.Tensor, k: torch.Tensor, lengths: list[int], seed: int, regime: str) -> None:
    """What makes some keys matter more than others, written into q and k in place."""
    d = q.shape[-1]
    direction = portable_integers((d,), 2, 0, "direction", q.device).float() * 2 - 1
    if regime in ("sink", "late"):
        score = _SINK_SCORE if regime == "sink" else _LATE_SCORE
        keys = torch.tensor(_planted(lengths, seed, regime), device=q.device)
        k[keys] = (k[keys].float() + score / (_QUERY_SHARE * d**0.5) * direction).bfloat16()
        q.copy_(q.float() + _QUERY_SHARE * direction)
    if regime == "rivals":
        shared = _RIVAL[d] * direction[d // 2 :]
        keys = torch.tensor(_planted(lengths, seed, regime), device=q.device)
        k[keys, :, d // 2 :] = shared.bfloat16()
        half = q[..., d // 2 :]
        half.copy_(half.float() + shared)


def _planted(lengths: list[int], seed: int, regime: str) -> list[int]:
    """Tokens whose keys stand out: of each sequence the first (sink), one in the last quarter (late), or (rivals) the
    first, one in the first quarter and one in the last."""
    draws = portable_integers((len(lengths),), 1 << 31, seed, "planted", "cpu").tolist()
    begins = [sum(lengths[:index]) for index in range(len(lengths))]
    found: set[int] = set()
    for begin, length, draw in zip(begins, lengths, draws, strict=True):
        quarter = length // 4 + 1
        early, late = begin + min(length - 1, 1 + draw % quarter), begin + length - 1 - draw % quarter
        found |= {"sink": {begin}, "late": {late}, "rivals": {begin, early, late}}[regime]
    return sorted(found)
