"""Boards from records: who is how fast at what, on which device. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.record import CaseResult, Record, TimingClass
from harness.statistics import Summary, geometric_mean, summarise


@dataclass(frozen=True)
class Row:
    """One author's best time for one file."""

    first_rank: int
    last_rank: int
    """The same as first_rank, or larger where intervals do not separate the entries."""
    id: str
    author: str
    filename: str
    created: str
    score: Summary
    speed_of_light: float | None
    """Geometric mean over the cases of roofline time over time; None where the device's rates are not known."""
    speedup: float | None
    """Over the shipped torch baseline on the same board; None where that was never submitted."""
    is_baseline: bool
    precisions: tuple[str, ...]

    @property
    def rank(self) -> str:
        """`2`, or `2–3` for a tie."""
        return str(self.first_rank) if self.first_rank == self.last_rank else f"{self.first_rank}–{self.last_rank}"


@dataclass(frozen=True)
class Board:
    """One problem version on one device model by one class of clock."""

    problem: str
    problem_hash: str
    device_model: str
    timing_class: TimingClass
    cases: tuple[str, ...]
    rows: tuple[Row, ...]


def score(record: Record) -> Summary:
    """The geometric mean over the record's timed cases."""
    return geometric_mean([_summary(case) for case in record.timed])


def _summary(case: CaseResult) -> Summary:
    assert case.timing is not None
    return summarise(case.timing.batches)


def case_names(record: Record) -> tuple[str, ...]:
    """What was timed, seeds left out: records with other cases cannot be compared by their mean."""
    return tuple(json.dumps({k: v for k, v in case.spec.items() if k != "seed"}) for case in record.timed)


def rank(records: Iterable[Record]) -> list[Board]:
    """All boards, by problem; on each, the best entry per author and file, fastest first.

    Only records that may be ranked count. Where records of one problem version were timed on different sets of
    cases, the newest record's set makes the board.
    """
    groups: dict[tuple[str, str, str, TimingClass], list[Record]] = {}
    for record in records:
        if record.is_ranked:
            key = (record.problem.name, record.problem.content_hash, record.device.model, record.timing_class)
            groups.setdefault(key, []).append(record)
    boards = []
    for key, group in sorted(groups.items()):
        cases = case_names(max(group, key=lambda record: record.created))
        boards.append(Board(*key, cases, _rows([record for record in group if case_names(record) == cases])))
    return boards


def _rows(records: Sequence[Record]) -> tuple[Row, ...]:
    scored = [(score(record), record) for record in records]
    best: dict[tuple[str, str], tuple[Summary, Record]] = {}
    for entry in sorted(scored, key=lambda pair: (pair[0].time_ns, pair[1].created)):
        best.setdefault((entry[1].submission.author, entry[1].submission.filename), entry)
    ordered = sorted(best.values(), key=lambda pair: pair[0].time_ns)
    baseline = min((each.time_ns for each, record in scored if record.submission.is_baseline), default=None)
    ranks = rank_ranges([each for each, _ in ordered])
    return tuple(_row(*ends, *entry, baseline) for ends, entry in zip(ranks, ordered, strict=True))


def rank_ranges(summaries: Sequence[Summary]) -> list[tuple[int, int]]:
    """First and last rank that each entry may hold: 1 + those surely faster, and all that are not surely slower."""
    return [
        (
            1 + sum(other.high_ns < each.low_ns for other in summaries),
            sum(other.low_ns <= each.high_ns for other in summaries),
        )
        for each in summaries
    ]


def _row(first: int, last: int, summary: Summary, record: Record, baseline_ns: float | None) -> Row:
    names = {case.judgement.precision for case in record.cases if case.judgement and case.judgement.precision}
    return Row(
        first,
        last,
        record.id,
        record.submission.author,
        record.submission.filename,
        record.created,
        summary,
        speed_of_light(record),
        baseline_ns / summary.time_ns if baseline_ns and summary.time_ns > 0 else None,
        record.submission.is_baseline,
        tuple(sorted(names)),
    )


def speed_of_light(record: Record) -> float | None:
    """Geometric mean over the timed cases of the least possible time over the time; None if any is not known."""
    shares = []
    for case in record.timed:
        time_ns = _summary(case).time_ns
        if case.timing is None or case.timing.roofline_ns is None or time_ns <= 0:
            return None
        shares.append(case.timing.roofline_ns / time_ns)
    return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else None
