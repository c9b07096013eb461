"""What `podium compare` shows: places, a verdict per pair, and case by case how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from harness.compare import TIE_SHARE, CaseSamples, Comparison, Entry, PairResult, PairVerdict, Ratio, Standing
from harness.record import Scalar
from harness.statistics import Summary, summarise
from leaderboard.grid import Column, Grid, Line
from leaderboard.tables import CLASSES, percent, plain, precise_duration, spread, time_of

COLOURS: dict[PairVerdict, str] = {
    "FASTER": "green",
    "SLOWER": "red",
    "TIE": "blue",
    "UNRESOLVED": "yellow",
    "INVALID": "red",
}
ALL_PAIRS = 3
"""With more kernels than this, only neighbours in the standings are shown case by case."""
TRACK = 31
"""Characters of a bar; odd, so that "equal" has one of its own."""
FAR = 10.0
"""Ends of an interval beyond this, as a share, are only said to be beyond it."""

Times = dict[tuple[str, str], str]
"""A kernel's time on a case as it is shown, by label and case name."""


def comparison_lines(comparison: Comparison) -> list[RenderableType]:
    """The whole comparison for a terminal, to be printed one below the other."""
    shown = [pair for pair in neighbours(comparison) if pair.cases]
    times, words = case_times(comparison), case_words(comparison)
    tables = [_case_table(pair, times, words) for pair in shown]
    said = common_words(comparison) if tables else ""
    dim = [f"every case: {said}"] if said else []
    dim += ["verdicts of single cases: sure for all pairs and cases together"] if tables else []
    if len(comparison.entries) > ALL_PAIRS:
        dim.append("case by case: neighbours in the standings only; all pairs are in --json")
    return [
        _standings_table(comparison),
        Text(),
        *(
            Text.assemble(before, (word, f"bold {COLOURS[word]}"), after)
            for before, word, after in sentences(comparison)
        ),
        Text(),
        *tables,
        *(Text(line, "dim") for line in dim),
        *(Text(line, style) for line, style in remarks(comparison)),
    ]


# --- numbers -----------------------------------------------------------------------------------------------


def difference(ratio: Ratio) -> str:
    """How much more (+) or less (−) time the first takes, in percent of the second's; empty where nobody knows."""
    known = _known(ratio)
    return "" if known is None else f"{_number(known[1] - 1, _digits(known), '+')} %"


def extent(ratio: Ratio) -> str:
    """The interval of that difference."""
    known = _known(ratio)
    return "" if known is None else _extent(known[0] - 1, known[2] - 1, _digits(known), "+")


def scale_of(ratios: Sequence[Ratio]) -> float:
    """A round share, at least 0.01, that no interval exceeds to either side."""
    ends = [abs(end - 1) for ratio in ratios for end in _known(ratio) or ()]
    largest = max(ends, default=0.0)
    steps = (step * 10.0**power for power in range(-2, 9) for step in (1, 2, 5))
    return next((step for step in steps if largest <= step * (1 + 1e-9)), largest)


def bar(ratio: Ratio, scale: float, width: int = TRACK) -> str:
    """A track from −scale to +scale with the interval and the estimate on it; ┼ is where both take equal time."""
    known = _known(ratio)
    if known is None:
        return ""
    half = width // 2
    low, middle, high = (half + max(-half, min(half, round((end - 1) / scale * half))) for end in known)
    track = ["▒" if low <= index <= high else "─" for index in range(2 * half + 1)]
    track[half] = "┼"
    track[middle] = "█"
    return "".join(track)


def _known(ratio: Ratio) -> tuple[float, float, float] | None:
    if ratio.low is None or ratio.ratio is None or ratio.high is None:
        return None
    return ratio.low, ratio.ratio, ratio.high


def _digits(known: tuple[float, float, float]) -> int:
    """Digits after the point, as many as the interval makes worth reading, and fewer of large numbers."""
    most = max(abs(end - 1) for end in known)
    return min(2 if (known[2] - known[0]) / 2 < 0.001 else 1, 2 if most < 0.1 else 1 if most < 1 else 0)


def _number(share: float, digits: int, sign: str = "") -> str:
    text = f"{100 * share:{sign}.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def _extent(low: float, high: float, digits: int, sign: str = "") -> str:
    far = f">{_number(FAR, 0, sign)}"
    ends = [far if end > FAR else _number(end, digits, sign) for end in (low, high)]
    return f"{ends[0]} … {ends[1]} %" if low <= FAR else f"{far} %"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- verdicts ----------------------------------------------------------------------------------------------


def sentences(comparison: Comparison) -> list[tuple[str, PairVerdict, str]]:
    """A sentence per pair: what stands before the verdict, the verdict, and what stands after it."""
    return [_sentence(pair) for pair in spoken(comparison)]


def spoken(comparison: Comparison) -> list[PairResult]:
    """The pairs, every reason in them once: a failed kernel's stands with its outcome, a pair's is not its cases' too.

    A pair with a failed kernel has no cases.
    """
    return [_spoken(pair, failures(comparison)) for pair in comparison.pairs]


def failures(comparison: Comparison) -> dict[str, str]:
    """The verdicts on the kernels that did not pass, by label."""
    return {each.label: each.outcome.verdict for each in comparison.entries if each.outcome.verdict != "passed"}


def _spoken(pair: PairResult, failed: dict[str, str]) -> PairResult:
    them = [f"{label} did not pass ({failed[label]})" for label in (pair.first, pair.second) if label in failed]
    if them:
        return replace(pair, overall=replace(pair.overall, reason=", ".join(them)), cases=())
    said = pair.overall.reason
    return replace(
        pair,
        cases=tuple((name, replace(each, reason="") if each.reason == said else each) for name, each in pair.cases),
    )


def _sentence(pair: PairResult) -> tuple[str, PairVerdict, str]:
    first, second, ratio = plain(pair.first), plain(pair.second), pair.overall
    known = _known(ratio)
    if known is None or ratio.verdict == "INVALID":
        return f"{first} against {second} is ", ratio.verdict, f": {plain(ratio.reason) or 'nothing was measured'}"
    if ratio.verdict == "TIE":
        is_inside = known[0] >= 1 - TIE_SHARE and known[2] <= 1 + TIE_SHARE
        band = f"within ±{_number(TIE_SHARE, 1)} %" + ("" if is_inside else " at 90 % confidence")
        return f"{first} and {second} ", ratio.verdict, f": {band} ({extent(ratio)})"
    if ratio.verdict == "UNRESOLVED":
        more = ratio.more_blocks
        advice = (
            "" if more is None else f"; about {more} more block{'' if more == 1 else 's'} would tell (--max-seconds)"
        )
        return f"{first} against {second} is ", ratio.verdict, f": {difference(ratio)} ({extent(ratio)}){advice}"
    return f"{first} is ", ratio.verdict, f" than {second}: {_effect(known)}, {_count(ratio.blocks, 'block')}"


def _effect(known: tuple[float, float, float]) -> str:
    low, ratio, high = known
    digits = _digits(known)
    if ratio >= 2:
        return f"{ratio:.2f}× its time ({low:.2f} … {high:.2f}×)"
    if ratio >= 1:
        return f"{_number(ratio - 1, digits)} % more time ({_extent(low - 1, high - 1, digits)})"
    return f"{_number(1 - ratio, digits)} % less time ({_extent(1 - high, 1 - low, digits)})"


def neighbours(comparison: Comparison) -> list[PairResult]:
    """The pairs to show case by case: all of them of a few kernels, else those next to each other in the standings."""
    pairs = spoken(comparison)
    if len(comparison.entries) <= ALL_PAIRS:
        return pairs
    ranked = [each.label for each in comparison.standings if each.rank is not None]
    adjacent = [{first, second} for first, second in pairwise(ranked)]
    return [pair for pair in pairs if {pair.first, pair.second} in adjacent]


# --- standings ---------------------------------------------------------------------------------------------

STANDING_COLUMNS = (
    Column("rank"),
    Column("kernel", is_left=True, least=14),
    Column("time"),
    Column("95 %"),
    Column("of the fastest"),
    Column("outcome", is_left=True),
)


def standing_rows(comparison: Comparison) -> Iterator[tuple[tuple[str, ...], str]]:
    """The cells of each kernel's row, and what there is to say about one that did not pass."""
    entries = {each.label: each for each in comparison.entries}
    fastest = min((each.time_ns for each in comparison.standings if each.time_ns), default=math.nan)
    for standing in comparison.standings:
        outcome = entries[standing.label].outcome
        is_passed = outcome.verdict == "passed"
        cells = (_rank(standing), plain(standing.label), *_time_cells(standing, fastest))
        yield (*cells, "" if is_passed else outcome.verdict), "" if is_passed else plain(outcome.message)


def _rank(standing: Standing) -> str:
    if standing.rank is None:
        return "–"
    is_alone = standing.rank_to in (None, standing.rank)
    return str(standing.rank) if is_alone else f"{standing.rank}–{standing.rank_to}"


def _time_cells(standing: Standing, fastest_ns: float) -> tuple[str, str, str]:
    if not standing.time_ns:
        return "–", "", ""
    half_width = spread(Summary(standing.time_ns, standing.low_ns or 0.0, standing.high_ns, 0))
    return precise_duration(standing.time_ns), half_width, f"{standing.time_ns / fastest_ns:.2f}×"


def _standings_table(comparison: Comparison) -> RenderableType:
    lines = []
    for cells, message in standing_rows(comparison):
        *others, outcome = cells
        lines.append(Line((*map(Text, others), Text(outcome, "red")), (Text(message),) if message else ()))
    return Grid(STANDING_COLUMNS, tuple(lines))


# --- case by case ------------------------------------------------------------------------------------------


def case_times(comparison: Comparison) -> Times:
    """The time of every kernel on every case; where it did not pass, the verdict."""
    return {(entry.label, case.name): _case_time(case) for entry in comparison.entries for case in entry.cases}


def _case_time(case: CaseSamples) -> str:
    if case.outcome.verdict != "passed":
        return case.outcome.verdict
    return time_of(summarise(case.batches)) if case.batches else "–"


def case_words(comparison: Comparison) -> dict[str, str]:
    """What a case is called, by its name: without what all of them share, and without its secret seed."""
    specs, shared = _specs(comparison), _shared(comparison)
    return {name: _words(spec, [key for key in spec if key not in shared]) for name, spec in specs.items()}


def common_words(comparison: Comparison) -> str:
    """What all cases share, as words."""
    shared = _shared(comparison)
    return _words(shared, list(shared))


def _words(spec: dict[str, Scalar], keys: Sequence[str]) -> str:
    return plain(" ".join(f"{key}={spec[key]}" for key in keys if key != "seed"))


def _specs(comparison: Comparison) -> dict[str, dict[str, Scalar]]:
    return {case.name: case.spec for entry in comparison.entries for case in entry.cases}


def _shared(comparison: Comparison) -> dict[str, Scalar]:
    specs = list(_specs(comparison).values())
    if len(specs) < 2:
        return {}
    return {key: value for key, value in specs[0].items() if all(spec.get(key) == value for spec in specs)}


def _case_table(pair: PairResult, times: Times, words: dict[str, str]) -> RenderableType:
    scale = scale_of([ratio for _, ratio in pair.cases])
    columns = (
        Column("case", is_left=True, least=14),
        Column(plain(pair.first), least=10),
        Column(plain(pair.second), least=10),
        Column("difference"),
        Column("interval"),
        Column("verdict", is_left=True),
        Column(_bar_title(scale), is_left=True, spare=1),
    )
    lines = []
    for name, ratio in pair.cases:
        colour = COLOURS[ratio.verdict]
        cells = (
            Text(words.get(name, plain(name))),
            Text(times.get((pair.first, name), "–")),
            Text(times.get((pair.second, name), "–")),
            Text(difference(ratio)),
            Text(extent(ratio)),
            Text(ratio.verdict, colour),
            Text(bar(ratio, scale), colour),
        )
        lines.append(Line(cells, (Text(plain(ratio.reason)),) if ratio.reason else ()))
    heading = Text(f"{plain(pair.first)} against {plain(pair.second)}, case by case", "bold")
    return Group(heading, Grid(columns, tuple(lines)), Text())


def _bar_title(scale: float) -> str:
    """The scale of a bar, as wide as one."""
    end, half = f"{100 * scale:g} %", TRACK // 2
    return f"{f'−{end} faster':<{half}}0{f'slower +{end}':>{half}}"


# --- remarks -----------------------------------------------------------------------------------------------


def remarks(comparison: Comparison) -> list[tuple[str, str]]:
    """What was measured on, how much of it, whether to believe it: lines and their styles."""
    device = comparison.device
    lines = [f"{device.model} ({device.architecture})" if device.architecture else device.model]
    lines += _clocks(comparison.entries)
    blocks = max((pair.overall.blocks for pair in comparison.pairs), default=0)
    heats = max((pair.overall.heats for pair in comparison.pairs), default=0)
    if blocks:
        lines.append(f"{_count(blocks, 'block')} in {_count(heats, 'heat')}, each with fresh processes")
    if comparison.voided_share:
        lines.append(f"{percent(comparison.voided_share)} of the blocks voided, alike for all kernels")
    said = [(line, "dim") for line in (*lines, *comparison.notes)]
    failed = failures(comparison)
    compared = len(comparison.entries) - len(failed) > 1
    if comparison.control_of is not None and comparison.control_of not in failed and compared:
        said.append(_control(comparison.control_of, comparison.control_result))
    if not comparison.complete:
        why = f" ({comparison.stopped_by})" if comparison.stopped_by else ""
        said.append((f"stopped early{why}: what was measured so far", "yellow"))
    return [(plain(line), style) for line, style in said]


def _clocks(entries: Sequence[Entry]) -> list[str]:
    classes = {each.timing_class for each in entries}
    if len(classes) == 1:
        return [CLASSES[classes.pop()]]
    return [f"{each.label}: {CLASSES[each.timing_class]}" for each in entries]


def _control(of: str, ratio: Ratio | None) -> tuple[str, str]:
    """What became of the hidden duplicate."""
    known = None if ratio is None else _known(ratio)
    if ratio is None or known is None or ratio.verdict == "INVALID":
        why = "" if ratio is None or not ratio.reason else f": {ratio.reason}"
        return f"the hidden copy of {of} was not compared with it{why}", "yellow"
    if ratio.verdict == "TIE":
        return f"the hidden copy of {of} tied with it, as it must", "dim"
    if ratio.verdict == "UNRESOLVED":
        return f"the hidden copy of {of} has not tied with it yet: {difference(ratio)} ({extent(ratio)})", "yellow"
    size = _number(abs(known[1] - 1), _digits(known))
    word = ratio.verdict
    return f"the hidden copy of {of} was called {word} by {size} %: none of these verdicts can be trusted", "bold red"
