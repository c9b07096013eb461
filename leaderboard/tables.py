"""What people read: a record's cases and a board's rows as tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from harness.record import CaseResult, Doubt, Record, Scalar
from harness.statistics import Summary, claimed_ns, score, summarise
from leaderboard.clearance import Clearance, open_doubts
from leaderboard.grid import Column, Grid, Line
from leaderboard.launches import launch_sentences
from leaderboard.ranking import Board, Row

MARKS = {"passed": ("✓", "green"), "not-run": ("–", "dim")}
CLASSES = {
    "gated": "GPU time, read from outside",
    "host-synchronising": "wall time of single calls: this kernel waits for the GPU itself",
    "cpu": "CPU wall time, small cases",
    "interpreter": "Triton's interpreter on the CPU, small cases: says nothing about a GPU",
}
DOUBTS: dict[Doubt, str] = {
    "clocks-disagree": "the kernel's own events and the clock outside its process tell different times",
    "below-roofline": "faster than this device can move or compute what the case needs",
    "async-work": "work went on after the call had ended",
    "input-modified": "the inputs were changed",
    "state-carried": "the first call on new contents is slower: something is kept from call to call",
    "sandbox-denied": "it tried something that its sandbox forbids",
    "unsteady-device": "the device was not steady while it was timed",
}
SECRET_SEED = 1 << 32
"""Seeds from here on are long and say nothing. `--json` has them, and those of timed cases."""

Cells = dict[str, str]


# --- numbers -----------------------------------------------------------------------------------------------


def precise_duration(time_ns: float) -> str:
    """A time with the digits that a comparison needs, in a unit that one reads at a glance."""
    for unit, scale, least in (("s", 1e9, 1e10), ("ms", 1e6, 1e7), ("µs", 1e3, 1e3)):
        if time_ns >= least:
            return f"{time_ns / scale:.2f} {unit}"
    return f"{time_ns:.2f} ns"


def time_of(summary: Summary) -> str:
    """A summary's time; where the readings only bound it, its bound."""
    if summary.time_ns > 0:
        return precise_duration(summary.time_ns)
    return "–" if summary.high_ns is None else f"< {precise_duration(summary.high_ns)}"


def spread(summary: Summary) -> str:
    """Half of the 95 % interval in percent; ± ? where that says nothing."""
    half = summary.half_width
    if half is None or half >= 1:
        return "± ?"
    return f"±{100 * half:.{2 if half < 0.01 else 1}f} %"


def percent(share: float | None) -> str:
    """A share, or a dash."""
    return "–" if share is None else f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def plain(text: str) -> str:
    """Text from files and processes with nothing in it that a terminal would obey."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text.expandtabs(4))


# --- one record --------------------------------------------------------------------------------------------

CASE = Column("", least=16, is_left=True)
TEST_COLUMNS = (
    Column("verdict", is_left=True),
    Column("worst row"),
    Column("limit"),
    Column("as", is_left=True),
    Column("gpumode", is_left=True),
)
TIME_COLUMNS = (
    Column("time"),
    Column("95 %"),
    Column("events"),
    Column("of light"),
    Column("bound", is_left=True, spare=3),
    Column("worst row", spare=4),
    Column("as", is_left=True, spare=1),
    Column("gpumode", is_left=True, spare=2),
)


def case_table(record: Record) -> RenderableType:
    """Every case: verdict and error, and where it was timed, both clocks and the share of the speed of light."""
    tests = [case for case in record.cases if case.stage == "test"]
    timed = [case for case in record.cases if case.stage == "benchmark"]
    parts = [_section("test", tests, TEST_COLUMNS, _test_cells)] if tests else []
    parts += [_section("benchmark", timed, TIME_COLUMNS, _time_cells)] if timed else []
    return Group(*parts)


def _is_hidden(title: str, key: str, value: Scalar) -> bool:
    return key == "seed" and (title == "benchmark" or (isinstance(value, int) and value >= SECRET_SEED))


def _section(
    title: str, cases: Sequence[CaseResult], columns: Sequence[Column], cells: Callable[[CaseResult], Cells]
) -> RenderableType:
    common = _common(cases)
    lines: list[Line] = []
    said_before: set[str] = set()
    for reason, group in groupby(cases, _not_run):
        alike = list(group)
        if reason is not None and len(alike) > 1:
            lines.append(_line(alike[0], f"{len(alike)} not run", {}, columns, [Text(plain(reason))]))
            continue
        for case in alike:
            shown = [key for key in case.spec if key not in common and not _is_hidden(title, key, case.spec[key])]
            words = [f"{key}={case.spec[key]}" for key in shown]
            lines.append(_line(case, " ".join(words), cells(case), columns, _notes(case, said_before)))
            said_before.add(case.outcome.message)
    grid = Grid((Column("", is_left=True), Column(title, True, CASE.least), *columns), tuple(lines))
    is_listed = len(lines) > 1 or len(cases) == 1
    said = " ".join(
        f"{key}={value}" for key, value in common.items() if is_listed and not _is_hidden(title, key, value)
    )
    return Group(grid, *([Text(f"   every case: {plain(said)}", "dim")] if said else []), Text())


def _common(cases: Sequence[CaseResult]) -> dict[str, Scalar]:
    """What all of several cases have in common is said once."""
    if len(cases) < 2:
        return {}
    first = cases[0].spec
    return {key: value for key, value in first.items() if all(case.spec.get(key) == value for case in cases)}


def _not_run(case: CaseResult) -> str | None:
    return case.outcome.message if case.outcome.verdict == "not-run" else None


def _line(case: CaseResult, label: str, cells: Cells, columns: Sequence[Column], notes: Sequence[Text]) -> Line:
    mark, colour = ("?", "yellow") if case.doubts else MARKS.get(case.outcome.verdict, ("✗", "red"))
    found = (Text(plain(cells.get(column.title, ""))) for column in columns)
    return Line((Text(mark, colour), Text(plain(label)), *found), tuple(notes))


def _test_cells(case: CaseResult) -> Cells:
    return {"verdict": case.outcome.verdict, **_judged_cells(case)}


def _time_cells(case: CaseResult) -> Cells:
    timing = case.timing
    if timing is None:
        return {"time": case.outcome.verdict, **_judged_cells(case)}
    summary, claimed = summarise(timing.batches), claimed_ns(timing)
    light = timing.roofline_ns / summary.time_ns if timing.roofline_ns and summary.time_ns > 0 else None
    return {
        "time": time_of(summary),
        "95 %": spread(summary),
        "events": "" if claimed is None else precise_duration(claimed),
        "of light": "" if light is None else percent(light),
        "bound": timing.roofline_bound or "",
        **_judged_cells(case),
    }


def _judged_cells(case: CaseResult) -> Cells:
    judged = case.judgement
    if judged is None:
        return {}
    return {
        "worst row": "" if judged.row_error is None else f"{judged.row_error:.2g}",
        "limit": "" if judged.row_limit is None else f"{judged.row_limit:.2g}",
        "as": judged.precision or "",
        "gpumode": judged.gpumode or "",
    }


def _notes(case: CaseResult, said_before: Collection[str] = ()) -> list[Text]:
    """What there is to say about a case, and how to run it again; what was said of another case is not said again."""
    notes = [Text(f"{doubt}: {DOUBTS[doubt]}", "yellow") for doubt in case.doubts]
    if case.outcome.verdict != "passed" and case.outcome.message in said_before:
        notes.append(Text("the same", "dim"))
    elif case.outcome.verdict != "passed":
        notes.append(Text(plain(case.outcome.message)))
        if case.outcome.verdict != "not-run":
            what = "its sizes on other contents" if case.is_hidden else "it alone"
            notes.append(Text(f"to run {what}: --case '{plain(case.name)}'", "dim"))
    elif case.judgement is not None and case.judgement.gpumode == "fail":
        notes.append(Text(plain(f"the published check refuses it: {case.judgement.gpumode_message}"), "yellow"))
    return notes


def summary_lines(record: Record, clearances: Sequence[Clearance] = ()) -> list[Text]:
    """The verdict and the score, where they hold, what is cleared of its doubts, and remarks."""
    device = plain(record.device.model + (f" ({record.device.architecture})" if record.device.architecture else ""))
    lines = [_verdict_line(record)]
    wanting = ""
    if record.outcome.verdict == "passed" and record.timed:
        result = score([case.timing.batches for case in record.timed if case.timing])
        text = f"score {time_of(result)} {spread(result)}, geometric mean of {_count(len(record.timed), 'case')}"
        processes = max(case.timing.processes for case in record.timed if case.timing)
        text += f" in {processes} processes" if processes > 1 else ""
        wanting = _wanting(record, result)
        lines.append(Text(text, "bold"))
        lines.append(Text(f"{CLASSES[record.timing_class]}; {device}", "dim"))
    else:
        lines.append(Text(device, "dim"))
    lines += doubt_lines(record, clearances)
    if record.unsteady:
        lines.append(Text(plain(f"the times cannot be trusted: {record.unsteady}"), "yellow"))
    if record.refused:
        asked = ", ".join(record.refused)
        lines.append(Text(plain(f"it asked the system for what no kernel needs, and was refused: {asked}"), "yellow"))
    elif wanting:
        lines.append(Text(wanting, "dim"))
    missing = ", ".join(layer.name for layer in record.isolation if not layer.applied)
    lines += [Text(plain(f"not isolated by: {missing}"), "dim")] if missing else []
    if record.secret is not None and record.secret.commitment is not None:
        lines.append(Text(plain(f"hidden cases of the seed file with SHA-256 {record.secret.commitment}"), "dim"))
    lines += [Text(plain(note), "dim") for note in (*launch_sentences(record), *record.notes)]
    if record.output.strip() and record.outcome.verdict != "passed":
        last = "\n".join(record.output.strip().splitlines()[-10:])[-2000:]
        lines.append(Text(f"it printed:\n{plain(last)}", "dim"))
    return lines


def doubt_lines(record: Record, clearances: Sequence[Clearance]) -> list[Text]:
    """Whether its doubts keep a record off the board, and what was cleared of them; nothing where it has none."""
    left = open_doubts(record.doubts, clearances)
    lines = [Text(f"passed with doubts, and therefore not ranked: {', '.join(left)}", "yellow")] if left else []
    if record.doubts and not left:
        lines.append(Text("passed with doubts, all of them cleared, and therefore ranked", "yellow"))
    return [*lines, *(Text(plain(f"{each.doubt}: cleared {each}"), "yellow") for each in clearances)]


def _wanting(record: Record, found: Summary) -> str:
    """That a score is less exact than was asked; nothing where it is exact enough."""
    if record.precision is None or record.mode != "leaderboard" or record.timing_class != "gated":
        return ""
    if found.half_width is None or found.half_width <= record.precision:
        return ""
    return f"less exact than ±{100 * record.precision:g} %: its processes differ by more than that"


def _verdict_line(record: Record) -> Text:
    who = plain(f"{record.submission.filename} by {record.submission.author} on {record.problem.name}")
    if record.outcome.verdict == "passed":
        return Text(f"passed: {who}", "bold yellow" if record.doubts else "bold green")
    text = Text(f"{record.outcome.verdict}: {who}", "bold red")
    if all(case.outcome.verdict == "not-run" for case in record.cases):
        text.append(f"\n{plain(record.outcome.message)}", "not bold default")
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- boards ------------------------------------------------------------------------------------------------

BOARD_COLUMNS = (
    Column("rank"),
    Column("id", is_left=True),
    Column("file", is_left=True, least=14),
    Column("author", is_left=True, least=8, is_cut=True),
    Column("score"),
    Column("95 %"),
    Column("of light", spare=2),
    Column("vs torch"),
    Column("as", is_left=True, spare=3),
)


def board_table(board: Board) -> RenderableType:
    """One board, fastest first."""
    heading = Text(plain(board.problem), "bold").append(f"  {plain(board.device_model)}", "not bold")
    authors = {row.score.author for row in board.rows}
    cases = _count(len(board.rows[0].score.cases) if board.rows else 0, "case")
    by = f"; all by {plain(authors.pop())}" if len(authors) == 1 else ""
    heading.append(f"\n{CLASSES[board.timing_class]}; geometric mean of {cases}{by}", "not bold dim")
    columns = tuple(column for column in BOARD_COLUMNS if not (by and column.title == "author"))
    lines = (_board_cells(row) for row in board.rows)
    grid = Grid(columns, tuple(Line(tuple(Text(plain(cells[each.title])) for each in columns)) for cells in lines))
    return Group(heading, grid, *(Text(note, "dim") for note in _board_notes(board)), Text())


def _board_cells(row: Row) -> Cells:
    score = row.score
    return {
        "rank": _rank(row),
        "id": score.record_id,
        "file": score.filename + ("*" if score.is_baseline else "") + ("†" if score.clearances else ""),
        "author": score.author,
        "score": time_of(score.time),
        "95 %": spread(score.time),
        "of light": "" if score.light_share is None else percent(score.light_share),
        "vs torch": "" if row.speedup is None else f"{row.speedup:.2f}×",
        "as": ", ".join(score.precisions),
    }


def _board_notes(board: Board) -> list[str]:
    notes = []
    if any(row.score.is_baseline for row in board.rows):
        notes.append("* the shipped torch baseline")
    if any(row.rank != row.rank_to for row in board.rows):
        notes.append("a range of ranks: the 95 % intervals overlap")
    cleared = [(row.score.record_id, each) for row in board.rows for each in row.score.clearances]
    return notes + [plain(f"† {record_id}: {each.doubt}, cleared {each}") for record_id, each in cleared]


def _rank(row: Row) -> str:
    return str(row.rank) if row.rank == row.rank_to else f"{row.rank}–{row.rank_to}"


LIST_COLUMNS = (
    Column("problem", is_left=True, least=12),
    Column("device", is_left=True, least=12),
    Column("clock", is_left=True),
    Column("entries"),
    Column("best"),
    Column("file", is_left=True, least=14),
    Column("author", is_left=True, least=8, is_cut=True, spare=1),
)


def board_list(boards: Sequence[Board]) -> RenderableType:
    """Boards, a line each: how many entries, and the best."""
    return Grid(LIST_COLUMNS, tuple(_list_line(board) for board in boards if board.rows))


def _list_line(board: Board) -> Line:
    best = board.rows[0].score
    place = (board.problem, board.device_model, board.timing_class, str(len(board.rows)))
    return Line(tuple(Text(plain(cell)) for cell in (*place, time_of(best.time), best.filename, best.author)))
