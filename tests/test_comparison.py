"""What `podium compare` shows, word for word: hand-written comparisons, read in a terminal and as a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations

import pytest
from records import H200, SOFTWARE, batch
from rich.console import Console

from harness.compare import CaseSamples, Comparison, Entry, PairResult, PairVerdict, Ratio, Standing
from harness.record import Batch, Outcome, ProblemVersion, Scalar
from leaderboard.comparison import bar, comparison_lines, neighbours, remarks, scale_of, sentences
from leaderboard.comparison_page import comparison_html

PASSED = Outcome("passed")
FASTER = Ratio("FASTER", 0.968, 0.965, 0.971, 3, 12)
SLOWER = Ratio("SLOWER", 1.032, 1.029, 1.035, 3, 12)
TIE = Ratio("TIE", 1.0005, 0.999, 1.002, 3, 12)
UNRESOLVED = Ratio("UNRESOLVED", 0.996, 0.991, 1.001, 3, 12, 24)
INVALID = Ratio("INVALID", None, reason="clocks of two kinds: gated and cpu")


def samples(m: int, time_ns: float, outcome: Outcome = PASSED) -> CaseSamples:
    spec: dict[str, Scalar] = {"m": m, "n": 2112, "seed": 81230 + m}
    readings: tuple[Batch, ...] = (batch(time_ns),) * 8 if outcome.verdict == "passed" else ()
    return CaseSamples(" ".join(f"{key}={value}" for key, value in spec.items()), spec, outcome, "gated", readings)


def entry(label: str, times: Sequence[float] = (8000.0, 16000.0), outcome: Outcome = PASSED) -> Entry:
    found = tuple(samples(16 << index, time, outcome) for index, time in enumerate(times))
    return Entry(label, label, "0" * 64, None, outcome, "gated", found)


def pair(first: str, second: str, overall: Ratio, *by_case: Ratio) -> PairResult:
    names = [each.name for each in entry("").cases]
    return PairResult(first, second, overall, tuple(zip(names, by_case, strict=False)))


def standing(label: str, time_ns: float | None, rank: int | None, rank_to: int | None) -> Standing:
    ends = (None, None) if time_ns is None else (time_ns * 0.998, time_ns * 1.002)
    return Standing(label, rank, rank_to, time_ns, *ends)


def comparison(
    pairs: Sequence[PairResult],
    entries: Sequence[Entry] | None = None,
    standings: Sequence[Standing] | None = None,
    control: Ratio | None = TIE,
    *,
    complete: bool = True,
    stopped_by: str = "precision",
    voided_share: float = 0.0,
    notes: tuple[str, ...] = (),
) -> Comparison:
    labels = list(dict.fromkeys(label for each in pairs for label in (each.first, each.second)))
    places = [standing(label, 10_000.0 + 700 * at, at + 1, at + 1) for at, label in enumerate(labels)]
    return Comparison(
        id="c0ffee01",
        created="2026-12-01T12:00:00+00:00",
        problem=ProblemVersion("fp4_gemm", "9d1c0b7a55e2"),
        device=H200,
        software=SOFTWARE,
        entries=tuple(map(entry, labels) if entries is None else entries),
        control=entry("hidden"),
        control_of=labels[0],
        standings=tuple(places if standings is None else standings),
        pairs=tuple(pairs),
        control_result=control,
        stages_ns={"time": 9_000_000_000},
        complete=complete,
        stopped_by=stopped_by,
        voided_share=voided_share,
        notes=notes,
    )


def shown(what: Comparison, width: int = 120) -> list[str]:
    """Its lines on a terminal of this width, none of which may be wider."""
    console = Console(width=width, file=io.StringIO(), record=True, highlight=False)
    for each in comparison_lines(what):
        console.print(each)
    lines = console.export_text().rstrip("\n").split("\n")
    assert max(len(line) for line in lines) <= width
    return lines


def three() -> Comparison:
    """A faster kernel, one that ties with it, and one that fails."""
    crash = Outcome("crashed", "IndexError: 3", "call")
    pairs = [
        pair("a.py", "b.py", FASTER, Ratio("FASTER", 0.96, 0.95, 0.97, 3, 12), Ratio("UNRESOLVED", 1.0, 0.99, 1.01)),
        pair("a.py", "c.py", Ratio("INVALID", None, reason="c.py crashed")),
    ]
    standings = [standing("a.py", 10e3, 1, 2), standing("b.py", 10.7e3, 1, 2), standing("c.py", None, None, None)]
    return comparison(pairs, [entry("a.py"), entry("b.py", (8300, 16000)), entry("c.py", outcome=crash)], standings)


# --- verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (FASTER, "a.py is FASTER than b.py: 3.2 % less time (2.9 … 3.5 %), 12 blocks"),
        (SLOWER, "a.py is SLOWER than b.py: 3.2 % more time (2.9 … 3.5 %), 12 blocks"),
        (Ratio("SLOWER", 2.312, 2.28, 2.344, 1, 1), "a.py is SLOWER than b.py: 2.31× its time (2.28 … 2.34×), 1 block"),
        (
            Ratio("FASTER", 0.9969, 0.9965, 0.9974, 3, 40),
            "a.py is FASTER than b.py: 0.31 % less time (0.26 … 0.35 %), 40 blocks",
        ),
        (TIE, "a.py and b.py TIE: within ±0.5 % (−0.1 … +0.2 %)"),
        (Ratio("TIE", 1.001, 0.996, 1.006), "a.py and b.py TIE: within ±0.5 % at 90 % confidence (−0.4 … +0.6 %)"),
        (
            UNRESOLVED,
            "a.py against b.py is UNRESOLVED: −0.4 % (−0.9 … +0.1 %); about 24 more blocks would tell (--max-seconds)",
        ),
        (Ratio("UNRESOLVED", 1.00001, 0.98, 1.02), "a.py against b.py is UNRESOLVED: 0.0 % (−2.0 … +2.0 %)"),
        (INVALID, "a.py against b.py is INVALID: clocks of two kinds: gated and cpu"),
        (Ratio("INVALID", None), "a.py against b.py is INVALID: nothing was measured"),
    ],
)
def test_each_verdict_is_a_sentence(ratio: Ratio, text: str) -> None:
    what = comparison([pair("a.py", "b.py", ratio)])
    assert "".join(sentences(what)[0]) == text
    assert text in shown(what, 140)


@pytest.mark.parametrize(
    ("ratio", "colour"), [(FASTER, "32"), (SLOWER, "31"), (TIE, "34"), (UNRESOLVED, "33"), (INVALID, "31")]
)
def test_only_the_verdict_s_word_has_a_colour(ratio: Ratio, colour: str) -> None:
    console = Console(width=140, file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    for each in comparison_lines(comparison([pair("a.py", "b.py", ratio)])):
        console.print(each)
    assert isinstance(console.file, io.StringIO)
    assert f"\x1b[1;{colour}m{ratio.verdict}\x1b[0m" in console.file.getvalue()


# --- bars --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "middle", "high", "track"),
    [
        (1.002, 1.006, 1.01, "─────┼▒▒█▒▒"),
        (0.99, 0.994, 0.998, "▒▒█▒▒┼─────"),
        (0.994, 0.996, 1.002, "──▒█▒┼▒────"),
        (0.998, 1.0, 1.002, "────▒█▒────"),
        (0.5, 0.6, 1.5, "█▒▒▒▒┼▒▒▒▒▒"),
    ],
)
def test_a_bar_shows_the_interval_around_equal(low: float, middle: float, high: float, track: str) -> None:
    assert bar(Ratio("UNRESOLVED", middle, low, high), 0.01, 11) == track


def test_what_is_unknown_has_no_bar() -> None:
    assert bar(INVALID, 0.01) == ""


def test_a_scale_is_round_and_at_least_one_percent() -> None:
    assert [scale_of(each) for each in ([], [INVALID], [TIE], [TIE, FASTER])] == pytest.approx([0.01, 0.01, 0.01, 0.05])
    assert scale_of([Ratio("SLOWER", 11.0, 10.0, 11.0)]) == pytest.approx(10)
    assert scale_of([Ratio("SLOWER", 1.018, 1.016, 1.02)]) == pytest.approx(0.02)


# --- the whole in a terminal -------------------------------------------------------------------------------


def test_a_wide_terminal_shows_everything() -> None:
    assert shown(three()) == [
        "rank  kernel      time     95 %  of the fastest  outcome",
        "────────────────────────────────────────────────────────",
        " 1–2  a.py    10.00 µs  ±0.20 %           1.00×",
        " 1–2  b.py    10.70 µs  ±0.20 %           1.07×",
        "   –  c.py           –                           crashed",
        "     IndexError: 3",
        "",
        "a.py is FASTER than b.py: 3.2 % less time (2.9 … 3.5 %), 12 blocks",
        "a.py against c.py is INVALID: c.py did not pass (crashed)",
        "",
        "a.py against b.py, case by case",
        "case      a.py      b.py  difference       interval  verdict     −5 % faster    0    slower +5 %",
        "────────────────────────────────────────────────────────────────────────────────────────────────",
        "m=16   8.00 µs   8.30 µs      −4.0 %  −5.0 … −3.0 %  FASTER      ▒▒▒█▒▒▒────────┼───────────────",
        "m=32  16.00 µs  16.00 µs       0.0 %  −1.0 … +1.0 %  UNRESOLVED  ────────────▒▒▒█▒▒▒────────────",
        "",
        "every case: n=2112",
        "verdicts of single cases: sure for all pairs and cases together",
        "NVIDIA H200 (sm_90)",
        "GPU time, read from outside",
        "12 blocks in 3 heats, each with fresh processes",
        "the hidden copy of a.py tied with it, as it must",
    ]


def test_a_narrow_terminal_leaves_out_the_bar_first() -> None:
    lines = shown(three(), 80)
    assert lines[11] == "case      a.py      b.py  difference       interval  verdict"
    assert lines[14] == "m=32  16.00 µs  16.00 µs       0.0 %  −1.0 … +1.0 %  UNRESOLVED"


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio("UNRESOLVED", 3.4, 0.15, 8.7), "+240 %     −85 … +770 %"),
        (Ratio("UNRESOLVED", 3.4, 0.15, 1e43), "+240 %  −85 … >+1000 %"),
        (Ratio("SLOWER", 250.0, 240.0, 260.0), "+24900 %       >+1000 %"),
        (Ratio("SLOWER", 2.9999, 2.9995, 3.0004), "+200 %   +200 … +200 %"),
        (Ratio("SLOWER", 1.2535, 1.2531, 1.2541), "+25.4 %  +25.3 … +25.4 %"),
        (Ratio("TIE", 0.9998, 0.9991, 1.0005), "−0.02 %  −0.09 … +0.05 %"),
    ],
)
def test_a_verdict_stands_in_its_own_line_however_wide_the_interval(ratio: Ratio, words: str) -> None:
    first, second = "a_kernel_with_a_long_name.py", "another_kernel_with_a_long_name.py"
    entries = [entry(first, (123_456_789.0, 8000.0)), entry(second, (123_456_789.0, 8000.0))]
    (row, *_) = [
        line for line in shown(comparison([pair(first, second, TIE, ratio, TIE)], entries), 80) if "m=16" in line
    ]
    assert row.endswith(f"  {ratio.verdict}")
    assert " ".join(words.split()) in " ".join(row.split())


def failed() -> Comparison:
    """Of two kernels, the one that has the hidden copy fails; every question says so, as the referee has it."""
    why = Outcome("wrong", "m=16: row 3 is 0.7 off; element [3, 1] is 0, expected 2", "test")
    no = Ratio("INVALID", None, reason=f"bad.py wrong: {why.message}")
    places = [standing("good.py", 8000.0, 1, 1), standing("bad.py", None, None, None)]
    entries = [entry("bad.py", outcome=why), entry("good.py")]
    return comparison([pair("bad.py", "good.py", no, no, no)], entries, places, replace(no, reason=f"copy {no.reason}"))


def test_why_a_kernel_failed_is_said_once_and_its_copy_is_not_spoken_of() -> None:
    lines = shown(failed())
    assert [line for line in lines if "row 3" in line] == [
        "     m=16: row 3 is 0.7 off; element [3, 1] is 0, expected 2"
    ]
    assert "bad.py against good.py is INVALID: bad.py did not pass (wrong)" in lines
    assert not any("copy" in line or "case by case" in line for line in lines)
    page = comparison_html(failed())
    assert page.count("row 3") == 1
    assert "copy" not in page


def test_the_copy_of_the_only_kernel_that_is_left_is_not_spoken_of() -> None:
    what = replace(failed(), control_of="good.py", control_result=INVALID)
    assert not any("copy" in line for line in shown(what))
    assert "copy" not in comparison_html(what)


def test_a_doubt_about_the_whole_is_not_repeated_for_each_case() -> None:
    doubt = Ratio("INVALID", None, reason="another process used the GPU during 31 % of the batches")
    own = Ratio("INVALID", None, reason="on m=32, every block was voided")
    what = comparison([pair("a.py", "b.py", doubt, doubt, own)])
    assert sum("31 %" in line for line in shown(what)) == 1
    assert "     on m=32, every block was voided" in shown(what)


def test_long_names_go_on_below() -> None:
    first, second = "grouped_gemm_with_split_k.py", "submissions/other/persistent_gemm.py"
    what = comparison([pair(first, second, UNRESOLVED, UNRESOLVED, INVALID)])
    for width in (80, 100, 120):
        shown(what, width)
    assert shown(what, 80)[11:14] == [
        "case  grouped_gemm_wit  submissions/other  difference       interval  verdict",
        "          h_split_k.py  /persistent_gemm.",
        "                                       py",
    ]
    assert "grouped_gemm_with_split_k.py  submissions/other/persistent_gemm.py" in "\n".join(shown(what, 180))


def many(labels: str = "abcd") -> Comparison:
    return comparison([pair(first, second, FASTER, FASTER, TIE) for first, second in combinations(labels, 2)])


def test_of_more_than_three_kernels_neighbours_are_shown_case_by_case() -> None:
    lines = shown(many())
    headings = [line for line in lines if line.endswith("case by case")]
    assert headings == [f"{each}, case by case" for each in ("a against b", "b against c", "c against d")]
    assert "case by case: neighbours in the standings only; all pairs are in --json" in lines
    assert sum("FASTER than" in line for line in lines) == 6
    assert len(neighbours(many("abc"))) == 3


def test_a_file_s_name_moves_no_cursor() -> None:
    assert "a\ufffd[2J.py is FASTER than b.py" in "\n".join(shown(comparison([pair("a\x1b[2J.py", "b.py", FASTER)])))


# --- remarks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "line", "style"),
    [
        (TIE, "the hidden copy of a.py tied with it, as it must", "dim"),
        (
            Ratio("SLOWER", 1.006, 1.004, 1.008),
            "the hidden copy of a.py was called SLOWER by 0.6 %: none of these verdicts can be trusted",
            "bold red",
        ),
        (
            Ratio("FASTER", 0.994, 0.992, 0.996),
            "the hidden copy of a.py was called FASTER by 0.6 %: none of these verdicts can be trusted",
            "bold red",
        ),
        (UNRESOLVED, "the hidden copy of a.py has not tied with it yet: −0.4 % (−0.9 … +0.1 %)", "yellow"),
        (INVALID, f"the hidden copy of a.py was not compared with it: {INVALID.reason}", "yellow"),
        (None, "the hidden copy of a.py was not compared with it", "yellow"),
    ],
)  # fmt: skip
def test_the_hidden_copy_says_whether_to_believe_the_rest(control: Ratio | None, line: str, style: str) -> None:
    assert remarks(comparison([pair("a.py", "b.py", FASTER)], control=control))[-1] == (line, style)


def test_a_comparison_that_was_stopped_says_so_last() -> None:
    stopped = comparison([pair("a.py", "b.py", FASTER)], complete=False, stopped_by="Ctrl-C")
    assert remarks(stopped)[-1] == ("stopped early (Ctrl-C): what was measured so far", "yellow")
    assert "stopped early" not in "\n".join(shown(three()))


def test_voided_blocks_and_notes_are_said() -> None:
    lines = shown(comparison([pair("a.py", "b.py", FASTER)], voided_share=0.05, notes=("clocks are not locked",)))
    assert lines[-3:-1] == ["5.0 % of the blocks voided, alike for all kernels", "clocks are not locked"]


# --- the page ----------------------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Elements in order; refuses what is not closed in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_page_has_a_plot_for_all_pairs_and_one_per_pair() -> None:
    plots = Outline(comparison_html(many())).all("svg")
    assert [each["role"] for each in plots] == ["img"] * 7
    assert (plots[0]["aria-label"] or "").startswith("All cases together. a / b: FASTER, −3.2 % (−3.5 … −2.9 %); a / c")
    assert plots[1]["aria-label"] == (
        "a against b, case by case. m=16: FASTER, −3.2 % (−3.5 … −2.9 %); m=32: TIE, 0.0 % (−0.1 … +0.2 %)"
    )


def test_a_plot_has_its_interval_in_place() -> None:
    page = Outline(comparison_html(comparison([pair("a.py", "b.py", Ratio("SLOWER", 1.005, 1.0025, 1.0075))])))
    (mark,) = [each for each in page.all("line") if each["class"] == "mark"]
    assert (mark["x1"], mark["x2"], page.all("circle")[0]["cx"]) == ("490.0", "590.0", "540.0")
    assert (page.all("rect")[0]["x"], page.all("rect")[0]["width"]) == ("340.0", "200.0")
    assert [each["x1"] for each in page.all("line") if each["class"] == "zero"] == ["440.0"]


def test_a_page_says_what_the_terminal_says() -> None:
    text = re.sub(r"<[^>]*>", "", comparison_html(three()))
    for said in (
        "fp4_gemm: a.py, b.py, c.py",
        "a.py is FASTER than b.py: 3.2 % less time (2.9 … 3.5 %), 12 blocks",
        "IndexError: 3",
        "m=16: FASTER, −4.0 % (−5.0 … −3.0 %); a.py 8.00 µs, b.py 8.30 µs",
        "the hidden copy of a.py tied with it, as it must",
        "podium 0.1.0, Python 3.12.3, torch 2.11.0, Triton 3.6.0, runtime 12.8, Linux-6.8-x86_64",
        "comparison c0ffee01, 2026-12-01T12:00:00+00:00",
    ):
        assert said in text


def test_a_failed_control_and_an_early_stop_stand_at_the_top_of_a_page() -> None:
    what = comparison([pair("a.py", "b.py", FASTER)], control=SLOWER, complete=False, stopped_by="Ctrl-C")
    top = comparison_html(what).split("<ul>")[0]
    assert "was called SLOWER by 3.2 %: none of these verdicts can be trusted" in top
    assert "stopped early (Ctrl-C): what was measured so far" in top


def test_nothing_of_a_file_becomes_markup() -> None:
    bad = "<script>\"'&"
    failed = entry(bad, outcome=Outcome("crashed", "</pre><script>alert(1)</script>", "call"))
    pairs = [pair(bad, "b.py", Ratio("INVALID", None, reason="<b>no</b>"), TIE, Ratio("INVALID", None, reason='">'))]
    places = [standing("b.py", 1e4, 1, 1), standing(bad, None, None, None)]
    page = comparison_html(comparison(pairs, [failed, entry("b.py")], places, notes=("<img src=x>",)))
    tags = {tag for tag, _ in Outline(page).elements}
    assert {"script", "b", "img"} & tags == set()
    assert "&lt;script&gt;&quot;&#x27;&amp; against b.py is <strong" in page


def test_a_page_refers_to_nothing_outside_itself() -> None:
    page = comparison_html(three())
    assert "http" not in page
    assert {"href", "src"} & {name for _, attributes in Outline(page).elements for name in attributes} == set()
    assert "url(" not in page
    assert "@import" not in page


def test_a_page_reads_in_light_and_in_dark() -> None:
    verdicts: tuple[PairVerdict, ...] = ("FASTER", "SLOWER", "TIE", "UNRESOLVED", "INVALID")
    light, dark = comparison_html(three()).split("prefers-color-scheme: dark")
    for part in (light, dark):
        assert all(f"--{verdict.lower()}: #" in part for verdict in verdicts)
