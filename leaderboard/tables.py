"""What people read: a record's cases and a board's rows as tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.record import CaseResult, Record
from harness.statistics import Summary, claimed_ns, summarise
from leaderboard.ranking import Board, score, speed_of_light

MARKS = {"passed": ("✓", "green"), "not-run": ("–", "dim")}
CLASSES = {
    "gated": "GPU time, read from outside",
    "host-synchronising": "wall time of single calls: this kernel waits for the GPU itself",
    "cpu": "CPU wall time, small cases",
    "interpreter": "Triton's interpreter on the CPU, small cases: says nothing about a GPU",
}


def duration(time_ns: float) -> str:
    """A time with three or four digits and its unit."""
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        value = time_ns / scale
        if value < 999.5 or unit == "s":
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    raise AssertionError("unreachable")


def precise_duration(time_ns: float) -> str:
    """A time with the digits that a comparison needs."""
    scale, unit = next(
        ((scale, unit) for unit, scale in (("ms", 1e6), ("µs", 1e3)) if time_ns >= scale * (10 if unit == "ms" else 1)),
        (1.0, "ns"),
    )
    return f"{time_ns / scale:.2f} {unit}"


def spread(summary: Summary) -> str:
    """Half of the 95 % interval in percent."""
    return (
        "± ?"
        if summary.half_width > 9.99
        else f"±{100 * summary.half_width:.{1 if summary.half_width >= 0.01 else 2}f} %"
    )


def percent(share: float | None) -> str:
    """A share, or a dash."""
    return "–" if share is None else f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def case_table(record: Record) -> RenderableType:
    """Every case: verdict and error, and where it was timed, both clocks and the share of the speed of light."""
    parts: list[RenderableType] = []
    tests = [case for case in record.cases if case.stage == "test"]
    timed = [case for case in record.cases if case.stage == "benchmark"]
    if tests:
        parts.append(_test_table(tests))
    if timed:
        parts.append(_time_table(timed))
    return Group(*parts)


def _mark(case: CaseResult) -> Text:
    mark, colour = MARKS.get(case.outcome.verdict, ("✗", "red"))
    return Text(mark, colour)


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", width=1)
    for title, right in columns:
        table.add_column(title, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table


def _test_table(cases: Iterable[CaseResult]) -> RenderableType:
    table = _table(
        ("test", False), ("verdict", False), ("worst row", True), ("limit", True), ("as", False), ("gpumode", False)
    )
    notes: list[RenderableType] = []
    for case in cases:
        judged = case.judgement
        row = "–" if judged is None or judged.row_error is None else f"{judged.row_error:.2g}"
        limit = "" if judged is None or judged.row_limit is None else f"{judged.row_limit:.2g}"
        precision = judged.precision or "" if judged else ""
        published = judged.gpumode or "" if judged else ""
        table.add_row(_mark(case), case.name, case.outcome.verdict, row, limit, precision, published)
        notes += _note(case)
    return Group(table, *notes, Text())


def _time_table(cases: Iterable[CaseResult]) -> RenderableType:
    table = _table(
        ("benchmark", False), ("time", True), ("95 %", True), ("events", True), ("of light", True), ("bound", False)
    )
    notes: list[RenderableType] = []
    for case in cases:
        name = " ".join(f"{key}={value}" for key, value in case.spec.items() if key != "seed")
        if case.timing is None:
            table.add_row(_mark(case), name, case.outcome.verdict, "", "", "", "")
        else:
            summary, claimed = summarise(case.timing.batches), claimed_ns(case.timing)
            light = case.timing.roofline_ns / summary.time_ns if case.timing.roofline_ns and summary.time_ns else None
            table.add_row(
                _mark(case) if not case.doubts else Text("?", "yellow"),
                name,
                precise_duration(summary.time_ns),
                spread(summary),
                "" if claimed is None else precise_duration(claimed),
                percent(light),
                case.timing.roofline_bound or "",
            )
        notes += _note(case)
    return Group(table, *notes, Text())


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
        result = score(record)
        light = speed_of_light(record)
        text = f"score {precise_duration(result.time_ns)} {spread(result)}, geometric mean of {len(record.timed)} cases"
        lines.append(Text(text + (f", {percent(light)} of the speed of light" if light else ""), "bold"))
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
    heading.append(f"\n{CLASSES.get(board.timing_class, board.timing_class)}; {len(board.cases)} cases", "not bold dim")
    columns = [("rank", True), ("file", False), ("author", False), ("score", True), ("95 %", True)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title, right in (*columns, ("of light", True), ("vs torch", True), ("as", False), ("id", False)):
        table.add_column(title, justify="right" if right else "left", no_wrap=right or title == "id", overflow="fold")
    for row in board.rows:
        table.add_row(
            row.rank,
            row.filename + (" (baseline)" if row.is_baseline else ""),
            row.author,
            precise_duration(row.score.time_ns),
            spread(row.score),
            percent(row.speed_of_light),
            "–" if row.speedup is None else f"{row.speedup:.2f}×",
            ", ".join(row.precisions) or "–",
            row.id,
        )
    return Group(heading, table, Text())
