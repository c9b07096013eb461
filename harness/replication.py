"""Several processes of one submission as one result: merged, checked for a steady device, counted enough or not."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.doubts import late_doubts
from harness.record import Batch, CaseResult, Judgement, StoppedBy
from harness.statistics import LOOKS, is_lost, score, trimmed_mean

CANARY_SHARE = 0.02
"""A canary that is further than this from its median over the run on the same case voids the batches beside it."""
VOIDED_SHARE = 0.20
"""More voided batches than this void the run."""
_SHORTEST: tuple[StoppedBy, ...] = ("precision", "batches", "time")


def merge(results: Sequence[CaseResult]) -> CaseResult:
    """One case's results in each process as one: the first that did not pass, or all their readings together."""
    failed = next((each for each in results if each.outcome.verdict != "passed"), None)
    if failed is not None:
        return failed
    first = results[0]
    timings = [each.timing for each in results if each.timing is not None]
    if not timings:
        return first
    claims = [timing.empty_claim_ns for timing in timings if timing.empty_claim_ns is not None]
    timing = replace(
        timings[0],
        batches=tuple(batch for each in timings for batch in each.batches),
        claimed=tuple(batch for each in timings for batch in each.claimed),
        empty_claim_ns=statistics.fmean(claims) if claims else None,
        stopped_by=max((each.stopped_by for each in timings), key=_SHORTEST.index),
        empty_excess_ns=_middle([each.empty_excess_ns for each in timings]),
        idle_ns=_middle([each.idle_ns for each in timings]),
    )
    found = (*(doubt for each in results for doubt in each.doubts), *late_doubts(timing))
    doubts = tuple(dict.fromkeys(found))
    judgements = [each.judgement for each in results if each.judgement is not None]
    return replace(first, timing=timing, doubts=doubts, judgement=_worst(judgements))


def _middle(values: Sequence[float | None]) -> float | None:
    """The trimmed mean over the processes that have one, as of their times."""
    known = [value for value in values if value is not None]
    return trimmed_mean(known) if known else None


def _worst(judgements: Sequence[Judgement]) -> Judgement | None:
    """The judgement furthest off, over the outputs of all; the published verdict is the first process's."""
    if not judgements:
        return None
    worst = max(judgements, key=lambda each: each.row_error or 0.0)
    calls = sum(each.calls for each in judgements)
    first = judgements[0]
    return replace(worst, calls=calls, gpumode=first.gpumode, gpumode_message=first.gpumode_message)


def is_enough(results: Sequence[CaseResult], precision: float) -> bool:
    """Whether this is a look, and the score's 95 % interval reaches at most `precision` to either side at it.

    Looks are few (`LOOKS`), and what they look at is the interval that is shown in the end. Batches must have been
    marked (`void`). Never while all batches of a case are voided.
    """
    timed = [each.timing.batches for each in results if each.timing is not None]
    if len({batch.process for batches in timed for batch in batches}) not in LOOKS or any(map(is_lost, timed)):
        return False
    half = score(timed).half_width
    return half is not None and half <= precision


def lost(cases: Iterable[tuple[str, Sequence[Batch]]]) -> tuple[str, ...]:
    """What there is to say of cases (name and batches) all of whose batches were voided, once each."""
    names = dict.fromkeys(name for name, batches in cases if is_lost(batches))
    return tuple(
        f"{name}: the referee's own kernels moved beside every batch, and its time is one of voided batches"
        for name in names
    )


def void(results: Sequence[CaseResult]) -> tuple[tuple[CaseResult, ...], str]:
    """Mark the batches beside which a canary moved, and say why the run cannot be trusted if there are too many.

    All of one case's are too many.
    """
    samples = [each.timing.batches if each.timing is not None else () for each in results]
    marked, _, why = mark(samples)
    return tuple(
        replace(each, timing=replace(each.timing, batches=batches)) if each.timing is not None else each
        for each, batches in zip(results, marked, strict=True)
    ), why or next(iter(lost((each.name, batches) for each, batches in zip(results, marked, strict=True))), "")


def mark(cases: Sequence[Sequence[Batch]]) -> tuple[list[tuple[Batch, ...]], float, str]:
    """Each case's batches, those beside which a canary moved marked; their share; why that is too many, or nothing.

    The measure is a canary's median over the run's batches on the same case, in all processes (what the oracle has
    just dealt moves it by some percent between cases); only how the referee's own kernels did counts, never what a
    submission read.
    """
    marked: list[tuple[Batch, ...]] = []
    moves: list[tuple[Batch, tuple[float, ...]]] = []
    for batches in cases:
        judged = [batch for batch in batches if batch.canaries_ns]
        medians = [statistics.median(column) for column in zip(*(each.canaries_ns for each in judged), strict=True)]
        own = [(batch, _moves(batch, medians)) for batch in batches]
        marked.append(tuple(replace(batch, is_voided=_is_moved(moved)) for batch, moved in own))
        moves += [(batch, moved) for batch, moved in own if moved]
    voided = [(batch, moved) for batch, moved in moves if _is_moved(moved)]
    share = len(voided) / len(moves) if moves else 0.0
    return marked, share, _why(voided, len(moves)) if share > VOIDED_SHARE else ""


def _moves(batch: Batch, medians: Sequence[float]) -> tuple[float, ...]:
    if not batch.canaries_ns:
        return ()
    return tuple(canary / median - 1 for canary, median in zip(batch.canaries_ns, medians, strict=True))


def _is_moved(moved: Sequence[float]) -> bool:
    return any(abs(each) > CANARY_SHARE for each in moved)


def _why(voided: Sequence[tuple[Batch, tuple[float, ...]]], total: int) -> str:
    share = f"{100 * len(voided) / total:.0f} % of the batches"
    states = [batch.state for batch, _ in voided if batch.state is not None]
    if sum(state.others > 0 for state in states) * 2 > len(voided):
        return f"another process used the GPU during {share}"
    reasons = sorted({reason for state in states for reason in state.throttle})
    if sum(bool(state.throttle) for state in states) * 2 > len(voided):
        return f"the GPU was slowed down during {share} ({', '.join(reasons)})"
    most = [max(abs(moved[index]) for _, moved in voided) for index in range(len(voided[0][1]))]
    kind = "memory-bound" if most[0] == max(most) else "compute-bound"
    return f"the referee's own {kind} kernel moved by up to {100 * max(most):.0f} % during {share}"
