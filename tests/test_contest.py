"""`podium compare` from end to end on the CPU device: verdicts, failures, and what is no comparison at all."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from records import H200, MI355X, SOFTWARE, record

from harness import wire
from harness.baseline import Baseline, Empty
from harness.cases import Case
from harness.compare import Comparison
from harness.contest import MAX_HEATS, Contender, Contest, _Contest, compare_kernels, labels
from harness.devices.monitor import Missing
from harness.errors import DeviceError, SubmissionError
from harness.heats import Heats
from harness.measure import Round, Timed
from harness.problem import load_problem
from harness.processes.court import NoRoom
from harness.processes.isolation import Limits
from harness.progress import Progress
from harness.record import Batch, CaseResult, Outcome, Record, Timing
from harness.submission import read_submission
from leaderboard.store import open_store

PROBLEM = Path(__file__).parent / "problems" / "doubling"
RIGHT = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
SLOW = (
    "import torch\ndef custom_kernel(data):\n    for _ in range(300): torch.ones(400).sum()\n" + RIGHT.splitlines()[1]
)
WRONG = "def custom_kernel(data):\n    return 2 * data[0]\n"
Podium = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison in a hundred calls a kernel and its copy different, on a busy CPU more: not tested here."""
    monkeypatch.setattr("harness.compare.CONTROL_LEVEL", 1e-6)


def kernel(folder: Path, name: str, source: str) -> str:
    (folder / name).write_text(source)
    return name


def contest(tmp_path: Path, *contenders: Contender) -> Contest:
    return Contest(load_problem(PROBLEM), contenders, "cpu", tmp_path / "caches", max_seconds=2)


def contender(tmp_path: Path, source: str, name: str = "kernel.py", taken: Record | None = None) -> Contender:
    return Contender(name, read_submission(tmp_path / kernel(tmp_path, name, source), "ada"), taken)


def test_the_faster_kernel_is_named_with_its_samples_and_a_page_is_written(podium: Podium, tmp_path: Path) -> None:
    fast, slow = kernel(tmp_path, "fast.py", RIGHT), kernel(tmp_path, "slow.py", SLOW)
    arguments = ("compare", fast, slow, "-p", str(PROBLEM), "--device", "cpu", "--max-seconds", "4")
    result = podium(*arguments, "--html", "page.html", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"], pair["overall"]["verdict"]) == ("fast.py", "slow.py", "FASTER")
    assert pair["overall"]["ratio"] < 0.7
    assert [each["label"] for each in found["standings"]] == ["fast.py", "slow.py"]
    processes = {batch["process"] for batch in found["entries"][0]["cases"][0]["batches"]}
    assert processes >= {0, 1, 2}
    assert found["control_of"] in ("fast.py", "slow.py")
    page = (tmp_path / "page.html").read_text()
    assert "fast.py is FASTER than slow.py" in page.replace("<b>", "").replace("</b>", "") or "FASTER" in page
    assert not (tmp_path / "home" / "podium.db").exists()  # a comparison is no entry


def test_a_kernel_that_does_not_pass_is_not_timed_and_the_reason_is_given(podium: Podium, tmp_path: Path) -> None:
    right, wrong = kernel(tmp_path, "right.py", RIGHT), kernel(tmp_path, "wrong.py", WRONG)
    result = podium("compare", right, wrong, "-p", str(PROBLEM), "--device", "cpu", "--json")
    assert result.exit_code == 2
    (pair,) = json.loads(result.stdout)["pairs"]
    assert pair["overall"]["verdict"] == "INVALID"
    assert pair["overall"]["reason"].startswith("wrong.py wrong: rows=4 columns=32 seed=1: row")
    wrong_entry = json.loads(result.stdout)["entries"][1]
    assert all(not case["batches"] for case in wrong_entry["cases"])


def test_ctrl_c_shows_what_was_measured_so_far(tmp_path: Path) -> None:
    def stop_in_the_second_heat(progress: Progress) -> None:
        if progress.stage == "compare, heat 2":
            raise KeyboardInterrupt

    asked = contest(tmp_path, contender(tmp_path, SLOW, "a.py"), contender(tmp_path, SLOW + "\n", "b.py"))
    found = compare_kernels(asked, stop_in_the_second_heat)
    assert (found.complete, found.stopped_by) == (False, "Ctrl-C")
    assert {batch.process for entry in found.entries for case in entry.cases for batch in case.batches} == {0}
    assert found.pairs[0].overall.verdict == "UNRESOLVED"


def test_the_same_file_twice_is_compared_and_said_to_be_the_same(tmp_path: Path) -> None:
    asked = contest(
        tmp_path, contender(tmp_path, RIGHT, "a.py"), replace(contender(tmp_path, RIGHT, "a.py"), label="a.py (2)")
    )
    found = compare_kernels(asked)
    assert "a.py and a.py (2) are the same file" in found.notes
    assert found.pairs[0].overall.verdict in ("TIE", "UNRESOLVED", "FASTER", "SLOWER", "INVALID")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problem": "other"}, "is of other, not doubling"),
        ({"problem_hash": "0" * 12}, "is of another version of doubling"),
        ({"device": MI355X}, "was measured on AMD Instinct MI355X"),
    ],
)
def test_records_of_something_else_are_refused_with_what_to_do(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    problem = load_problem(PROBLEM)
    fitting: dict[str, object] = {"problem": "doubling", "problem_hash": problem.content_hash, **change}
    taken = record("3f9a01bc", **fitting)  # type: ignore[arg-type]
    asked = contest(tmp_path, contender(tmp_path, RIGHT, taken=taken), contender(tmp_path, RIGHT, "b.py"))
    with pytest.raises(SubmissionError, match=words) as caught:
        compare_kernels(asked)
    assert "podium show 3f9a01bc --code" in str(caught.value)


def test_records_of_two_devices_or_timing_classes_are_no_pair(tmp_path: Path) -> None:
    problem = load_problem(PROBLEM)
    here = record("aaaaaaaa", problem="doubling", problem_hash=problem.content_hash)
    there = record("bbbbbbbb", problem="doubling", problem_hash=problem.content_hash, device=MI355X)
    waits = record("cccccccc", problem="doubling", problem_hash=problem.content_hash, timing_class="host-synchronising")
    for other, words in ((there, "different devices"), (waits, "different timing classes")):
        both = (contender(tmp_path, RIGHT, "a.py", here), contender(tmp_path, RIGHT, "b.py", other))
        with pytest.raises(SubmissionError, match=words):
            compare_kernels(contest(tmp_path, *both))


def test_a_record_s_kernel_can_be_compared_by_its_id(podium: Podium, tmp_path: Path) -> None:
    file = kernel(tmp_path, "fast.py", RIGHT)
    first = podium("submit", file, "-p", str(PROBLEM), "--device", "cpu", "--json")
    known = json.loads(first.stdout)["id"]
    slow = kernel(tmp_path, "slow.py", SLOW)
    result = podium("compare", known, slow, "-p", str(PROBLEM), "--device", "cpu", "--max-seconds", "1", "--json")
    assert result.exit_code == 0, result.output
    entries = json.loads(result.stdout)["entries"]
    assert [(each["label"], each["record_id"]) for each in entries] == [(f"{known}:fast.py", known), ("slow.py", None)]
    assert len(open_store(None, home=tmp_path / "home").scores()) == 1


def test_mistakes_in_the_call_are_a_line_each(podium: Podium, tmp_path: Path) -> None:
    file = kernel(tmp_path, "a.py", RIGHT)
    for arguments, words in (
        (("compare", file), "needs two kernels"),
        (("compare", file, "nothing.py", "-p", str(PROBLEM)), "nothing.py does not exist"),
        (("compare", file, file, "-p", str(PROBLEM), "--precision", "5"), "no share"),
        (("compare", file, file, "-p", str(PROBLEM), "--precision", "x%"), "no share"),
        (("compare", file, file, "-p", str(PROBLEM), "--html", "no/where.html"), "cannot write"),
        (("submit", file, "-p", str(PROBLEM), "--precision", "-1%"), "no share"),
    ):
        result = podium(*arguments)
        assert result.exit_code == 1, arguments
        assert words in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_labels_are_as_short_as_they_can_be() -> None:
    assert labels(["x/a.py", "x/b.py"]) == ["a.py", "b.py"]
    assert labels(["x/a.py", "y/a.py", "c.py"]) == ["x/a.py", "y/a.py", "c.py"]
    assert labels(["a.py", "a.py"]) == ["a.py", "a.py (2)"]
    assert labels(["a.py", "x/a.py"]) == ["a.py", "x/a.py"]


# --- what fails ------------------------------------------------------------------------------------------------


def copy_of(index: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hidden copy be this kernel's."""
    seed = next(seed for seed in range(1000) if random.Random(seed).randrange(count) == index)
    monkeypatch.setattr("harness.contest.secrets.randbits", lambda bits: seed)


def test_kernels_that_failed_are_gone_before_the_others_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of(2, 4, monkeypatch)
    pids = tmp_path / "pids"
    note = f"import os\nwith open({str(pids)!r}, 'a') as file:\n    file.write(f'{{os.getpid()}}\\n')\n"
    hanging = contender(tmp_path, note + "import time\ntime.sleep(1000)\n", "hanging.py")
    wrong = contender(tmp_path, note + WRONG, "wrong.py")
    fine = [contender(tmp_path, RIGHT + "\n" * number, f"{number}.py") for number in range(2)]
    alive: list[str] = []

    def look(progress: Progress) -> None:
        if progress.stage == "compare, heat 1" and not progress.batches:
            alive.extend(pid for pid in pids.read_text().split() if os.path.exists(f"/proc/{pid}"))

    asked = contest(tmp_path, hanging, fine[0], wrong, fine[1])
    seen = Limits(load_s=5, isolation="none")  # inside, their process numbers are others
    found = compare_kernels(replace(asked, limits=seen), look)
    assert alive == []
    assert len(pids.read_text().split()) == 3  # each once, and the copy of the one that was wrong
    outcomes = {entry.label: entry.outcome for entry in found.entries}
    assert [outcomes[label].verdict for label in outcomes] == ["timed-out", "passed", "wrong", "passed"]
    assert "while it was imported" in outcomes["hanging.py"].message
    verdicts = {(pair.first, pair.second): pair.overall.verdict for pair in found.pairs}
    assert [pair for pair, verdict in verdicts.items() if verdict != "INVALID"] == [("0.py", "1.py")]


@pytest.mark.parametrize("copied", [0, 1])
def test_one_kernel_alone_is_not_timed_whosever_the_copy_is(
    copied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of(copied, 2, monkeypatch)
    asked = contest(tmp_path, contender(tmp_path, RIGHT, "right.py"), contender(tmp_path, WRONG, "wrong.py"))
    found = compare_kernels(asked)
    assert [entry.outcome.verdict for entry in found.entries] == ["passed", "wrong"]
    assert not any(case.batches for entry in found.entries for case in entry.cases)
    assert found.stopped_by == "nothing left to compare"


class ScriptedPair:
    """A contestant that is started and loaded in name only."""

    loaded: list[str]

    def __init__(self, court: Any, setting: Any, seat: int) -> None:
        self.setting = setting
        self.pid: int | None = 1
        self.is_prepared = self.is_loaded = False
        self.output, self.notes = "", ()

    def __enter__(self) -> ScriptedPair:
        return self

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self.pid is None else (self.pid,)

    def signal_end(self) -> None:
        """Ends it no earlier than `__exit__`."""

    def __exit__(self, *_: object) -> None:
        self.pid = None

    def begin_prepare(self) -> None:
        self.is_prepared = True

    def prepare(self) -> None:
        pass

    def load(self) -> wire.Loaded | Outcome:
        self.is_loaded = True
        ScriptedPair.loaded.append(self.setting.source)
        return wire.Loaded(interprets=False)


def play(
    script: Callable[[str, int, Case], Outcome | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int = 0
) -> Comparison:
    """Kernels a, b and c, timed by a script: `script(kernel, heat, case)` fails one of them, or the case by NoRoom."""
    copy_of(copied, 3, monkeypatch)
    ScriptedPair.loaded = []
    monkeypatch.setattr("harness.heats.Pair", ScriptedPair)

    def measure(court: Any, pairs: Sequence[Any], case: Case, heat: Round, *_: Any) -> list[Timed]:
        assert all(pair.pid is not None for pair in pairs)
        return [timed(pair.setting.source, heat.number, case) for pair in pairs]

    def timed(kernel: str, number: int, case: Case) -> Timed:
        outcome = script(kernel, number, case) or Outcome("passed")
        found = CaseResult(case.name, "benchmark", dict(case.spec), outcome)
        reading = 20_000 + 1000 * "abc".index(kernel) + 37 * number * (1 + "abc".index(kernel))
        batches = tuple(Batch(1, reading, 0, process=number, block=block) for block in range(2))
        return Timed(replace(found, timing=Timing(batches)) if outcome.verdict == "passed" else found, "gated")

    def read_baselines(court: Any, pairs: Sequence[Any], *_: Any) -> list[Baseline]:
        assert not any(pair.is_loaded for pair in pairs)
        return [Baseline(0.0, None, Empty(0.0, 0.0)) for _ in pairs]

    monkeypatch.setattr("harness.contest.measure", measure)
    monkeypatch.setattr("harness.baseline.read_baselines", read_baselines)
    kernels = [contender(tmp_path, name, name) for name in "abc"]
    asked = replace(contest(tmp_path, *kernels), precision=1e-9, max_seconds=None)
    run = _Contest(asked, lambda progress: None)
    run.device, run.software = H200, SOFTWARE
    court: Any = SimpleNamespace(kind="cpu", pid=0)
    with Heats(court, run.settings(), 3, MAX_HEATS) as heats:
        run.load(heats)
        run.time(heats, Missing("none here"))
    return run.comparison({})


UNKNOWN = replace(H200, model="a device without a data sheet")
SLOW_MEMORY = 8 * 70 * 8 / 25_000e-9
"""Bytes per second at which the largest of three small cases takes 25 us, and the next one 6 us."""
ALL = ("rows=4 columns=32", "rows=3 columns=7", "rows=70 columns=8")


@pytest.mark.parametrize(
    ("idle_ns", "bytes_per_s", "said"),
    [
        ([0.0] * 4, None, ()),
        ([2e6, 0.0, 0.0, 0.0], None, ()),
        ([2e6] * 4, None, tuple(f"{name}: async-work" for name in ALL)),
        ([0.0] * 4, SLOW_MEMORY, (f"{ALL[2]}: below-roofline",)),
    ],
)
def test_doubts_are_judged_over_all_heats_and_by_what_this_device_was_seen_to_do(
    idle_ns: list[float], bytes_per_s: float | None, said: tuple[str, ...], tmp_path: Path
) -> None:
    run = _Contest(contest(tmp_path, contender(tmp_path, RIGHT, "a"), contender(tmp_path, SLOW, "b")), lambda _: None)
    for case in run.cases:
        batches = (Batch(1, 20_000, 0),)
        run.evidence[0][case.name] = [
            CaseResult(case.name, "benchmark", dict(case.spec), Outcome("passed"), timing=Timing(batches, idle_ns=each))
            for each in idle_ns
        ]
    court: Any = SimpleNamespace(kind="cuda", device=UNKNOWN, ask=lambda *_: wire.RoofFound(bytes_per_s, {}))
    run.note_doubts(court)
    hidden = [note.partition(" seed=")[0] + note[note.rindex(":") :] for note in run.notes]
    assert hidden == [f"a on {each}" for each in said]


def test_after_ctrl_c_nothing_more_is_asked_of_the_device(tmp_path: Path) -> None:
    run = _Contest(contest(tmp_path, contender(tmp_path, RIGHT, "a"), contender(tmp_path, SLOW, "b")), lambda _: None)
    run.stopped_by = "Ctrl-C"
    court: Any = SimpleNamespace()
    run.note_doubts(court)
    assert run.notes == ()


@pytest.mark.parametrize("copied", [0, 1, 2])
def test_a_kernel_that_fails_in_heat_seven_has_no_verdict_and_the_others_go_on(
    copied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(kernel: str, heat: int, case: Case) -> Outcome | None:
        return Outcome("crashed", f"SIGSEGV in heat {heat}") if kernel == "b" and heat == 6 else None

    found = play(script, tmp_path, monkeypatch, copied)
    overall = {(pair.first, pair.second): pair.overall for pair in found.pairs}
    assert (overall["a", "c"].verdict, overall["a", "c"].heats) == ("FASTER", MAX_HEATS)
    for pair in (("a", "b"), ("b", "c")):
        assert overall[pair].verdict == "INVALID"
        assert overall[pair].reason.startswith("b crashed: rows=") and "SIGSEGV in heat 6" in overall[pair].reason
    assert [len(entry.cases[0].batches) for entry in found.entries] == [2 * MAX_HEATS, 0, 2 * MAX_HEATS]
    assert ScriptedPair.loaded.count("b") == (14 if copied == 1 else 7)
    assert next(each for each in found.standings if each.label == "b").time_ns is None


def test_the_first_failure_is_the_one_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(pair: ScriptedPair) -> wire.Loaded | Outcome:
        ScriptedPair.loaded.append(pair.setting.source)
        number = ScriptedPair.loaded.count("c")
        fails = pair.setting.source == "c" and number > 1
        return Outcome("load-failed", f"import {number}", "load") if fails else wire.Loaded(interprets=False)

    monkeypatch.setattr(ScriptedPair, "load", load)
    found = play(lambda kernel, heat, case: None, tmp_path, monkeypatch)
    assert found.entries[2].outcome == Outcome("load-failed", "import 2", "load")
    assert ScriptedPair.loaded.count("c") == 2


def test_when_only_one_is_left_it_ends_whosever_the_copy_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(kernel: str, heat: int, case: Case) -> Outcome | None:
        return Outcome("crashed", "SIGSEGV") if heat == 4 and kernel != "b" else None

    for copied in range(3):
        found = play(script, tmp_path, monkeypatch, copied)
        assert found.stopped_by == "nothing left to compare"
        left = [batch.process for case in found.entries[1].cases for batch in case.batches]
        assert (max(left), left.count(4)) == (4, 2)  # of three cases only the one in which the others failed
        assert {pair.overall.verdict for pair in found.pairs} == {"INVALID"}


def crowded(heat: int) -> Callable[[str, int, Case], Outcome | None]:
    """No room for the second case of a heat."""
    seen: list[Case] = []

    def script(kernel: str, number: int, case: Case) -> Outcome | None:
        if number == heat and case not in seen:
            seen.append(case)
        if len(seen) == 2:
            raise NoRoom("this case does not fit into the device's memory (full)")
        return None

    return script


def test_no_room_in_a_later_heat_ends_it_with_the_heats_that_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = play(crowded(4), tmp_path, monkeypatch)
    assert found.stopped_by == "memory"
    assert [pair.overall.verdict for pair in found.pairs] == ["FASTER"] * 3
    heats = {tuple(batch.process for batch in case.batches) for entry in found.entries for case in entry.cases}
    assert heats == {(0, 0, 1, 1, 2, 2, 3, 3)}
    (note,) = found.notes
    assert note.startswith("heat 5 is left out and was the last: rows=")
    assert note.endswith("this case does not fit into the device's memory (full)")


def test_no_room_before_there_are_enough_heats_is_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = play(crowded(2), tmp_path, monkeypatch)
    assert {entry.outcome.verdict for entry in found.entries} == {"not-run"}
    assert {pair.overall.verdict for pair in found.pairs} == {"INVALID"}


def test_the_tests_are_those_of_a_ranked_run(tmp_path: Path) -> None:
    kernels = (contender(tmp_path, RIGHT, "a.py"), contender(tmp_path, RIGHT, "b.py"))
    problem = replace(load_problem(PROBLEM), regimes=("normal", "heavy"))
    asked = replace(contest(tmp_path, *kernels), problem=problem)
    tests = _Contest(asked, lambda progress: None).tests
    assert [case.spec.get("regime") for case in tests] == [None, None, None, "heavy"]
    assert tests[3].spec["seed"] != problem.smoke[0].spec["seed"]
    chosen = (Case({"rows": 3, "columns": 3, "seed": 9}),)
    run = _Contest(replace(asked, cases=chosen), lambda progress: None)
    assert (run.tests, run.cases) == (chosen, chosen)


def test_a_device_that_gives_no_more_processes_ends_it_with_the_heats_that_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(pair: ScriptedPair) -> None:
        started.append(pair)
        if len(started) > 4 * most:
            raise DeviceError("a contestant process could not use the device: CUDA error: out of memory")
        pair.is_prepared = True

    monkeypatch.setattr(ScriptedPair, "begin_prepare", begin)
    most, started = 5, []  # type: ignore[var-annotated]
    found = play(lambda kernel, heat, case: None, tmp_path, monkeypatch)
    assert found.stopped_by == "device"
    assert [pair.overall.heats for pair in found.pairs] == [5] * 3
    assert [pair.overall.verdict for pair in found.pairs] == ["FASTER"] * 3
    assert found.notes == (
        "no further heat after 5: a contestant process could not use the device: CUDA error: out of memory",
    )
    most, started = 3, []
    with pytest.raises(DeviceError, match="out of memory"):
        play(lambda kernel, heat, case: None, tmp_path, monkeypatch)
