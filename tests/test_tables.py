"""What people read, line by line, as it looks without colour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from records import CPU, MI355X, batch, case, cases, judgement, record, spec, submission, timing
from rich.console import Console, RenderableType
from rich.text import Text

from harness.record import Doubt, Judgement, Layer, Outcome, Record, Scalar, Secret, Timing
from harness.statistics import Summary
from leaderboard.clearance import Clearance
from leaderboard.grid import Column, Grid, Line
from leaderboard.ranking import Board, rank, score
from leaderboard.tables import (
    board_list,
    board_table,
    case_table,
    percent,
    plain,
    precise_duration,
    spread,
    summary_lines,
    time_of,
)


def shown(what: RenderableType, width: int = 80) -> list[str]:
    """Its lines on a terminal of this width, none of which may be wider."""
    console = Console(width=width, file=io.StringIO(), record=True, highlight=False)
    console.print(what)
    lines = console.export_text().rstrip("\n").split("\n")
    assert max(len(line) for line in lines) <= width
    return lines


def moe(size: int, width: int, seed: int) -> dict[str, Scalar]:
    return {
        "dhidden": 7168, "dexpert": width, "nroutedexperts": 256, "nexpertspertok": 8, "nsharedexperts": 1,
        "bs": size, "seed": seed,
    }  # fmt: skip


# --- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (512.3, "512.30 ns"), (999.99, "999.99 ns"), (1000, "1.00 µs"), (8212, "8.21 µs"), (1.77e6, "1770.00 µs"),
        (1e7, "10.00 ms"), (3.5e9, "3500.00 ms"), (12.3e9, "12.30 s"),
    ],
)  # fmt: skip
def test_a_time_is_in_the_unit_one_reads_at_a_glance(time_ns: float, text: str) -> None:
    assert precise_duration(time_ns) == text


def test_a_spread_is_half_the_interval_in_percent() -> None:
    assert spread(Summary(200.0, 199.0, 201.0, 8)) == "±0.50 %"
    assert spread(Summary(200.0, 190.0, 214.0, 8)) == "±6.0 %"
    assert spread(Summary(200.0, 0.0, 500.0, 8)) == "± ?"
    assert spread(Summary(200.0, 0.0, None, 1)) == "± ?"


def test_a_time_that_is_only_bounded_is_shown_by_its_bound() -> None:
    assert time_of(Summary(0.0, 0.0, 3200.0, 8)) == "< 3.20 µs"
    assert time_of(Summary(0.0, 0.0, None, 8)) == "–"


def test_a_share_has_two_digits() -> None:
    assert [percent(share) for share in (0.613, 0.036, 1.25, None)] == ["61 %", "3.6 %", "125 %", "–"]


def test_nothing_in_a_text_moves_the_cursor() -> None:
    assert plain("a\x1b[2Jb\rc\nd\te\udcff") == "a\ufffd[2Jb\ufffdc\nd   e\ufffd"


# --- the grid ----------------------------------------------------------------------------------------------


def grid(columns: Sequence[Column], *rows: Sequence[str]) -> Grid:
    return Grid(tuple(columns), tuple(Line(tuple(Text(cell) for cell in row)) for row in rows))


def test_numbers_stand_right_and_words_left() -> None:
    columns = [Column("name", is_left=True), Column("n")]
    assert shown(grid(columns, ["ab", "7"], ["c", "1234"])) == ["name     n", "──────────", "ab       7", "c     1234"]


def test_an_empty_column_is_not_shown() -> None:
    assert shown(grid([Column("a"), Column("b"), Column("c")], ["1", "", "3"]))[0] == "a  c"


def test_where_space_is_short_the_most_spare_column_goes_first() -> None:
    columns = [Column("first"), Column("second", spare=1), Column("third", spare=2)]
    widths = [shown(grid(columns, ["1", "2", "3"]), width)[0].split() for width in (20, 19, 12, 8)]
    assert widths == [["first", "second", "third"], ["first", "second"], ["first"], ["first"]]


def test_a_cell_that_may_yield_goes_on_below_and_one_that_is_cut_ends_early() -> None:
    columns = [Column("file", is_left=True, least=6), Column("who", is_left=True, least=4, is_cut=True), Column("n")]
    assert shown(grid(columns, ["a_long_name.py", "Ada Lovelace", "1"]), 17) == [
        "file      who   n",
        "─────────────────",
        "a_long_n  Ada…  1",
        "ame.py",
    ]


# --- a record ----------------------------------------------------------------------------------------------


def test_a_passed_record_at_80_columns() -> None:
    assert shown(case_table(record())) == [
        "   test                      verdict  worst row  limit  gpumode",
        "───────────────────────────────────────────────────────────────",
        "✓  m=8 n=2112 k=7168 seed=1  passed      0.0031   0.01  pass",
        "",
        "   benchmark       time     95 %     events  of light  bound   gpumode",
        "──────────────────────────────────────────────────────────────────────",
        "✓  m=16         8.21 µs  ±0.19 %    7.97 µs      50 %  memory  pass",
        "✓  m=32        28.58 µs  ±0.19 %   27.73 µs      50 %  memory  pass",
        "✓  m=64       177.16 µs  ±0.19 %  171.84 µs      50 %  memory  pass",
        "   every case: n=2112 k=7168",
    ]


def test_more_columns_show_more() -> None:
    titles = shown(case_table(record()), 120)[4].split("  ")
    assert [title.strip() for title in titles if title.strip()] == [
        "benchmark", "time", "95 %", "events", "of light", "bound", "worst row", "gpumode",
    ]  # fmt: skip


def test_what_is_wrong_stands_below_its_case_with_how_to_run_it_alone() -> None:
    wrong = case(
        {**moe(64, 2048, 81), "regime": "heavy"},
        verdict="wrong",
        message="row 17 is off by 0.31: 512 of 7168 elements outside, all in columns 4096…4607",
        judged=Judgement(2, "mxfp4", 0.31, 0.01, 0.07, "fail"),
    )
    failed = record(results=[case(moe(8, 256, 1), judged=judgement(precision="fp8-kv")), wrong])
    assert shown(case_table(failed)) == [
        "   test                               verdict  worst row  limit  as      gpumode",
        "────────────────────────────────────────────────────────────────────────────────",
        "✓  dexpert=256 bs=8 seed=1            passed      0.0031   0.01  fp8-kv  pass",
        "✗  dexpert=2048 bs=64 seed=81         wrong         0.31   0.01  mxfp4   fail",
        "   regime=heavy",
        "     row 17 is off by 0.31: 512 of 7168 elements outside, all in columns",
        "     4096…4607",
        "     to run it alone: --case 'dhidden=7168 dexpert=2048 nroutedexperts=256",
        "     nexpertspertok=8 nsharedexperts=1 bs=64 seed=81 regime=heavy'",
        "   every case: dhidden=7168 nroutedexperts=256 nexpertspertok=8 nsharedexperts=1",
    ]


def test_a_hidden_case_is_shown_without_its_seed_and_with_how_to_run_its_sizes() -> None:
    hidden = replace(case({"m": 16, "n": 32}, verdict="wrong", message="row 3", stage="benchmark"), is_hidden=True)
    assert shown(case_table(record(results=[hidden])))[2:5] == [
        "✗  m=16 n=32  wrong",
        "     row 3",
        "     to run its sizes on other contents: --case 'm=16 n=32'",
    ]


def test_the_hash_of_a_seed_file_is_shown_and_a_run_s_own_secret_is_not() -> None:
    lines = said(replace(record(notes=["a note"]), secret=Secret(commitment="cd" * 32)))
    assert lines[3:] == [f"hidden cases of the seed file with SHA-256 {'cd' * 32}", "a note"]
    assert said(replace(record(), secret=Secret(master="ab" * 32))) == said(record())


def test_a_traceback_keeps_its_shape() -> None:
    message = 'Traceback (most recent call last):\n  File "kernel.py", line 3\n    x = y[3]\nIndexError: 3'
    lines = shown(case_table(record(results=[case(spec(8), verdict="crashed", message=message)])))
    assert lines[3:7] == [
        "     Traceback (most recent call last):",
        '       File "kernel.py", line 3',
        "         x = y[3]",
        "     IndexError: 3",
    ]


def test_secret_seeds_of_timed_cases_are_left_out() -> None:
    results = [case(spec(m, seed=8123123123123123 + m), timing(1e6)) for m in (1, 2)]
    assert "8123" not in "\n".join(shown(case_table(record(results=results))))


def test_a_case_that_was_not_timed_says_why() -> None:
    crashed = case(spec(32), verdict="crashed", message="illegal memory access", stage="benchmark")
    lines = shown(case_table(record(results=[case(spec(16), timing(1e6)), crashed])))
    assert lines[3].split() == ["✗", "m=32", "crashed"]
    assert lines[4] == "     illegal memory access"


def test_cases_that_were_not_run_for_one_reason_take_one_line() -> None:
    results = [case(spec(m), verdict="not-run", message="it could not be loaded") for m in (1, 2, 3, 4)]
    results += [case(spec(8), verdict="not-run", message="it did not pass the tests", stage="benchmark")]
    assert shown(case_table(record(results=results))) == [
        "   test",
        "────────────",
        "–  4 not run",
        "     it could not be loaded",
        "",
        "   benchmark             time",
        "─────────────────────────────",
        "–  m=8 n=2112 k=7168  not-run",
        "     it did not pass the tests",
    ]


def test_a_doubt_is_explained_below_its_case() -> None:
    doubted = case(spec(16), timing(1e6), doubts=("below-roofline", "state-carried"))
    lines = shown(case_table(record(results=[doubted])), 100)
    assert lines[2].startswith("?  m=16")
    assert lines[3:5] == [
        "     below-roofline: faster than this device can move or compute what the case needs",
        "     state-carried: the first call on new contents is slower: something is kept from call to call",
    ]


def test_what_the_published_check_would_refuse_is_said_of_a_case_that_passed() -> None:
    judged = replace(judgement(), gpumode="fail", gpumode_message="mismatch at [3, 4]")
    lines = shown(case_table(record(results=[case(spec(8), judged=judged)])))
    assert lines[2].split()[-1] == "fail"
    assert lines[3] == "     the published check refuses it: mismatch at [3, 4]"


def test_a_record_without_cases_has_an_empty_table() -> None:
    assert shown(case_table(record(results=[], outcome=Outcome("load-failed", "empty")))) == [""]


def test_text_of_a_submission_is_no_markup_and_no_terminal_command() -> None:
    broken = case(spec(8), verdict="crashed", message="[red]oops[/red] \x1b[31m")
    text = "\n".join(shown(case_table(record(results=[broken]))))
    assert "[red]oops[/red] \ufffd[31m" in text


# --- a record's summary --------------------------------------------------------------------------------------


def said(of: Record) -> list[str]:
    return [line.plain for line in summary_lines(of)]


def test_a_passed_record_is_summed_up_in_three_lines() -> None:
    assert said(record()) == [
        "passed: kernel.py by ada on fp4_gemm",
        "score 34.65 µs ±0.11 %, geometric mean of 3 cases",
        "GPU time, read from outside; NVIDIA H200 (sm_90)",
    ]


def test_one_case_is_not_called_cases() -> None:
    assert said(record(results=cases(1000.0)))[1].endswith("geometric mean of 1 case")


def test_an_interpreter_s_score_says_what_it_is_worth() -> None:
    lines = said(record(device=CPU, timing_class="interpreter", notes=["no GPU here"]))
    assert lines[2] == (
        "Triton's interpreter on the CPU, small cases: says nothing about a GPU; AMD EPYC 9654 (x86_64)"
    )
    assert lines[3] == "no GPU here"


def test_what_could_not_even_be_loaded_says_why_at_once() -> None:
    results = [case(spec(8), verdict="not-run", message="it could not be loaded")]
    failed = record(results=results, outcome=Outcome("load-failed", "SyntaxError: line 3\n  def f(:", "load"))
    assert said(failed) == [
        "load-failed: kernel.py by ada on fp4_gemm\nSyntaxError: line 3\n  def f(:",
        "NVIDIA H200 (sm_90)",
    ]


def test_a_wrong_one_has_no_score_and_shows_the_end_of_what_it_printed() -> None:
    printed = "\n".join(f"line {number}" for number in range(30))
    wrong = [case(spec(8), verdict="wrong", message="row 3")]
    lines = said(record(results=[*wrong, *cases(1000.0)], output=printed))
    assert lines[:2] == ["wrong: kernel.py by ada on fp4_gemm", "NVIDIA H200 (sm_90)"]
    assert lines[2].splitlines() == ["it printed:", *(f"line {number}" for number in range(20, 30))]


def test_doubts_and_missing_layers_are_said() -> None:
    doubted = [case(spec(16), timing(1e6), doubts=("clocks-disagree",))]
    layers = [Layer("own session", True), Layer("memory watch", False, "no /proc")]
    lines = said(record(results=doubted, isolation=layers))
    assert lines[3:] == [
        "passed with doubts, and therefore not ranked: clocks-disagree",
        "not isolated by: memory watch",
    ]


def clearance(doubt: Doubt, reason: str = "events are off here") -> Clearance:
    return Clearance(doubt, reason, "bob", "2026-12-03T09:10:11+00:00")


def test_what_is_cleared_of_a_record_s_doubts_is_said_with_by_whom_and_why() -> None:
    doubts = record(results=[case(spec(16), timing(1e6), doubts=("clocks-disagree", "async-work"))])
    first, second = clearance("clocks-disagree"), clearance("async-work", "a daemon \x1b[2J of the driver's")
    lines = [line.plain for line in summary_lines(doubts, [first])]
    assert lines[3:] == [
        "passed with doubts, and therefore not ranked: async-work",
        "clocks-disagree: cleared by bob on 2026-12-03 09:10 UTC: events are off here",
    ]
    lines = [line.plain for line in summary_lines(doubts, [first, second])]
    assert lines[3] == "passed with doubts, all of them cleared, and therefore ranked"
    assert lines[5] == "async-work: cleared by bob on 2026-12-03 09:10 UTC: a daemon \ufffd[2J of the driver's"


def test_a_board_marks_what_is_there_by_clearance_and_says_why_below() -> None:
    results = [case(spec(16), timing(9000.0), doubts=("clocks-disagree",))]
    doubtful = score(record("bbbb0002", results, by=submission("b.py", "bob")))
    plain_one = score(record("aaaa0001", [case(spec(16), timing(9500.0))]))
    assert doubtful is not None and plain_one is not None
    (board,) = rank([plain_one, replace(doubtful, clearances=(clearance("clocks-disagree"),))])
    assert shown(board_table(board), 100)[2:] == [
        "rank  id        file       author    score     95 %",
        "───────────────────────────────────────────────────",
        "   1  bbbb0002  b.py†      bob     9.00 µs  ±0.00 %",
        "   2  aaaa0001  kernel.py  ada     9.50 µs  ±0.00 %",
        "† bbbb0002: clocks-disagree, cleared by bob on 2026-12-03 09:10 UTC: events are off here",
    ]


# --- boards ------------------------------------------------------------------------------------------------


def three() -> Board:
    torch = submission("torch_reference.py", "ada", is_baseline=True)
    (board,) = rank(
        [
            record("aaaa0001", cases(8212.0, 28585.0)),
            record("bbbb0002", cases(8214.0, 28590.0), by=submission("split_k.py", "Grace Brewster Murray Hopper")),
            record("cccc0003", cases(82120.0, 285850.0, roofline_share=0.05), by=torch),
        ]
    )
    return board


def test_a_board_at_80_columns() -> None:
    assert shown(board_table(three())) == [
        "fp4_gemm  NVIDIA H200",
        "GPU time, read from outside; geometric mean of 2 cases",
        "rank  id        file            author        score     95 %  of light  vs torch",
        "────────────────────────────────────────────────────────────────────────────────",
        " 1–2  aaaa0001  kernel.py       ada        15.32 µs  ±0.14 %      50 %    10.00×",
        " 1–2  bbbb0002  split_k.py      Grace B…   15.32 µs  ±0.14 %      50 %    10.00×",
        "   3  cccc0003  torch_referenc  ada       153.21 µs  ±0.14 %     5.0 %     1.00×",
        "                e.py*",
        "* the shipped torch baseline",
        "a range of ranks: the 95 % intervals overlap",
    ]


def test_a_board_at_120_columns_cuts_no_name_short() -> None:
    lines = shown(board_table(three()), 120)
    assert "torch_reference.py*" in lines[6]
    assert "Grace Brewster Murray Hopper" in lines[5]


def test_a_board_of_one_author_names_them_once_and_shows_the_precision() -> None:
    results = [case(spec(16), timing(9000.0, roofline_ns=900.0), judged=judgement(precision="mxfp4"))]
    (board,) = rank([record(results=results, problem="mla_decode")])
    assert shown(board_table(board)) == [
        "mla_decode  NVIDIA H200",
        "GPU time, read from outside; geometric mean of 1 case; all by ada",
        "rank  id        file         score     95 %  of light  as",
        "────────────────────────────────────────────────────────────",
        "   1  3f9a01bc  kernel.py  9.00 µs  ±0.00 %      10 %  mxfp4",
    ]


def test_boards_are_listed_a_line_each() -> None:
    other = record("d", cases(1e6), problem="mxfp4_moe", device=MI355X, by=submission("grouped.py", "bob"))
    single = [case(spec(8), Timing((batch(100.0),)))]
    cpu = record("e", single, problem="mla_decode", device=CPU, timing_class="cpu")
    assert shown(board_list(rank([record(), other, cpu]))) == [
        "problem     device               clock  entries        best  file        author",
        "───────────────────────────────────────────────────────────────────────────────",
        "fp4_gemm    NVIDIA H200          gated        1    34.65 µs  kernel.py   ada",
        "mla_decode  AMD EPYC 9654        cpu          1   100.00 ns  kernel.py   ada",
        "mxfp4_moe   AMD Instinct MI355X  gated        1  1000.00 µs  grouped.py  bob",
    ]
