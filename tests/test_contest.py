"""`podium compare` from end to end on the CPU device: verdicts, failures, and what is no comparison at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from records import MI355X, record

from harness.contest import Contender, Contest, compare_kernels, labels
from harness.errors import SubmissionError
from harness.problem import load_problem
from harness.progress import Progress
from harness.record import Record
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
