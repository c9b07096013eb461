"""What `podium watch` shows after a save: this run beside the last one and beside the best. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.text import Text

from harness.record import CaseResult, Record, Scalar
from harness.statistics import Summary, geometric_mean, summarise
from leaderboard.grid import Column, Grid, Line
from leaderboard.ranking import BoardKey, Score
from leaderboard.tables import CLASSES, case_table, plain, spread, summary_lines, time_of

Spec = dict[str, Scalar]

COLUMNS = (
    Column("case", is_left=True, least=16),
    Column("time"),
    Column("95 %"),
    Column("vs last"),
    Column("vs best"),
)


@dataclass(frozen=True)
class Times:
    """A run as far as another one can be compared with it."""

    label: str
    """What it is called below a table: run 3, record 3f9a01bc."""
    board: BoardKey
    """Times of different boards are never compared."""
    cases: tuple[tuple[Spec, Summary], ...]
    """The timed ones, in the run's order; a ranked record's are without their seeds."""
    is_clean: bool
    """Passed without a doubt: it may be the best."""

    def find(self, spec: Spec) -> Summary | None:
        """The time of this very case, else of the same sizes on another seed; None if there is neither."""
        found = [(asked != spec, time) for asked, time in self.cases if _shape(asked) == _shape(spec)]
        return min(found, key=lambda each: each[0])[1] if found else None

    def score(self, specs: Iterable[Spec]) -> Summary | None:
        """Geometric mean over these cases alone; None where one of them was not timed, or there are none."""
        found = [self.find(spec) for spec in specs]
        times = [time for time in found if time is not None]
        return geometric_mean(times) if times and len(times) == len(found) else None


def times(record: Record, label: str) -> Times:
    """What a record has to compare."""
    cases = tuple((case.spec, summarise(case.timing.batches)) for case in record.timed if case.timing)
    board = BoardKey(record.problem.name, record.problem.content_hash, record.device.model, record.timing_class)
    return Times(label, board, cases, record.outcome.verdict == "passed" and not record.doubts)


def ranked_times(score: Score) -> Times:
    """What a ranked record has to compare."""
    label = f"record {score.record_id} ({score.filename} by {score.author})"
    return Times(label, score.board, tuple((case.spec, case.time) for case in score.cases), is_clean=True)


def last_of(runs: Sequence[Times], now: Times) -> Times | None:
    """The newest of `runs`, oldest first, that was timed as `now` was."""
    return next((run for run in reversed(runs) if run.cases and run.board == now.board), None)


def best_of(runs: Iterable[Times], now: Times) -> Times | None:
    """The fastest clean run over the cases of `now`, among those that were timed as it was and have them all."""
    specs = [spec for spec, _ in now.cases]
    clean = ((run.score(specs), run) for run in runs if run.is_clean and run.board == now.board)
    scored = [(score, run) for score, run in clean if score is not None]
    return min(scored, key=lambda each: each[0].time_ns or _high(each[0]))[1] if scored else None


def ratios(record: Record, other: Times | None) -> dict[str, float | None]:
    """This run's time over the other's by case name; None where one of them has no time."""
    return {case.name: _ratio(time, other.find(case.spec) if other else None) for case, time in _timed(record)}


def farewell(count: int, runs: Sequence[Times]) -> str:
    """The line at the end of a session of `count` runs."""
    clean = [run for run in runs if run.is_clean and run.cases]
    best = best_of(clean, clean[-1]) if clean else None
    score = best.score(spec for spec, _ in clean[-1].cases) if best else None
    result = f"best {time_of(score)}" if score else "none with a score"
    return f"stopped watching; {_count(count, 'run')}, {result}"


# --- the table ---------------------------------------------------------------------------------------------


def difference(record: Record, last: Times | None, best: Times | None) -> RenderableType:
    """Every timed case and the score beside two other runs' (None where there is none), then what went wrong."""
    parts: list[RenderableType] = []
    if record.timed:
        lines = _lines(record, last, best)
        parts += [Grid(COLUMNS, lines), *_notes(record, lines, last, best)]
    if record.outcome.verdict == "passed" and not record.doubts:
        return Group(_tests_line(record), *parts)
    wrong = tuple(case for case in record.cases if case.outcome.verdict != "passed" or case.doubts)
    if any(case.outcome.verdict != "not-run" for case in wrong):
        parts.append(case_table(replace(record, cases=wrong)))
    return Group(*parts, *summary_lines(record))


def _lines(record: Record, last: Times | None, best: Times | None) -> tuple[Line, ...]:
    timed = _timed(record)
    others = (last, best)
    lines = [
        _line(Text(label), time, [other.find(case.spec) if other else None for other in others])
        for label, (case, time) in zip(_labels([case for case, _ in timed]), timed, strict=True)
    ]
    if record.outcome.verdict == "passed":
        specs = [case.spec for case, _ in timed]
        score = geometric_mean([time for _, time in timed])
        lines.append(_line(Text("score", "bold"), score, [other.score(specs) if other else None for other in others]))
    return tuple(lines)


def _line(label: Text, time: Summary, others: Sequence[Summary | None]) -> Line:
    return Line((label, Text(time_of(time)), Text(spread(time)), *(change(time, other) for other in others)))


def change(now: Summary, then: Summary | None) -> Text:
    """By how much a time has changed, where the intervals say that it surely has."""
    if then is None:
        return Text()
    if now.low_ns <= _high(then) and then.low_ns <= _high(now):
        return Text("=", "dim")
    word, colour = ("faster", "green") if now.low_ns < then.low_ns else ("slower", "red")
    ratio = _ratio(now, then)
    if ratio is None:
        return Text(word, colour)
    share = 100 * (ratio - 1)
    return Text(f"{share:+.{2 if abs(share) < 1 else 1}f} %", colour)


def _labels(cases: Sequence[CaseResult]) -> list[str]:
    """What tells the cases from each other; all there is where nothing does."""
    shapes = [_shape(case.spec) for case in cases]
    varied = [key for key in shapes[0] if any(shape.get(key) != shapes[0][key] for shape in shapes)]
    return [plain(" ".join(f"{key}={shape[key]}" for key in varied or shape if key in shape)) for shape in shapes]


def _notes(record: Record, lines: Sequence[Line], last: Times | None, best: Times | None) -> list[Text]:
    said = [CLASSES[record.timing_class]]
    said += [f"{name}: {plain(run.label)}" for name, run in (("last", last), ("best", best)) if run]
    notes = [Text("; ".join(said), "dim")]
    if any(cell.plain == "=" for line in lines for cell in line.cells):
        notes.append(Text("=: the same, the 95 % intervals overlap", "dim"))
    return notes


def _tests_line(record: Record) -> Text:
    return Text(f"passed: {_count(sum(case.stage == 'test' for case in record.cases), 'test')}", "green")


# --- numbers -----------------------------------------------------------------------------------------------


def _timed(record: Record) -> list[tuple[CaseResult, Summary]]:
    return [(case, summarise(case.timing.batches)) for case in record.timed if case.timing]


def _shape(spec: Spec) -> Spec:
    return {key: value for key, value in spec.items() if key != "seed"}


def _ratio(now: Summary, then: Summary | None) -> float | None:
    return now.time_ns / then.time_ns if then is not None and now.time_ns > 0 and then.time_ns > 0 else None


def _high(time: Summary) -> float:
    return math.inf if time.high_ns is None else time.high_ns


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
