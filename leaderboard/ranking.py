"""From records to boards: who is fastest, and which differences the readings cannot tell. Pure functions."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from harness.record import CaseResult, Doubt, Record, Scalar, TimingClass
from harness.statistics import Summary, summarise
from harness.statistics import score as score_of
from leaderboard.clearance import Clearance, open_doubts


@dataclass(frozen=True, order=True)
class BoardKey:
    """What two entries must share to stand beside each other."""

    problem: str
    problem_hash: str
    device_model: str
    timing_class: TimingClass


@dataclass(frozen=True)
class CaseScore:
    """One timed case."""

    spec: dict[str, Scalar]
    """The case without its seed."""
    time: Summary
    roofline_ns: float | None
    precision: str | None


@dataclass(frozen=True)
class Score:
    """What ranking needs of a record; small where the record is large."""

    record_id: str
    created: str
    board: BoardKey
    author: str
    filename: str
    sha256: str
    is_baseline: bool
    cases: tuple[CaseScore, ...]
    time: Summary
    """Geometric mean over the cases."""
    light_share: float | None
    """Geometric mean over the cases of roofline over time; None where a case has no roofline or no time."""
    doubts: tuple[Doubt, ...] = ()
    """The record's: it is ranked when all of them are cleared."""
    clearances: tuple[Clearance, ...] = ()
    """What the board's owner has cleared of them; no part of the record, and never kept with the score."""

    @property
    def is_ranked(self) -> bool:
        """Whether it stands on its board."""
        return not open_doubts(self.doubts, self.clearances)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The declared precisions that its timed outputs were nearest to, by name."""
        return tuple(sorted({case.precision for case in self.cases if case.precision is not None}))


@dataclass(frozen=True)
class Row:
    """One entry's place: from `rank` to `rank_to`, both counted from 1 and equal where intervals separate."""

    rank: int
    rank_to: int
    score: Score
    speedup: float | None
    """The baseline's time over this one's; None without a baseline on the board."""


@dataclass(frozen=True)
class Board:
    """One leaderboard, its rows by time."""

    problem: str
    problem_hash: str
    device_model: str
    timing_class: TimingClass
    rows: tuple[Row, ...]


def score(record: Record) -> Score | None:
    """A record's times with their intervals; None for one that could not be ranked even without its doubts."""
    if not record.is_rankable:
        return None
    cases = tuple(_case_score(case) for case in record.timed)
    return Score(
        record_id=record.id,
        created=record.created,
        board=BoardKey(record.problem.name, record.problem.content_hash, record.device.model, record.timing_class),
        author=record.submission.author,
        filename=record.submission.filename,
        sha256=record.submission.sha256,
        is_baseline=record.submission.is_baseline,
        cases=cases,
        time=score_of([case.timing.batches for case in record.timed if case.timing is not None]),
        light_share=_light_share(cases),
        doubts=record.doubts,
    )


def _case_score(case: CaseResult) -> CaseScore:
    assert case.timing is not None
    return CaseScore(
        spec={key: value for key, value in case.spec.items() if key != "seed"},
        time=summarise(case.timing.batches),
        roofline_ns=case.timing.roofline_ns,
        precision=case.judgement.precision if case.judgement else None,
    )


def _light_share(cases: Sequence[CaseScore]) -> float | None:
    shares = [case.roofline_ns / case.time.time_ns for case in cases if case.roofline_ns and case.time.time_ns > 0]
    return math.exp(fmean(map(math.log, shares))) if len(shares) == len(cases) else None


def rank(entries: Iterable[Record | Score]) -> list[Board]:
    """One board per problem, version of it, device model and timing class, by problem, the newest entry's board first.

    Entries that may not be ranked are left out, and so are those with a doubt that no clearance among them answers. An
    author's file has one row, its best. Entries that were timed on other cases (seeds aside) have no common scale: the
    newest entry's cases are the board's, and entries on others wait until they are run again.
    """
    boards: defaultdict[BoardKey, list[Score]] = defaultdict(list)
    for entry in entries:
        found = score(entry) if isinstance(entry, Record) else entry
        if found is not None and found.is_ranked:
            boards[found.board].append(found)
    newest = {key: max(utc(each.created) for each in scores) for key, scores in boards.items()}
    keys = sorted(sorted(boards), key=lambda key: newest[key], reverse=True)
    return [_board(key, boards[key]) for key in sorted(keys, key=lambda key: key.problem)]


def _board(key: BoardKey, scores: Sequence[Score]) -> Board:
    asked = _cases_asked(max(scores, key=lambda each: utc(each.created)))
    best: dict[tuple[str, str], Score] = {}
    for each in sorted((each for each in scores if _cases_asked(each) == asked), key=_order):
        best.setdefault((each.author, each.filename), each)
    rows = _rows(list(best.values()))
    return Board(key.problem, key.problem_hash, key.device_model, key.timing_class, rows)


def _cases_asked(score: Score) -> Hashable:
    return tuple(sorted(json.dumps(case.spec, sort_keys=True) for case in score.cases))


def _order(score: Score) -> tuple[float, datetime]:
    """By time, older first where equal; what could not be told from nothing counts as long as it may have taken."""
    return score.time.time_ns or _high(score), utc(score.created)


def _rows(scores: Sequence[Score]) -> tuple[Row, ...]:
    """Ranks: as many places before an entry as are surely faster, as many behind as are surely slower."""
    lows = sorted(each.time.low_ns for each in scores)
    highs = sorted(_high(each) for each in scores)
    baseline = next((each for each in scores if each.is_baseline), None)
    return tuple(
        Row(
            rank=1 + bisect_left(highs, each.time.low_ns),
            rank_to=bisect_right(lows, _high(each)),
            score=each,
            speedup=_speedup(baseline, each),
        )
        for each in scores
    )


def _high(score: Score) -> float:
    return math.inf if score.time.high_ns is None else score.time.high_ns


def _speedup(baseline: Score | None, score: Score) -> float | None:
    if baseline is None or baseline.time.time_ns <= 0 or score.time.time_ns <= 0:
        return None
    return baseline.time.time_ns / score.time.time_ns


def utc(created: str) -> datetime:
    """An ISO 8601 time, UTC where it names no zone, as a UTC datetime without one."""
    moment = datetime.fromisoformat(created)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
