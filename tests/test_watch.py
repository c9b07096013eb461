"""`podium watch`: which saves count, what is compared with what, and the command from end to end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from records import CPU, batch, case, cases, record, spec, submission, timing
from rich.console import Console
from test_tables import shown

import cli
import harness.watch
from harness.record import Outcome, Record, Timing, from_dict
from harness.statistics import Summary
from harness.watch import POLL_S, changes
from leaderboard.ranking import score
from leaderboard.watching import Times, best_of, change, difference, farewell, last_of, ranked_times, ratios, times

PROBLEM = str(Path(__file__).parent / "problems" / "doubling")
RIGHT = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
OTHER = "def custom_kernel(data):\n    return data[0] + data[0] + data[1]\n"
WRONG = "def custom_kernel(data):\n    return data[0]\n"


# --- saves -------------------------------------------------------------------------------------------------


class EndOfScript(Exception):
    """No step is left."""


def seen(path: Path, *steps: Callable[[], object]) -> list[str]:
    """What the file held at each change, while one step is done in each wait; two idle polls end it."""
    script = [*steps, lambda: None, lambda: None]
    contents = []

    def wait(seconds: float) -> None:
        assert seconds == POLL_S
        if not script:
            raise EndOfScript
        script.pop(0)()

    with contextlib.suppress(EndOfScript):
        for _ in changes(path, wait):
            contents.append(path.read_text() if path.is_file() else "unreadable")  # noqa: PERF401 (kept when it ends)
    return contents


def writes(path: Path, text: str) -> Callable[[], object]:
    return lambda: path.write_text(text)


def nothing() -> None:
    """An idle poll."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "kernel.py").write_text("one")
    return tmp_path / "kernel.py"


def test_the_content_that_is_there_counts_at_once_and_then_each_new_one(path: Path) -> None:
    assert seen(path) == ["one"]
    assert seen(path, nothing, writes(path, "two"), nothing, writes(path, "three")) == ["one", "two", "three"]


def test_a_content_that_comes_back_is_new_again(path: Path) -> None:
    assert seen(path, writes(path, "two"), nothing, writes(path, "one")) == ["one", "two", "one"]


def test_a_save_that_changes_nothing_is_none(path: Path) -> None:
    assert seen(path, path.touch, nothing, writes(path, "one")) == ["one"]


def test_a_file_that_is_still_being_written_is_waited_for(path: Path) -> None:
    assert seen(path, writes(path, ""), writes(path, "tw"), writes(path, "two")) == ["one", "two"]


def test_a_file_that_is_replaced_by_rename_is_a_save(path: Path, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("two")
    os.utime(tmp_path / "new", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    assert seen(path, lambda: (tmp_path / "new").rename(path)) == ["one", "two"]


def test_a_file_that_is_missing_for_a_moment_is_waited_for(path: Path) -> None:
    assert seen(path, path.unlink, nothing, writes(path, "two")) == ["one", "two"]
    assert seen(path, path.unlink, nothing, writes(path, "two")) == ["two"]
    path.unlink()
    assert seen(path, nothing, writes(path, "late")) == ["late"]


def test_what_cannot_be_read_counts_once(path: Path) -> None:
    assert seen(path, path.unlink, path.mkdir, nothing, path.rmdir, writes(path, "two")) == ["one", "unreadable", "two"]


# --- comparing ---------------------------------------------------------------------------------------------


def run(*times_ns: float, label: str = "run 1") -> Times:
    return times(record(results=cases(*times_ns, spread=0.0)), label)


def test_a_change_is_a_number_only_where_the_intervals_are_apart() -> None:
    now = Summary(969.0, 960.0, 978.0, 8)
    said = [
        (text.plain, text.style)
        for text in (
            change(now, Summary(1000.0, 990.0, 1010.0, 8)),
            change(now, Summary(950.0, 949.0, 951.0, 8)),
            change(now, Summary(985.0, 978.0, 992.0, 8)),
            change(now, Summary(1000.0, 0.0, None, 1)),
            change(Summary(999.0, 998.9, 999.1, 8), Summary(1000.0, 999.9, 1000.1, 8)),
            change(now, Summary(0.0, 0.0, 500.0, 8)),
            change(Summary(0.0, 0.0, 500.0, 8), now),
            change(now, None),
        )
    ]
    assert said == [
        ("-3.1 %", "green"), ("+2.0 %", "red"), ("=", "dim"), ("=", "dim"), ("-0.10 %", "green"), ("slower", "red"),
        ("faster", "green"), ("", ""),
    ]  # fmt: skip


def test_only_runs_of_the_same_board_are_compared() -> None:
    now = run(1000.0, label="run 4")
    others = [
        times(record(results=cases(500.0), timing_class="host-synchronising"), "another clock"),
        times(record(results=cases(500.0), device=CPU), "another device"),
        times(record(results=cases(500.0), problem_hash="000000000000"), "another version"),
    ]
    assert last_of(others, now) is best_of(others, now) is None
    mine = run(1200.0)
    assert last_of([mine, *others], now) is best_of([mine, *others], now) is mine


def test_the_best_passed_without_a_doubt_and_has_all_the_cases() -> None:
    doubted = times(record(results=[case(spec(16), timing(500.0), doubts=["async-work"])]), "doubted")
    failed = times(
        record(results=[case(spec(16), timing(500.0)), case(spec(32), verdict="crashed", message="gone")]), "failed"
    )
    runs = [run(1000.0, 1000.0), run(900.0, 1300.0, label="run 2"), run(980.0, label="run 3"), doubted, failed]
    assert best_of(runs, run(1.0, 1.0)) is runs[0]
    assert best_of(runs, run(1.0)) is runs[1]  # over that case alone
    assert last_of(runs, run(1.0)) is failed
    assert best_of(runs, run(1.0, 1.0, 1.0)) is None


def test_a_ranked_record_counts_whatever_its_secret_seeds() -> None:
    secret = cases(800.0, 1600.0)
    ranked = score(record(results=[replace(each, spec={**each.spec, "seed": 1 << 60}) for each in secret]))
    assert ranked is not None
    found = ranked_times(ranked)
    assert best_of([run(1000.0, 1600.0), found], run(1.0, 1.0)) is found
    assert found.label == "record 3f9a01bc (kernel.py by ada)"


def test_cases_that_differ_in_their_seed_alone_are_told_apart() -> None:
    results = [case(spec(16, seed=1), timing(1000.0)), case(spec(16, seed=2), timing(3000.0))]
    now = record(results=results)
    assert ratios(now, times(now, "run 1")) == {each.name: 1.0 for each in results}


def test_ratios_are_by_case_and_none_where_there_is_no_other_time() -> None:
    now = record(results=cases(900.0, 3000.0))
    first, second = (each.name for each in now.timed)
    assert ratios(now, None) == {first: None, second: None}
    found = ratios(now, run(1000.0))
    assert found[first] == pytest.approx(0.9, rel=1e-4)
    assert found[second] is None


def test_the_last_line_names_the_best_of_the_session() -> None:
    assert farewell(0, []) == "stopped watching; 0 runs, none with a score"
    assert farewell(1, [run(8000.0)]) == "stopped watching; 1 run, best 8.00 µs"
    assert farewell(5, [run(8000.0), run(7000.0), run(9000.0)]) == "stopped watching; 5 runs, best 7.00 µs"


# --- the table ---------------------------------------------------------------------------------------------


def test_a_run_stands_beside_the_last_and_the_best() -> None:
    now = record(results=cases(900.0, 2000.0, 4400.0, spread=0.0))
    last, best = run(1000.0, 2000.0, 4000.0, label="run 2"), run(850.0, 1900.0, 4400.0, label="run 1")
    assert shown(difference(now, last, best)) == [
        "passed: 1 test",
        "case        time     95 %  vs last  vs best",
        "───────────────────────────────────────────",
        "m=16   900.00 ns  ±0.00 %  -10.0 %   +5.9 %",
        "m=32     2.00 µs  ±0.00 %        =   +5.3 %",
        "m=64     4.40 µs  ±0.00 %  +10.0 %        =",
        "score    1.99 µs  ±0.00 %  -0.33 %   +3.7 %",
        "GPU time, read from outside; last: run 2; best: run 1",
        "=: the same, the 95 % intervals overlap",
    ]


def test_faster_is_green_slower_red_and_the_same_dim() -> None:
    console = Console(width=80, force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        console.print(
            difference(record(results=cases(900.0, 2000.0, spread=0.0)), run(1000.0, 2000.0), run(800.0, 2000.0))
        )
    text = capture.get()
    assert "\x1b[32m-10.0 %" in text
    assert "\x1b[31m+12.5 %" in text
    assert "\x1b[2m" in text.split("m=32")[1].split("=")[0]


def test_the_first_run_has_nothing_beside_it() -> None:
    assert shown(difference(record(results=cases(900.0, spread=0.0)), None, None)) == [
        "passed: 1 test",
        "case                     time     95 %",
        "──────────────────────────────────────",
        "m=16 n=2112 k=7168  900.00 ns  ±0.00 %",
        "score               900.00 ns  ±0.00 %",
        "GPU time, read from outside",
    ]


def test_a_time_that_is_only_bounded_says_faster_without_a_share() -> None:
    nothing_read = Timing((batch(10.0), batch(-10.0)) * 4)
    lines = shown(difference(record(results=[case(spec(16), nothing_read)]), run(1000.0), None))
    assert [line.split()[-1] for line in lines[3:5]] == ["faster", "faster"]


def test_a_case_that_failed_says_why_and_leaves_no_score() -> None:
    crashed = case(spec(32), verdict="crashed", message="illegal memory access", stage="benchmark")
    now = record(results=[case(spec(8)), case(spec(16), timing(900.0)), crashed])
    assert shown(difference(now, run(1000.0, 2000.0), None)) == [
        "case                     time     95 %  vs last",
        "───────────────────────────────────────────────",
        "m=16 n=2112 k=7168  900.00 ns  ±0.00 %  -10.0 %",
        "GPU time, read from outside; last: run 1",
        "   benchmark              time",
        "──────────────────────────────",
        "✗  m=32 n=2112 k=7168  crashed",
        "     illegal memory access",
        "     to run it alone: --case 'm=32 n=2112 k=7168 seed=1'",
        "",
        "crashed: kernel.py by ada on fp4_gemm",
        "NVIDIA H200 (sm_90)",
    ]


def test_a_file_that_could_not_be_loaded_says_why_and_nothing_else() -> None:
    not_run = case(verdict="not-run", message="it could not be loaded")
    now = record(results=[not_run, not_run], outcome=Outcome("load-failed", "SyntaxError: invalid syntax", "load"))
    assert shown(difference(now, run(1000.0), None)) == [
        "load-failed: kernel.py by ada on fp4_gemm",
        "SyntaxError: invalid syntax",
        "NVIDIA H200 (sm_90)",
    ]


def test_a_doubt_is_said() -> None:
    now = record(results=[case(spec(16), timing(900.0), doubts=["async-work"])])
    lines = shown(difference(now, None, None))
    assert "     async-work: work went on after the call had ended" in lines
    assert "passed with doubts, and therefore not ranked: async-work" in lines


# --- the command -------------------------------------------------------------------------------------------


def scripted(file: Path, *contents: str | bytes) -> Callable[[Path], Iterator[None]]:
    """`changes`, of a file that is rewritten with these contents, and then Ctrl-C."""

    def script(path: Path) -> Iterator[None]:
        assert path == file
        for content in contents:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            yield
        raise KeyboardInterrupt

    return script


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PODIUM_HOME", str(tmp_path / "home"))
    (tmp_path / "kernel.py").write_text(RIGHT)
    return tmp_path / "kernel.py"


def watch(monkeypatch: pytest.MonkeyPatch, file: Path, *options: str) -> tuple[int, list[str], list[str]]:
    arguments = ["watch", str(file), "-p", PROBLEM, "--device", "cpu", *options]
    monkeypatch.setattr(sys, "argv", ["podium", *arguments])
    result = CliRunner().invoke(cli.main, arguments)
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()


def test_each_save_is_run_and_shown_and_nothing_is_recorded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.watch, "changes", scripted(file, RIGHT, b"\xff", OTHER))
    code, lines, mistakes = watch(monkeypatch, file)
    assert code == 0
    assert [line.split()[:2] for line in lines if line.startswith("run ")] == [["run", "1"], ["run", "2"], ["run", "3"]]
    assert lines.count("passed: 3 tests") == 2
    assert mistakes == [f"podium: {file} is not UTF-8 text (line 1); save it as UTF-8"]
    assert "CPU wall time, small cases; last: run 1; best: run 1" in lines
    assert lines[-1].startswith("stopped watching; 3 runs, best ")
    assert cli.open_store(None).entries() == []


def test_json_is_one_object_a_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by = submission("kernel.py", "ada", RIGHT)
    monkeypatch.setattr(harness.watch, "changes", scripted(file, RIGHT, "", WRONG, OTHER))
    code, lines, said = watch(monkeypatch, file, "--case", "rows=3", "--json")
    first, empty, wrong, last = (json.loads(line) for line in lines)
    name = "rows=3 columns=7 seed=2"
    assert (code, empty) == (0, {"error": f"{file} is empty"})
    assert (first.pop("vs_last"), first.pop("vs_best")) == ({name: None}, {name: None})
    assert from_dict(Record, first).submission.sha256 == by.sha256
    assert (wrong["outcome"]["verdict"], wrong["vs_last"]) == ("wrong", {})
    assert last["vs_last"] == last["vs_best"]
    assert last["vs_last"][name] is None or last["vs_last"][name] > 0  # None: so small a case may read as nothing
    assert said[0].startswith("stopped watching; 4 runs")


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--case", "row=3"], "unknown key 'row'; did you mean 'rows'?"), (["--db", "nonsense"], "not a database URL")],
)
def test_a_mistake_in_the_call_ends_it_before_anything_is_run(
    file: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    code, lines, mistakes = watch(monkeypatch, file, *options)
    assert (code, lines) == (1, [])
    assert message in mistakes[0]
