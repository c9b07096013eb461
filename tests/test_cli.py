"""Every command as a person or a program calls it: what it prints, and how it exits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import records
from click.testing import Result

import cli
from harness.evaluate import cases_of
from harness.problem import load_problem
from harness.record import Doubt, Record, from_dict
from harness.secret import SeedFile, source_of
from leaderboard.store import open_store

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = str(ROOT / "tests" / "problems" / "doubling")
RIGHT = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
Podium = Callable[..., Result]


def kernel(tmp_path: Path, source: str = RIGHT, name: str = "kernel.py") -> str:
    (tmp_path / name).write_text(source)
    return str(tmp_path / name)


def one_line(result: Result) -> str:
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("podium: ").rstrip("\n")


# --- submit ------------------------------------------------------------------------------------------------


def test_submit_records_a_right_kernel_and_the_board_shows_it(podium: Podium, tmp_path: Path) -> None:
    result = podium("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu", "--name", "ada")
    assert result.exit_code == 0, result.output
    assert "passed: kernel.py by ada on doubling" in result.stdout
    record_id = result.stdout.split("recorded as ")[1].split()[0]

    board = podium("board", PROBLEM, "--json")
    (shown,) = json.loads(board.stdout)
    rows = [(row["score"]["record_id"], row["score"]["author"], row["rank"]) for row in shown["rows"]]
    assert rows == [(record_id, "ada", 1)]
    assert shown["timing_class"] == "cpu"
    assert "kernel.py" in podium("board", PROBLEM).stdout

    assert podium("show", record_id[:5], "--code").stdout == RIGHT
    assert "score" in podium("show", record_id).stdout
    again = json.loads(podium("show", record_id, "--json").stdout)
    assert [again.pop(key) for key in ("doubts", "clearances", "is_ranked")] == [[], [], True]
    assert from_dict(Record, again).id == record_id


def test_submit_json_is_one_record_and_nothing_else(podium: Podium, tmp_path: Path) -> None:
    result = podium(
        "submit",
        kernel(tmp_path, "print('noise')\n" + RIGHT),
        "-p",
        PROBLEM,
        "--device",
        "cpu",
        "--mode",
        "test",
        "--json",
    )
    record = from_dict(Record, json.loads(result.stdout))
    assert (result.exit_code, record.outcome.verdict, record.mode) == (0, "passed", "test")
    assert "noise" in record.output
    assert result.stderr == ""


def test_a_killed_oracle_is_told_in_one_line_and_nothing_is_recorded(podium: Podium, tmp_path: Path) -> None:
    exploit = (ROOT / "tests" / "exploits" / "oracle_killed.py").read_text()
    result = podium("submit", kernel(tmp_path, exploit), "-p", PROBLEM, "--device", "cpu", "--isolation", "none")
    assert result.exit_code == 1
    assert "was killed by signal 9 (SIGKILL), and nothing was recorded: the submission may have" in one_line(result)
    assert open_store(home=tmp_path / "home").entries() == []


def test_a_submission_that_fails_is_recorded_and_exits_with_two(podium: Podium, tmp_path: Path) -> None:
    result = podium("submit", kernel(tmp_path, ""), "-p", PROBLEM, "--device", "cpu")
    assert result.exit_code == 2
    assert "load-failed: kernel.py" in result.stdout
    assert "defines no custom_kernel" in result.stdout
    record_id = result.stdout.split("recorded as ")[1].split()[0]
    assert podium("show", record_id, "--json").exit_code == 0
    assert "no ranked entries" in podium("board", PROBLEM).stdout


def test_doubts_exit_with_three(podium: Podium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import evaluate

    real = evaluate.evaluate

    def doubting(request: evaluate.Request, listen: evaluate.Listener = lambda progress: None) -> Record:
        record = real(request, listen)
        cases = tuple(dataclasses.replace(case, doubts=("clocks-disagree",)) for case in record.cases)
        return dataclasses.replace(record, cases=cases)

    monkeypatch.setattr(evaluate, "evaluate", doubting)
    result = podium("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu", "--mode", "test")
    assert result.exit_code == 3
    assert "passed with doubts, and therefore not ranked" in result.stdout


def test_a_record_that_cannot_be_kept_is_at_least_shown(
    podium: Podium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.errors import StoreError
    from leaderboard.store import Store

    def full(store: Store, record: Record) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Store, "add", full)
    result = podium("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu")
    assert result.exit_code == 1
    assert "passed: kernel.py" in result.stdout
    assert "recorded" not in result.stdout
    assert result.stderr == "podium: the disk is full\n"


def test_a_place_for_scratch_that_cannot_be_written_is_a_mistake(
    podium: Podium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "caches").write_text("not a folder")
    result = podium("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu", "--mode", "test")
    assert result.exit_code == 1
    assert "a run could not be set up" in one_line(result)


def test_a_case_of_one_s_own_is_run_and_not_recorded(podium: Podium, tmp_path: Path) -> None:
    result = podium(
        "submit",
        kernel(tmp_path),
        "-p",
        PROBLEM,
        "--device",
        "cpu",
        "--case",
        "rows=5 columns=6",
        "--case",
        "rows=4",
        "--json",
    )
    record = from_dict(Record, json.loads(result.stdout))
    assert [case.name for case in record.cases if case.stage == "test"] == [
        "rows=5 columns=6 seed=0",
        "rows=4 columns=32 seed=1",
    ]
    assert "no ranked entries" in podium("board", PROBLEM).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "missing.py", "-p", PROBLEM], "missing.py does not exist; `podium start PROBLEM missing.py`"),
        (["submit", ".", "-p", PROBLEM], ". is a folder"),
        (["submit", "latin.py", "-p", PROBLEM], "latin.py is not UTF-8 text (line 2)"),
        (["submit", "kernel.py", "-p", "fp4gemm"], "there is no problem 'fp4gemm'; did you mean fp4_gemm"),
        (["submit", "kernel.py"], "which problem does kernel.py answer?"),
        (["submit", "kernel.py", "-p", "broken"], "task.yml:1: field 'files': is required"),
        (["submit", "kernel.py", "-p", PROBLEM, "--case", "row=3"], "unknown key 'row'; did you mean 'rows'?"),
        (["submit", "kernel.py", "-p", PROBLEM, "--case", "rows=99"], "also needs columns"),
        (["submit", "kernel.py", "-p", PROBLEM, "--db", "nonsense"], "--db is not a database URL"),
        (["submit", "kernel.py", "-p", PROBLEM, "--db", "sqlite:////proc/nowhere/x.db"], "cannot be opened"),
        (["board", "fp4gemm"], "did you mean fp4_gemm"),
        (["show", "00000000"], "there is no record '00000000'"),
        (["show", "a%b"], "there is no record 'a%b'"),
        (["show"], "Missing argument 'ID'"),
        (["clear", "00", "--doubt", "async-work", "--reason", "x"], "there is no record '00'"),
        (["clear", "00", "--doubt", "slow", "--reason", "x"], "'slow' is not one of 'clocks-disagree', 'below-roof"),
        (["clear", "00", "--reason", "x"], "Missing option '--doubt'"),
        (["clear", "00", "--doubt", "async-work"], "--reason is missing: say why the doubt is none"),
        (["clear", "00", "--doubt", "async-work", "--reason", "x", "--undo"], "--undo takes no --reason"),
        (["submit", "kernel.py", "--mode", "fast"], "'fast' is not one of 'test', 'benchmark', 'leaderboard'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["submit", "kernel.py", "-p", PROBLEM, "--seed-file", "s", "--mode", "test"], "and --mode test has none"),
        (["submit", "kernel.py", "-p", PROBLEM, "--seed-file", "s", "--case", "rows=4"], "--case names open ones"),
        (["submit", "kernel.py", "-p", PROBLEM, "--replay", "3f", "--mode", "benchmark"], "--mode benchmark has none"),
        (["submit", "kernel.py", "-p", PROBLEM, "--replay", "3f", "--case", "rows=4"], "--case names open ones"),
        (["submit", "kernel.py", "-p", PROBLEM, "--replay", "3f"], "there is no record '3f'"),
        (["submit", "kernel.py", "-p", PROBLEM, "--seed-file", "no"], "no does not exist; `podium seed no` makes one"),
        (["submit", "kernel.py", "-p", PROBLEM, "--seed-file", "short.seed"], "has 5 bytes, which could be guessed"),
        (["seed", "kernel.py"], "kernel.py exists already and is left as it is; `podium seed kernel.py --commit`"),
        (["seed", "no/where"], "no/where cannot be written: No such file or directory"),
        (["seed", "no", "--commit"], "no does not exist; `podium seed no` makes one"),
        (["seed", ".", "--commit"], ". is a folder; name a file in it"),
        (["start", "nothing_like_it"], "there is no problem 'nothing_like_it'"),
        (["start", "fp4_gemm", "kernel.py"], "kernel.py exists already"),
        (["problems", "nope"], "there is no problem 'nope'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_one(
    podium: Podium, tmp_path: Path, arguments: list[str], message: str
) -> None:
    kernel(tmp_path)
    (tmp_path / "latin.py").write_bytes(b"# ok\n# caf\xe9\n")
    (tmp_path / "short.seed").write_text("short")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "task.yml").write_text("tests: []\n")
    if "submit" in arguments:
        arguments = [*arguments, "--device", "cpu"]
    result = podium(*arguments)
    assert result.exit_code == 1, result.output
    assert message in one_line(result)

    if arguments[0] != "start":
        as_json = podium(*arguments, "--json")
        assert as_json.exit_code == 1
        assert message in json.loads(as_json.stdout)["error"]


def test_a_gpu_that_is_not_there_is_a_mistake(podium: Podium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")
    result = podium("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cuda")
    assert result.exit_code == 1
    assert "torch sees no GPU here: use --device cpu" in one_line(result)


def test_a_reference_that_raises_is_the_problem_s_fault(podium: Podium, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for file in Path(PROBLEM).iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "reference.py").write_text(
        (folder / "reference.py").read_text().replace("return 2 * data[0] + data[1]", "raise KeyError('x')")
    )
    result = podium("submit", kernel(tmp_path), "-p", str(folder), "--device", "cpu")
    assert result.exit_code == 1
    assert "problem odd failed in its own code at 'stage': KeyError: 'x' (reference.py:" in one_line(result)


# --- hidden cases ------------------------------------------------------------------------------------------


def test_a_contest_s_secret_is_made_published_by_its_hash_and_kept_nowhere_else(podium: Podium, tmp_path: Path) -> None:
    made = podium("seed", "contest.seed")
    content = (tmp_path / "contest.seed").read_bytes()
    commitment = hashlib.sha256(content).hexdigest()
    assert (made.exit_code, made.stdout.splitlines()[1]) == (0, commitment)
    assert content.decode().strip() not in made.output
    assert podium("seed", "contest.seed", "--commit").stdout == f"{commitment}\n"
    as_json = json.loads(podium("seed", "contest.seed", "--commit", "--json").stdout)
    assert as_json == {"file": "contest.seed", "commitment": commitment}

    arguments = ("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu", "--seed-file", "contest.seed")
    result = podium(*arguments)
    assert result.exit_code == 0, result.output
    assert f"SHA-256 {commitment}" in " ".join(result.stdout.split())
    record_id = result.stdout.split("recorded as ")[1].split()[0]
    shown = podium("show", record_id, "--json").stdout
    record = json.loads(shown)
    assert record["secret"] == {"master": None, "commitment": commitment}
    assert [case["name"] for case in record["cases"]] == [
        "rows=4 columns=32 seed=1", "rows=3 columns=7 seed=2", "rows=70 columns=8 seed=3",
        "rows=4 columns=32", "rows=3 columns=7", "rows=70 columns=8",
    ]  # fmt: skip

    problem = load_problem(Path(PROBLEM))
    source = source_of(problem, "cpu", SeedFile(content))
    _, benchmarks = cases_of(problem, "cpu", None, source.master, secret=True)
    told = [source.master.hex(), content.decode().strip(), *(str(case.spec["seed"]) for case in benchmarks)]
    database = b"".join(path.read_bytes() for path in (tmp_path / "home").glob("podium.db*"))
    board = podium("board", PROBLEM, "--json").stdout
    assert record_id in board
    assert [text for text in told if text in shown + board + result.output or text.encode() in database] == []

    assert "are of a seed file" in one_line(podium(*arguments[:-2], "--replay", record_id))
    again = json.loads(podium(*arguments, "--replay", record_id, "--json").stdout)
    assert (again["replay_of"], again["secret"]) == (record_id, record["secret"])
    assert [case["name"] for case in again["cases"]] == [case["name"] for case in record["cases"]]


def test_the_hidden_cases_of_a_record_are_run_once_more_and_not_recorded(podium: Podium, tmp_path: Path) -> None:
    arguments = ("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu")
    first = json.loads(podium(*arguments, "--json").stdout)
    assert len(bytes.fromhex(first["secret"]["master"])) == 32
    again = json.loads(podium(*arguments, "--replay", first["id"][:6], "--json").stdout)
    assert [case["name"] for case in again["cases"]] == [case["name"] for case in first["cases"]]
    assert again["replay_of"] == first["id"] != again["id"]
    shown = podium(*arguments, "--replay", first["id"])
    assert shown.exit_code == 0
    assert f"the hidden cases of record {first['id']} once more: shown, not recorded" in " ".join(shown.stdout.split())
    assert "recorded as" not in shown.stdout
    assert [each.id for each in open_store(home=tmp_path / "home").entries()] == [first["id"]]


# --- clear -------------------------------------------------------------------------------------------------


@pytest.fixture
def doubted(tmp_path: Path) -> str:
    """The id of a record in the board's database that two doubts keep from being ranked."""
    problem_hash = load_problem(Path(PROBLEM)).content_hash
    results = [
        records.case(doubts=("input-modified",)),
        records.case(timed=records.timing(1000.0), doubts=("async-work",)),
    ]
    doubtful = records.record("d0d0d0d0", results, problem="doubling", problem_hash=problem_hash)
    open_store(home=tmp_path / "home").add(doubtful)
    return doubtful.id


def test_the_doubts_that_clear_takes_are_all_there_are() -> None:
    assert get_args(Doubt) == cli.DOUBTS


def test_clear_ranks_a_record_and_everybody_sees_why(
    podium: Podium, doubted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.submission.default_author", lambda: "ada")
    result = podium("clear", "d0", "--doubt", "async-work", "--reason", "a daemon of the driver's")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "d0d0d0d0: kernel.py by ada on doubling",
        "passed with doubts, and therefore not ranked: input-modified",
    ]
    assert lines[2].startswith("async-work: cleared by ada on 20")
    assert "no ranked entries" in podium("board", PROBLEM).stdout

    result = podium("clear", "d0", "--doubt", "input-modified", "--reason", "it is scratch", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["id"], answer["is_ranked"]) == (0, doubted, True)
    assert answer["doubts"] == ["input-modified", "async-work"]
    shown = [(each["doubt"], each["reason"], each["author"]) for each in answer["clearances"]]
    assert sorted(shown) == [
        ("async-work", "a daemon of the driver's", "ada"),
        ("input-modified", "it is scratch", "ada"),
    ]

    (board,) = json.loads(podium("board", PROBLEM, "--json").stdout)
    (row,) = board["rows"]
    assert (row["score"]["doubts"], row["score"]["clearances"]) == (answer["doubts"], answer["clearances"])
    text = " ".join(podium("board", PROBLEM).stdout.split())
    assert "kernel.py†" in text
    assert "† d0d0d0d0: input-modified, cleared by ada on 20" in text and "UTC: it is scratch" in text

    again = json.loads(podium("show", "d0", "--json").stdout)
    assert {key: again[key] for key in answer} == answer
    text = " ".join(podium("show", "d0").stdout.split())
    assert "passed with doubts, all of them cleared, and therefore ranked" in text
    assert "UTC: a daemon of the driver's" in text


def test_a_doubt_is_cleared_once_and_the_clearance_can_be_taken_back(podium: Podium, doubted: str) -> None:
    both = ("clear", "d0", "--doubt", "async-work", "--doubt", "input-modified", "--doubt", "async-work")
    assert podium(*both, "--reason", "fine").exit_code == 0
    again = podium("clear", "d0", "--doubt", "async-work", "--reason", "fine")
    assert again.exit_code == 1
    assert one_line(again).startswith("async-work of record d0d0d0d0 is cleared already, by ")
    back = podium("clear", "d0", "--doubt", "async-work", "--undo", "--json")
    answer = json.loads(back.stdout)
    assert (back.exit_code, answer["is_ranked"]) == (0, False)
    assert [each["doubt"] for each in answer["clearances"]] == ["input-modified"]
    assert "no ranked entries" in podium("board", PROBLEM).stdout
    twice = podium("clear", "d0", "--doubt", "async-work", "--undo")
    assert (twice.exit_code, one_line(twice)) == (
        1,
        "async-work of record d0d0d0d0 is not cleared, so there is nothing to undo",
    )


# --- the others --------------------------------------------------------------------------------------------


def test_every_command_has_help_and_an_example(podium: Podium) -> None:
    assert "Commands:" in podium("--help").stdout
    for name in cli.main.commands:
        shown = podium(name, "--help").stdout
        assert f"Example:  podium {name}" in shown


def test_the_version_is_the_package_s(podium: Podium) -> None:
    from harness import __version__

    assert podium("--version").stdout.strip() == f"podium, version {__version__}"


def test_problems_lists_and_shows(podium: Podium) -> None:
    names = [each["name"] for each in json.loads(podium("problems", "--json").stdout)]
    assert names == ["flash_attention_fwd", "fp4_gemm", "mla_decode", "mxfp4_moe", "nvfp4_gemm"]
    listing = podium("problems").stdout
    assert {name for name in (*names, "amd-mxfp4-mm", "amd-mixed-mla") if name not in listing} == set()
    page = podium("problems", "amd-mixed-mla").stdout
    assert "mla_decode" in page
    assert "8192" in page


def test_start_gives_a_file_that_runs(podium: Podium, tmp_path: Path) -> None:
    result = podium("start", PROBLEM, "mine.py")
    assert result.exit_code == 0
    assert "podium submit mine.py --mode test" in result.stdout
    assert (tmp_path / "mine.py").read_text().startswith("#!POPCORN leaderboard doubling")
    assert podium("submit", "mine.py", "-p", PROBLEM, "--device", "cpu", "--mode", "test").exit_code == 0


def test_audit_says_which_exploits_this_machine_stops(podium: Podium) -> None:
    names = ("cache_by_shape", "all_calls_in_the_first_with_late_lines", "cpu_tensor_returned")
    result = podium("audit", *names, "--device", "cpu", "--json")
    found = {each["exploit"]: each for each in json.loads(result.stdout)}
    assert [found[name]["state"] for name in names] == ["as declared", "not stopped", "not run"]
    assert found["cache_by_shape"]["found"] == "wrong"
    assert "takes less time than its calls slept" in found["all_calls_in_the_first_with_late_lines"]["found"]
    assert result.exit_code == 2

    shown = podium("audit", "plain", "--device", "cpu")
    assert (shown.exit_code, "1 as declared" in shown.stdout) == (0, True)
    assert one_line(podium("audit", "cache_by_shap")) == (
        "there is no exploit 'cache_by_shap'; did you mean 'cache_by_shape'?"
    )


def test_doctor_says_what_this_machine_gives(podium: Podium) -> None:
    result = podium("doctor", "--device", "cpu", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert {"python", "torch", "device", "clock", "own session", "records"} <= set(checks)
    assert checks["device"]["state"] == "lesser"
    assert "messages between processes" in checks["clock"]["found"]
    assert "clock" in podium("doctor", "--device", "cpu").stdout


def test_an_unknown_device_is_refused(podium: Podium) -> None:
    result = podium("doctor", "--device", "tpu")
    assert result.exit_code == 1
    assert "'tpu' is none of auto, cpu, cuda, cuda:N" in result.stderr


# --- two at once, stopped, killed ----------------------------------------------------------------------------

SLOW = RIGHT.replace("    return", "    import time; time.sleep(0.05)\n    return")


def start(tmp_path: Path, file: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PODIUM_HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "cli", "submit", file, "-p", PROBLEM, "--device", "cpu", "--json"]
    # A background job of a script ignores SIGINT, and so would its children: this one listens wherever the tests run.
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def left(tmp_path: Path) -> list[str]:
    """Processes and folders of a run that used this TMPDIR."""
    found = [str(path) for path in tmp_path.glob("podium-[0-9]*")]
    for command in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(tmp_path).encode() in command.read_bytes() and command.parent.name != str(os.getpid()):
                found.append(command.parent.name)
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_submits_at_once_are_both_recorded(podium: Podium, tmp_path: Path) -> None:
    runs = [start(tmp_path, kernel(tmp_path, f"# {name}\n{RIGHT}", f"{name}.py")) for name in ("one", "two")]
    records = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], records
    (board,) = json.loads(podium("board", PROBLEM, "--json").stdout)
    assert {row["score"]["record_id"] for row in board["rows"]} == {record["id"] for record in records}


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_run_leaves_nothing_and_the_next_one_works(
    podium: Podium, tmp_path: Path, stop: signal.Signals, code: int
) -> None:
    run = start(tmp_path, kernel(tmp_path, SLOW))
    wait_for(lambda: any(tmp_path.glob("podium-[0-9]*/contestant-*/submission.py")))
    time.sleep(2.0)
    run.send_signal(stop)
    shown, _ = run.communicate(timeout=60)
    assert run.returncode == code
    if stop != signal.SIGKILL:
        assert "nothing of this run was recorded" in json.loads(shown)["error"]
    wait_for(lambda: not left(tmp_path))
    assert "no ranked entries" in podium("board", PROBLEM).stdout
    assert podium("submit", kernel(tmp_path), "-p", PROBLEM, "--device", "cpu", "--mode", "test").exit_code == 0
