"""What people read: a record's cases and a board's rows as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.record import CaseResult, Record
from harness.statistics import Summary, claimed_ns, geometric_mean, summarise
from leaderboard.ranking import Board, Row

MARKS = {"passed": ("✓", "green"), "not-run": ("–", "dim")}
CLASSES = {
    "gated": "GPU time, read from outside",
    "host-synchronising": "wall time of single calls: this kernel waits for the GPU itself",
    "cpu": "CPU wall time, small cases",
    "interpreter": "Triton's interpreter on the CPU, small cases: says nothing about a GPU",
}


def precise_duration(time_ns: float) -> str:
    """A time with the digits that a comparison needs."""
    scale, unit = next(
        ((scale, unit) for unit, scale in (("ms", 1e6), ("µs", 1e3)) if time_ns >= scale * (10 if unit == "ms" else 1)),
        (1.0, "ns"),
    )
    return f"{time_ns / scale:.2f} {unit}"


def spread(summary: Summary) -> str:
    """Half of the 95 % interval in percent."""
    half = summary.half_width
    if half is None or half > 9.99:
        return "± ?"
    return f"±{100 * half:.{2 if half < 0.01 else 1}f} %"


def percent(share: float | None) -> str:
    """A share, or a dash."""
    return "–" if share is None else f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def case_table(record: Record) -> RenderableType:
    """Every case: verdict and error, and where it was timed, both clocks and the share of the speed of light."""
    tests = [case for case in record.cases if case.stage == "test"]
    timed = [case for case in record.cases if case.stage == "benchmark"]
    parts = [_section("test", tests, _test_cells)] if tests else []
    parts += [_section("benchmark", timed, _time_cells)] if timed else []
    return Group(*parts)


Cells = dict[str, str]
"""A row's cells by column title; a column that is empty in every row is left out."""
LEFT = ("verdict", "as", "gpumode", "bound")


def _section(title: str, cases: Sequence[CaseResult], cells: Callable[[CaseResult], Cells]) -> RenderableType:
    rows = [cells(case) for case in cases]
    titles = [name for name in rows[0] if any(row[name] for row in rows)]
    same = (
        {key for key in cases[0].spec if len({str(case.spec.get(key)) for case in cases}) == 1}
        if len(cases) > 1
        else set()
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("", width=1)
    table.add_column(title, overflow="fold", min_width=16)
    for name in titles:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True)
    for case, row in zip(cases, rows, strict=True):
        words = [f"{key}={value}" for key, value in case.spec.items() if key not in same and not _is_secret(case, key)]
        table.add_row(_mark(case), Text(" ".join(words)), *(Text(row[name]) for name in titles))
    common = " ".join(f"{key}={value}" for key, value in cases[0].spec.items() if key in same)
    parts: list[RenderableType] = [table]
    if common:
        parts.append(Padding(Text(f"every case: {common}", "dim"), (0, 0, 0, 3)))
    return Group(*parts, *(note for case in cases for note in _note(case)), Text())


def _is_secret(case: CaseResult, key: str) -> bool:
    """Seeds of timed cases are long and say nothing; `--json` has them."""
    return key == "seed" and case.stage == "benchmark"


def _mark(case: CaseResult) -> Text:
    if case.doubts:
        return Text("?", "yellow")
    mark, colour = MARKS.get(case.outcome.verdict, ("✗", "red"))
    return Text(mark, colour)


def _test_cells(case: CaseResult) -> Cells:
    judged = case.judgement
    return {
        "verdict": case.outcome.verdict,
        "worst row": "" if judged is None or judged.row_error is None else f"{judged.row_error:.2g}",
        "limit": "" if judged is None or judged.row_limit is None else f"{judged.row_limit:.2g}",
        "as": (judged.precision or "") if judged else "",
        "gpumode": (judged.gpumode or "") if judged else "",
    }


def _time_cells(case: CaseResult) -> Cells:
    timing = case.timing
    if timing is None:
        empty = dict.fromkeys(("95 %", "events", "of light", "bound"), "")
        return {"time": case.outcome.verdict, **empty}
    summary, claimed = summarise(timing.batches), claimed_ns(timing)
    light = timing.roofline_ns / summary.time_ns if timing.roofline_ns and summary.time_ns > 0 else None
    return {
        "time": precise_duration(summary.time_ns),
        "95 %": spread(summary),
        "events": "" if claimed is None else precise_duration(claimed),
        "of light": "" if light is None else percent(light),
        "bound": timing.roofline_bound or "",
    }


def _note(case: CaseResult) -> list[RenderableType]:
    """What is wrong with a case, below its table."""
    if case.doubts:
        return [Padding(Text(f"? {case.name}: {', '.join(case.doubts)}", "yellow"), (0, 0, 0, 2))]
    if case.outcome.verdict in ("passed", "not-run"):
        return []
    return [Padding(Text(f"✗ {case.name}: {case.outcome.message}"), (0, 0, 0, 2))]


def summary_lines(record: Record) -> list[Text]:
    """The verdict and the score, where they hold, and remarks."""
    device = record.device.model + (f" ({record.device.architecture})" if record.device.architecture else "")
    lines = [_verdict_line(record)]
    if record.outcome.verdict == "passed" and record.timed:
        result = geometric_mean([summarise(case.timing.batches) for case in record.timed if case.timing])
        text = f"score {precise_duration(result.time_ns)} {spread(result)}, geometric mean of {len(record.timed)} cases"
        lines.append(Text(text, "bold"))
        lines.append(Text(f"{CLASSES[record.timing_class]}; {device}", "dim"))
    else:
        lines.append(Text(device, "dim"))
    if record.doubts:
        lines.append(Text("passed with doubts, and therefore not ranked", "yellow"))
    lines += [Text(note, "dim") for note in record.notes]
    if record.output.strip() and record.outcome.verdict != "passed":
        lines.append(Text("it printed:\n" + "\n".join(record.output.strip().splitlines()[-10:])[-2000:], "dim"))
    return lines


def _verdict_line(record: Record) -> Text:
    who = f"{record.submission.filename} by {record.submission.author} on {record.problem.name}"
    if record.outcome.verdict == "passed":
        return Text(f"passed: {who}", "bold green")
    text = Text(f"{record.outcome.verdict}: {who}", "bold red")
    if all(case.outcome.verdict == "not-run" for case in record.cases):
        text.append(f"\n{record.outcome.message}", "not bold default")
    return text


def board_table(board: Board) -> RenderableType:
    """One board, fastest first."""
    heading = Text(board.problem, "bold")
    heading.append(f"  {board.device_model}", "default")
    cases = len(board.rows[0].score.cases) if board.rows else 0
    heading.append(f"\n{CLASSES[board.timing_class]}; geometric mean of {cases} cases", "not bold dim")
    rows = [_board_cells(row) for row in board.rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for title in [name for name in rows[0] if any(row[name] for row in rows)] if rows else []:
        if title == "author":
            table.add_column(title, no_wrap=True, overflow="ellipsis", max_width=12)
        elif title == "file":
            table.add_column(title, overflow="fold", min_width=20)
        else:
            table.add_column(title, justify="left" if title in ("id", "as") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[column.header]) for column in table.columns if isinstance(column.header, str)))
    note = "* the shipped torch baseline\n" if any(row.score.is_baseline for row in board.rows) else ""
    return Group(heading, table, Text(note, "dim"))


def _board_cells(row: Row) -> Cells:
    score = row.score
    return {
        "rank": _rank(row),
        "id": score.record_id,
        "file": score.filename + ("*" if score.is_baseline else ""),
        "author": score.author,
        "score": precise_duration(score.time.time_ns),
        "95 %": spread(score.time),
        "of light": "" if score.light_share is None else percent(score.light_share),
        "vs torch": "" if row.speedup is None else f"{row.speedup:.2f}×",
        "as": ", ".join(score.precisions),
    }


def _rank(row: Row) -> str:
    return str(row.rank) if row.rank == row.rank_to else f"{row.rank}–{row.rank_to}"
