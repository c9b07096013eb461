"""Which of several kernels is faster, and is that real? Pure functions over the samples of one comparison.

All kernels were timed in one run, in blocks: each block holds every kernel once, in random order, on identical
inputs. Blocks belong to heats; each heat gave every kernel a fresh process. What is compared is the logarithm of
two kernels' times in the same block; a heat's trimmed mean over its blocks is one independent value, since processes
differ by more than their batches do.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.record import Batch, Device, Outcome, ProblemVersion, Scalar, Software, TimingClass
from harness.statistics import (
    LOOKS,
    Summary,
    holm,
    is_lost,
    looked,
    p_value,
    score,
    student_t,
    t_interval,
    trimmed_mean,
)

LEVEL = 0.05
"""How often any of the pairs that differ in nothing may be called faster or slower: over all cases together, and apart
from that on any single case."""
CONTROL_LEVEL = 0.01
"""The same for a kernel and its hidden copy."""
EFFECT_SHARE = 0.0025
"""Smaller differences are never called faster or slower, however sure."""
TIE_SHARE = 0.005
"""A tie: surely less than this apart."""
TIE_CONFIDENCE = 0.90

PairVerdict = Literal["FASTER", "SLOWER", "TIE", "UNRESOLVED", "INVALID"]
"""Of the first kernel against the second."""


@dataclass(frozen=True)
class CaseSamples:
    """One kernel's samples on one case."""

    name: str
    """The case as `key=value` words."""
    spec: dict[str, Scalar]
    outcome: Outcome
    timing_class: TimingClass
    batches: tuple[Batch, ...] = ()
    """Each with its heat (`process`) and its `block` in it; empty where the case did not pass."""


@dataclass(frozen=True)
class Entry:
    """One kernel of a comparison."""

    label: str
    """What it is called in the tables: its file's name, with as much of its path as tells it from the others."""
    filename: str
    sha256: str
    record_id: str | None
    """The record it was taken from, None for a file."""
    outcome: Outcome
    timing_class: TimingClass
    """host-synchronising if any case is."""
    cases: tuple[CaseSamples, ...]


@dataclass(frozen=True)
class Ratio:
    """How one kernel's time relates to another's: `time(first) / time(second)`, below 1 where the first is faster."""

    verdict: PairVerdict
    ratio: float | None
    """None where it could not be had (INVALID)."""
    low: float | None = None
    """Ends of the interval, at the confidence that is left to this question among all that are asked with it (Holm):
    all pairs over all cases together, or all pairs on all single cases."""
    high: float | None = None
    heats: int = 0
    blocks: int = 0
    more_blocks: int | None = None
    """About how many blocks it would take in addition; None unless UNRESOLVED."""
    reason: str = ""
    """Why it is INVALID."""


@dataclass(frozen=True)
class PairResult:
    """Two kernels: the verdict over the geometric mean of the cases, and case by case."""

    first: str
    second: str
    overall: Ratio
    cases: tuple[tuple[str, Ratio], ...]
    """Case name and its ratio."""


@dataclass(frozen=True)
class Standing:
    """One kernel's place: from `rank` to `rank_to`, equal where it is surely told from its neighbours."""

    label: str
    rank: int | None
    """None for a kernel that did not pass."""
    rank_to: int | None
    time_ns: float | None
    """Geometric mean over the cases."""
    low_ns: float | None
    high_ns: float | None


@dataclass(frozen=True)
class Comparison:
    """One run of `podium compare`: what was measured and what follows from it."""

    id: str
    created: str
    """UTC, ISO 8601."""
    problem: ProblemVersion
    device: Device
    software: Software
    entries: tuple[Entry, ...]
    """Kernels in the order asked for; raw samples inside."""
    control: Entry | None
    """The hidden duplicate of one of them."""
    control_of: str | None
    standings: tuple[Standing, ...]
    """Fastest first."""
    pairs: tuple[PairResult, ...]
    control_result: Ratio | None
    """The duplicate against its original: anything but a tie casts doubt on all the rest."""
    stages_ns: dict[str, int]
    complete: bool = True
    """False when it was stopped before the precision or the time asked for."""
    stopped_by: str = ""
    """precision, time, heats, memory, or what interrupted it."""
    voided_share: float = 0.0
    """Share of the blocks that canaries or the device's state voided, alike for all kernels."""
    notes: tuple[str, ...] = ()


# --- from samples to verdicts ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One comparison of two kernels."""

    means: tuple[float, ...]
    """Each heat's trimmed mean of the paired log-ratios of its blocks: the independent values."""
    blocks: int = 0
    """Blocks in all heats."""
    invalid: str = ""
    """Why no answer would mean anything."""


def answer(questions: Sequence[Question], level: float = LEVEL) -> list[Ratio]:
    """The verdicts on questions that are asked together: faster or slower at `level` for all of them (Holm).

    That level, and that of ties, holds for heats that ended when an interval was narrow enough (`looked`).
    """
    asked = [index for index, question in enumerate(questions) if not question.invalid]
    found = holm([p_value(questions[index].means) for index in asked], 1 - looked(1 - level))
    held = dict(zip(asked, found, strict=True))
    return [
        _ratio(question, *held[index]) if index in held else Ratio("INVALID", None, reason=question.invalid)
        for index, question in enumerate(questions)
    ]


def _ratio(question: Question, differs: bool, level: float) -> Ratio:
    means, blocks = question.means, question.blocks
    if not means:
        return Ratio("INVALID", None, reason="they were not timed together")
    middle = statistics.fmean(means)
    found = t_interval(means, 1 - level)
    # Two heats may leave an interval beyond what a float can hold.
    low, high = (math.exp(max(found[0], -100.0)), math.exp(min(found[1], 100.0))) if found else (None, None)
    ratio = math.exp(middle)
    verdict: PairVerdict = "UNRESOLVED"
    if differs and abs(ratio - 1) >= EFFECT_SHARE:
        verdict = "FASTER" if ratio < 1 else "SLOWER"
    elif _is_tie(means):
        verdict = "TIE"
    more = _more_blocks(means, blocks, level) if verdict == "UNRESOLVED" else None
    return Ratio(verdict, ratio, low, high, len(means), blocks, more)


def _is_tie(means: Sequence[float]) -> bool:
    """The 90 % interval lies inside the tie band: two one-sided tests at 5 % each."""
    found = t_interval(means, looked(TIE_CONFIDENCE))
    return found is not None and math.log1p(-TIE_SHARE) <= found[0] and found[1] <= math.log1p(TIE_SHARE)


def _more_blocks(means: Sequence[float], blocks: int, level: float) -> int | None:
    """Blocks in addition after which the interval would leave zero, or fit the tie band, if nothing else changes."""
    count = len(means)
    if count < 2:
        return None
    middle, spread = abs(statistics.fmean(means)), statistics.stdev(means)
    wanted = middle if middle >= EFFECT_SHARE else TIE_SHARE - middle
    confidence = 1 - level if middle >= EFFECT_SHARE else looked(TIE_CONFIDENCE)

    def suffices(heats: int) -> bool:
        return student_t(confidence, heats - 1) * spread / math.sqrt(heats) <= wanted

    more = bisect.bisect_left(range(count, 200), True, key=suffices)
    return max(1, more) * math.ceil(blocks / count)


def pairings(first: Sequence[Batch], second: Sequence[Batch]) -> dict[int, tuple[float, ...]]:
    """log(time of first / time of second) of each block that both have and that was not voided, by the heat's number.

    Blocks that read no longer than nothing have no logarithm.
    """
    mine, theirs = _by_block(first), _by_block(second)
    heats: dict[int, list[float]] = {}
    for place in sorted(mine.keys() & theirs.keys()):
        if mine[place] > 0 and theirs[place] > 0:
            heats.setdefault(place[0], []).append(math.log(mine[place] / theirs[place]))
    return {heat: tuple(values) for heat, values in heats.items()}


def _by_block(batches: Sequence[Batch]) -> dict[tuple[int, int], float]:
    return {(each.process, each.block): each.per_call_ns for each in batches if not each.is_voided}


def question_of(first: Entry, second: Entry, case: int | None = None, doubt: str = "") -> Question:
    """One case, or (None) all of them: per heat, the mean over the cases, of which each heat must have all."""
    both = _cases(first, second, case)
    invalid = doubt or _mismatch(first, second, case) or _lost(both)
    if invalid:
        return Question((), invalid=invalid)
    by_case = [pairings(a.batches, b.batches) for a, b in both]
    heats = sorted(set.intersection(*(set(each) for each in by_case))) if by_case else []
    means = tuple(statistics.fmean(trimmed_mean(each[heat]) for each in by_case) for heat in heats)
    return Question(means, sum(min(len(each[heat]) for each in by_case) for heat in heats))


def _cases(first: Entry, second: Entry, case: int | None) -> list[tuple[CaseSamples, CaseSamples]]:
    both = list(zip(first.cases, second.cases, strict=True))
    return both if case is None else [both[case]]


def _mismatch(first: Entry, second: Entry, case: int | None = None) -> str:
    """Why no number of heats would answer the question; over all cases, one that is timed in two ways is enough."""
    for entry in (first, second):
        if entry.outcome.verdict != "passed":
            return f"{entry.label} {entry.outcome.verdict}: {entry.outcome.message}"
    for mine, theirs in _cases(first, second, case):
        if mine.timing_class != theirs.timing_class:
            return (
                f"on {mine.name}, {first.label} is timed as {mine.timing_class}, {second.label} as "
                f"{theirs.timing_class}: their times have no common scale"
            )
    return ""


def _lost(both: Sequence[tuple[CaseSamples, CaseSamples]]) -> str:
    """That a case has no block left, if so."""
    names = (mine.name for mine, theirs in both if is_lost(mine.batches) or is_lost(theirs.batches))
    return next((f"on {name}, every block was voided: the referee's own kernels moved" for name in names), "")


# --- all pairs ---------------------------------------------------------------------------------------------


def judge_pairs(entries: Sequence[Entry], doubt: str = "") -> tuple[PairResult, ...]:
    """Every pair, overall and case by case; `doubt` makes all of it INVALID.

    The overall verdicts are one family (`answer`), those of all pairs on all cases another: each calls any equal pair
    different in one comparison of twenty. Many cases make the second less sensitive, and not the first.
    """
    pairs = list(itertools.combinations(entries, 2))
    overall = answer([question_of(a, b, doubt=doubt) for a, b in pairs])
    places = [(a, b, case) for a, b in pairs for case in range(len(a.cases))]
    answers = iter(answer([question_of(a, b, case, doubt) for a, b, case in places]))
    return tuple(
        PairResult(a.label, b.label, whole, tuple((case.name, next(answers)) for case in a.cases))
        for (a, b), whole in zip(pairs, overall, strict=True)
    )


def judge_control(original: Entry, control: Entry) -> Ratio:
    """A kernel against its hidden copy: held against a hundredth, so that one comparison in a hundred cries wolf."""
    return answer([question_of(original, control)], CONTROL_LEVEL)[0]


def is_settled(entries: Sequence[Entry], precision: float) -> bool:
    """Whether this is a look, and every pair's 95 % interval reaches at most `precision` to either side at it.

    Looks are few (`LOOKS`); none looks at what an interval says. Batches must have been marked. A pair that cannot be
    compared is not waited for.
    """
    if len({batch.process for entry in entries for case in entry.cases for batch in case.batches}) not in LOOKS:
        return False
    for first, second in itertools.combinations(entries, 2):
        if _mismatch(first, second):
            continue
        found = t_interval(question_of(first, second).means, looked(1 - LEVEL))
        if found is None or (found[1] - found[0]) / 2 > precision:
            return False
    return True


def standings(entries: Sequence[Entry], pairs: Sequence[PairResult]) -> tuple[Standing, ...]:
    """Fastest first; ranks as ranges: behind all that are surely faster, before all that are surely slower."""
    faster = dict.fromkeys((entry.label for entry in entries), 0)
    slower = dict(faster)
    for pair in pairs:
        ahead, behind = (pair.first, pair.second) if pair.overall.verdict == "FASTER" else (pair.second, pair.first)
        if pair.overall.verdict in ("FASTER", "SLOWER"):
            faster[behind] += 1
            slower[ahead] += 1
    timed = [(entry, _time(entry)) for entry in entries]
    count = sum(time is not None for _, time in timed)
    found = [
        Standing(
            entry.label,
            None if time is None else 1 + faster[entry.label],
            None if time is None else count - slower[entry.label],
            *((None, None, None) if time is None else (time.time_ns, time.low_ns, time.high_ns)),
        )
        for entry, time in timed
    ]
    return tuple(sorted(found, key=lambda each: (each.time_ns is None, each.time_ns or 0.0)))


def _time(entry: Entry) -> Summary | None:
    if entry.outcome.verdict != "passed" or not all(case.batches for case in entry.cases) or not entry.cases:
        return None
    return score([case.batches for case in entry.cases])
