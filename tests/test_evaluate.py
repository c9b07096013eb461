"""Whole runs on the CPU device: every way a submission can end, and that the next one works."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import wire
from harness.errors import DeviceError
from harness.evaluate import Request, evaluate
from harness.heats import Heats
from harness.measure import Round, Timed, measure
from harness.problem import load_problem
from harness.processes.court import NoRoom
from harness.processes.isolation import Limits
from harness.processes.pair import Pair
from harness.processes.peer import PeerEnded, descendants
from harness.progress import Listener, Progress
from harness.record import Kernel, Mode, Record, from_dict, to_dict
from harness.submission import read_submission
from harness.timing.sampling import shared

PROBLEM = Path(__file__).parent / "problems" / "doubling"
RIGHT = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
FAST = Limits(load_s=30, compile_s=30, call_s=30)
Run = Callable[..., Record]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Evaluate a submission's text on the CPU; afterwards nothing of it may be left."""
    before = _leftovers()

    def submit(
        source: str,
        mode: Mode = "test",
        limits: Limits = FAST,
        problem: Path = PROBLEM,
        kernels: bool = False,
        listen: Listener = lambda progress: None,
    ) -> Record:
        file = tmp_path / "kernel.py"
        file.write_text(textwrap.dedent(source))
        submission, caches = read_submission(file, "somebody"), tmp_path / "caches"
        request = Request(load_problem(problem), submission, mode, "cpu", caches, limits=limits, kernels=kernels)
        return evaluate(request, listen)

    yield submit
    assert _leftovers() - before == set()


def _leftovers() -> set[str]:
    """Folders, shared memory, descriptors and processes that runs of this process have left."""
    mark = f"podium-{os.getpid()}-"
    found = set(glob.glob(f"{tempfile.gettempdir()}/{mark}*")) | set(glob.glob("/dev/shm/*podium*"))
    found |= {f"descriptor {name}" for name in os.listdir("/proc/self/fd")}
    for process in glob.glob("/proc/[0-9]*"):
        try:
            parent = Path(process, "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) or mark.encode() in Path(process, "environ").read_bytes():
                found.add(process)
        except OSError:
            continue
    return found


def end(record: Record) -> tuple[str, str]:
    return record.outcome.verdict, record.outcome.message


def test_a_right_kernel_passes_every_test_case(run: Run) -> None:
    record = run(RIGHT)
    assert end(record) == ("passed", "")
    assert [case.name for case in record.cases] == [
        "rows=4 columns=32 seed=1",
        "rows=3 columns=7 seed=2",
        "rows=70 columns=8 seed=3",
    ]
    assert [case.outcome.verdict for case in record.cases] == ["passed"] * 3
    judgement = record.cases[0].judgement
    assert judgement is not None
    assert (judgement.calls, judgement.gpumode, judgement.row_error) == (2, "pass", 0.0)
    assert {layer.name for layer in record.isolation if layer.applied} >= {
        "own session",
        "clean environment",
        "scratch folder",
    }


def test_a_leaderboard_run_is_timed_on_the_referee_s_clock_with_secret_seeds(run: Run) -> None:
    record = run("import time\n" + RIGHT.replace("return", "time.sleep(0.002); return"), mode="leaderboard")
    assert end(record) == ("passed", "")
    assert record.is_ranked
    assert record.timing_class == "cpu"
    timed = record.timed
    assert len(timed) == 3
    assert {case.spec["seed"] for case in timed}.isdisjoint({1, 2, 3})
    for case in timed:
        assert case.timing is not None
        assert case.timing.processes == 3
        assert len(case.timing.batches) == 3 * shared(3)
        assert min(batch.per_call_ns for batch in case.timing.batches) > 1.5e6
    assert from_dict(Record, to_dict(record)) == record
    assert set(record.stages_ns) >= {"start", "load", "test", "benchmark"}


def test_what_each_benchmark_launches_is_listed_where_that_is_asked_for(run: Run) -> None:
    record = run(RIGHT, mode="benchmark", kernels=True)
    assert end(record) == ("passed", "")
    assert [case.kernels for case in record.timed] == [(Kernel("aten::mul", 1), Kernel("aten::add", 1))] * 3
    assert "kernels" in record.stages_ns
    assert from_dict(Record, to_dict(record)) == record
    plain = run(RIGHT, mode="benchmark")
    assert {case.kernels for case in plain.timed} == {()}


@pytest.mark.parametrize(
    ("trick", "why"),
    [
        ("raise ValueError('not with me')", "ValueError: not with me"),
        ("os._exit(0)", "the process ended"),
        ("sys.modules['torch.profiler'] = None", "import of torch.profiler halted"),
    ],
)
def test_a_submission_that_will_not_be_looked_at_is_a_note_and_keeps_its_times(run: Run, trick: str, why: str) -> None:
    source = """
        import os, sys

        def custom_kernel(data):
            if sys._getframe(2).f_code.co_name == "inventory":
                TRICK
            if "TRICK".startswith("sys"):
                TRICK
            return 2 * data[0] + data[1]
    """
    record = run(source.replace('"TRICK"', repr(trick)).replace("TRICK", trick), mode="benchmark", kernels=True)
    assert end(record) == ("passed", "")
    assert len(record.timed) == 3
    assert {case.kernels for case in record.timed} == {()}
    (note,) = [note for note in record.notes if "launches is not known" in note]
    assert note.startswith(f"what {record.timed[0].name} launches is not known: ")
    assert why in note


def test_a_run_whose_last_process_is_gone_is_kept_without_a_list_of_kernels(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_or_none(heats: Heats, further: int | None = None) -> Any:
        if heats.number == 0:
            heats.past += heats.current.values()
            heats.current.pop(0).__exit__(None, None, None)
            raise DeviceError("full")
        return following(heats, further)

    following = Heats.next
    monkeypatch.setattr(Heats, "next", next_or_none)
    monkeypatch.setattr("harness.evaluate.is_enough", lambda merged, precision: False)
    monkeypatch.setattr(Request, "processes", (1, 2))
    record = run(RIGHT, mode="leaderboard", kernels=True)
    assert end(record) == ("passed", "")
    assert "what it launches is not known: its last process is gone" in record.notes


@pytest.mark.parametrize("failing", [1, 3])
def test_a_process_that_ends_between_empty_gates_is_replaced_before_the_submission_is_loaded(
    failing: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three cases are staged for empty gates; the process ends as its buffers are taken away."""
    loads: list[int] = []
    unmaps = 0

    def contestant(pair: Pair, order: Any, *answers: type, timeout_s: float) -> Any:
        nonlocal unmaps
        if isinstance(order, wire.Load):
            loads.append(unmaps)
        if isinstance(order, wire.Unmap):
            unmaps += 1
            if unmaps == failing:
                raise PeerEnded("crashed", "the machine had enough")
        return asking(pair, order, *answers, timeout_s=timeout_s)

    asking = Pair.contestant
    monkeypatch.setattr(Pair, "contestant", contestant)
    record = run(RIGHT, mode="benchmark")
    assert end(record) == ("passed", "")
    assert loads == [3]


def test_a_kernel_that_answers_all_calls_at_the_first_computes_with_lines_that_are_not_there_yet(run: Run) -> None:
    """It knows all addresses of the case, and that the contents of a batch are there when its first call comes."""
    record = run(
        """
        import time

        known, ready, last = {}, {}, [0.0]

        def custom_kernel(data):
            known[data[0].data_ptr()] = data
            if time.perf_counter() - last[0] > 0.001:  # a pause: new contents everywhere, a new batch begins
                ready.clear()
                ready.update({key: 2 * x + shift for key, (x, shift) in known.items()})
            last[0] = time.perf_counter()
            if data[0].data_ptr() not in ready:
                return 2 * data[0] + data[1]
            return ready.pop(data[0].data_ptr())
        """,
        mode="benchmark",
    )
    assert record.outcome.verdict == "wrong"
    assert "wrong in a timed batch" in record.outcome.message


def test_a_wrong_kernel_fails_and_every_case_is_still_shown(run: Run) -> None:
    record = run(
        """
        def custom_kernel(data):
            out = 2 * data[0] + data[1]
            if out.shape[0] == 3:
                out[1, 2:] = 0
            return out
        """,
        mode="leaderboard",
    )
    assert [case.outcome.verdict for case in record.cases] == [
        "passed",
        "wrong",
        "passed",
        "not-run",
        "not-run",
        "not-run",
    ]
    assert record.outcome.verdict == "wrong"
    assert "row 1 is" in record.outcome.message
    assert record.cases[1].judgement is not None
    assert record.cases[1].judgement.gpumode == "fail"
    assert not record.is_ranked


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "defines no custom_kernel"),
        ("def custom_kernel(data:\n    return 1\n", "kernel.py:1\n    def custom_kernel(data:"),
        ("import numpy\nimport no_such_package\n", "No module named 'no_such_package'\n  kernel.py:2, in <module>"),
        ("custom_kernel = 3\n", "custom_kernel is not callable"),
        ("def custom_kernel(a, b): return a\n", "must take exactly one argument"),
        ("def custom_kernel(): return 0\n", "must take exactly one argument"),
        ("raise SystemExit(0)\n", "it called sys.exit(0)"),
        ("import os\nprint('all tests passed')\nos._exit(0)\n", "exit status 0"),
        ("def f(): raise ValueError('no')\n\n\nf()\n", "ValueError: no\n  kernel.py:4, in <module>\n    f()"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_loaded_says_where(run: Run, source: str, message: str) -> None:
    record = run(source)
    assert record.outcome.verdict == "load-failed"
    assert message in record.outcome.message
    assert "harness" not in record.outcome.message
    assert {case.outcome.verdict for case in record.cases} == {"not-run"}


@pytest.mark.parametrize(
    ("expression", "verdict", "message"),
    [
        ("None", "bad-output", "the output is None; expected float32 [4, 32] on cpu"),
        ("[right]", "bad-output", "the output is a list of 1"),
        ("3", "bad-output", "the output is a int"),
        ("right[:2]", "bad-output", "the output is float32 [2, 32] on cpu"),
        ("right.half()", "bad-output", "the output is float16 [4, 32] on cpu"),
        ("right.T.contiguous().T", "bad-output", "with strides [1, 4]"),
        ("right[:1].expand(4, 32)", "bad-output", "with strides [0, 1]"),
        ("right.to('meta')", "bad-output", "on meta"),
        ("right.to_sparse()", "bad-output", "in layout torch.sparse_coo"),
        ("right * float('nan')", "wrong", "NaN where the reference is finite"),
        ("torch.zeros_like(right)", "wrong", "row"),
    ],
)
def test_what_is_no_output_is_described(run: Run, expression: str, verdict: str, message: str) -> None:
    record = run(
        f"import torch\ndef custom_kernel(data):\n    right = 2 * data[0] + data[1]\n    return {expression}\n"
    )
    assert record.outcome.verdict == verdict
    assert message in record.outcome.message


def test_a_raise_in_the_third_case_is_that_case_s_end_only(run: Run) -> None:
    record = run(
        """
        def custom_kernel(data):
            if data[0].shape[0] == 70:
                raise RuntimeError("seventy rows are\\nnot supported")
            return 2 * data[0] + data[1]
        """
    )
    assert [case.outcome.verdict for case in record.cases] == ["passed", "passed", "crashed"]
    assert record.outcome.message.startswith(
        "RuntimeError: seventy rows are\nnot supported\n  kernel.py:4, in custom_kernel"
    )


def test_a_segfault_ends_its_case_and_the_others_run_in_a_fresh_process(run: Run) -> None:
    record = run(
        """
        import ctypes
        def custom_kernel(data):
            if data[0].shape[0] == 3:
                ctypes.string_at(0)
            return 2 * data[0] + data[1]
        """
    )
    assert [case.outcome.verdict for case in record.cases] == ["passed", "crashed", "passed"]
    assert "SIGSEGV" in record.outcome.message


def test_a_kernel_that_never_returns_is_timed_out(run: Run) -> None:
    record = run("def custom_kernel(data):\n    while True: pass\n", limits=Limits(load_s=30, compile_s=1, call_s=1))
    assert {case.outcome.verdict for case in record.cases} == {"timed-out"}
    assert record.outcome.message == "nothing came back within 1 s"


def test_an_import_that_never_returns_is_timed_out(run: Run) -> None:
    record = run("import time\ntime.sleep(1000)\n", limits=Limits(load_s=1, compile_s=1, call_s=1))
    assert record.outcome.verdict == "timed-out"
    assert "while it was imported" in record.outcome.message


def test_a_kernel_that_eats_memory_is_stopped(run: Run) -> None:
    record = run(
        """
        import torch
        hold = []
        def custom_kernel(data):
            while True:
                hold.append(torch.ones(16 << 20))
        """,
        limits=Limits(load_s=30, compile_s=30, call_s=30, memory_bytes=1 << 30),
    )
    assert {case.outcome.verdict for case in record.cases} == {"out-of-memory"}


def test_an_allocation_that_is_refused_is_out_of_memory(run: Run) -> None:
    record = run("import torch\ndef custom_kernel(data):\n    return torch.empty(1 << 60, dtype=torch.uint8)\n")
    assert record.outcome.verdict == "out-of-memory"


def test_a_case_too_large_for_the_device_is_not_run_and_the_others_are(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    shutil.copytree(PROBLEM, folder)
    reference = (folder / "reference.py").read_text()
    reference = reference.replace(
        "    return _fresh(rows, columns, seed), _f", "    fits(rows != 4)\n    return _fresh(rows, columns, seed), _f"
    )
    reference = reference.replace(
        "    return _fresh(rows, columns, seed), d", "    fits(rows != 3)\n    return _fresh(rows, columns, seed), d"
    )
    (folder / "reference.py").write_text(
        reference + "\n\ndef fits(yes):\n    if not yes:\n        raise MemoryError('too large')\n"
    )
    record = run(RIGHT, problem=folder)
    assert [case.outcome.verdict for case in record.cases] == ["not-run", "not-run", "passed"]
    assert "does not fit into the device's memory" in record.outcome.message


def test_a_gigabyte_of_prints_is_drained_and_dropped(run: Run) -> None:
    record = run(
        """
        def custom_kernel(data):
            for _ in range(170):
                print("x" * 1_000_000)
            return 2 * data[0] + data[1]
        """
    )
    assert end(record) == ("passed", "")
    assert "were dropped" in record.output
    assert len(record.output) < 60_000


def test_forged_reports_are_a_violation_and_never_a_pass(run: Run) -> None:
    record = run(
        """
        import os, stat
        for descriptor in range(3, 4096):
            try:
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    os.write(descriptor, b'{"kind":"Judged","ok":true}\\n')
            except OSError:
                pass
        def custom_kernel(data):
            return data[0]
        """
    )
    assert record.outcome.verdict == "protocol-violation"


def test_a_kernel_that_leaves_children_leaves_none(run: Run) -> None:
    record = run(
        """
        import subprocess
        def custom_kernel(data):
            subprocess.Popen(["sleep", "600"])
            return 2 * data[0] + data[1]
        """
    )
    assert record.outcome.verdict == "passed"
    for stat in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            assert Path(stat).read_bytes() != b"sleep\x00600\x00"
        except FileNotFoundError:
            continue


@pytest.mark.parametrize(
    "source",
    [
        """
        cache = {}
        def custom_kernel(data):
            key = data[0].data_ptr(), data[0].shape
            if key not in cache:
                cache[key] = 2 * data[0] + data[1]
            return cache[key]
        """,
        """
        calls = 0  # right for as long as the tests last
        def custom_kernel(data):
            global calls
            calls += 1
            return 2 * data[0] + data[1] if calls < 9 else data[0]
        """,
        """
        kept = {}  # the shared part, from an earlier batch
        def custom_kernel(data):
            return 2 * data[0] + kept.setdefault(data[1].shape, data[1].clone())
        """,
    ],
    ids=["by address", "by count", "shared part"],
)
def test_remembering_an_answer_is_worth_nothing(run: Run, source: str) -> None:
    record = run(source, mode="leaderboard")
    assert record.outcome.verdict == "wrong"
    assert not record.is_ranked


def test_a_kernel_cannot_shrink_the_shared_memory_under_the_oracle(run: Run) -> None:
    record = run(
        """
        import os
        for descriptor in range(3, 4096):
            try:
                if "podium" in os.readlink(f"/proc/self/fd/{descriptor}"):
                    os.ftruncate(descriptor, 0)
            except OSError as error:
                print("refused", error.errno)
        def custom_kernel(data):
            return 2 * data[0] + data[1]
        """
    )
    assert record.outcome.verdict == "passed"
    assert "refused" in record.output


@pytest.mark.parametrize(("heat", "processes"), [(2, {0, 1}), (1, None)])
def test_a_case_that_has_no_room_in_a_later_process_leaves_what_the_processes_before_it_have(
    heat: int, processes: set[int] | None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are the least here, and no number of them is exact enough."""
    measured: list[int] = []

    def crowded(court: Any, pairs: Any, case: Any, round: Round, *rest: Any) -> list[Timed]:
        measured.append(round.number)
        if measured.count(heat) == 2:
            raise NoRoom("this case does not fit into the device's memory (full)")
        return measure(court, pairs, case, round, *rest)

    monkeypatch.setattr("harness.evaluate.measure", crowded)
    monkeypatch.setattr("harness.evaluate.is_enough", lambda merged, precision: False)
    monkeypatch.setattr(Request, "processes", (2, 4))
    record = run(RIGHT, mode="leaderboard")
    if processes is None:
        assert end(record) == ("not-run", "this case does not fit into the device's memory (full)")
        return
    assert end(record) == ("passed", "")
    assert record.is_ranked
    for case in record.timed:
        assert case.timing is not None
        assert {batch.process for batch in case.timing.batches} == processes
    (note,) = [note for note in record.notes if "left out" in note]
    assert note.startswith("process 3 is left out and was the last: rows=") and "does not fit" in note
    assert measured.count(2) == 2  # the third case was not even begun


def test_a_device_that_gives_no_more_processes_leaves_what_those_before_have(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes are the least here, and no number of them is exact enough."""

    def prepare(heats: Heats, count: int) -> None:
        if heats.number + 1 == most:
            raise DeviceError("a contestant process could not use the device: CUDA error: out of memory")
        real(heats, count)

    real, most = Heats._prepare, 3
    monkeypatch.setattr(Heats, "_prepare", prepare)
    monkeypatch.setattr("harness.evaluate.is_enough", lambda merged, precision: False)
    monkeypatch.setattr(Request, "processes", (2, 4))
    record = run(RIGHT, mode="leaderboard")
    assert end(record) == ("passed", "")
    assert record.is_ranked and record.isolation
    assert {case.timing.processes for case in record.timed if case.timing} == {3}
    assert "no further process after 3: a contestant process could not use the device" in " ".join(record.notes)
    most = 0
    with pytest.raises(DeviceError, match="out of memory"):
        run(RIGHT, mode="leaderboard")


@pytest.mark.parametrize(
    "line",
    [
        "import socket; raise socket.gaierror(-3, 'Temporary failure in name resolution')",
        "import errno; raise OSError(errno.ENETUNREACH, 'Network is unreachable')",
        "import subprocess; raise subprocess.CalledProcessError(1, ['python', '-m', 'pip', 'install', 'einops'])",
    ],
)
def test_a_submission_that_wants_the_network_is_told_what_to_do(run: Run, line: str) -> None:
    outcome = run(f"{line}\n").outcome
    assert outcome.verdict == "load-failed"
    assert "there is no network here: install what it needs beside Podium" in outcome.message


@pytest.mark.parametrize("mode", ["test", "benchmark"])
@pytest.mark.parametrize(("change", "doubts"), [("data[0][-1, -1] += 1", ("input-modified",)), ("data[0].sum()", ())])
def test_an_input_that_was_changed_is_a_doubt(run: Run, change: str, doubts: tuple[str, ...], mode: Mode) -> None:
    source = f"def custom_kernel(data):\n    output = 2 * data[0] + data[1]\n    {change}\n    return output\n"
    found = run(source, mode=mode)
    assert (found.outcome.verdict, found.doubts) == ("passed", doubts)


KILLS_THE_ORACLE = (Path(__file__).parent / "exploits" / "oracle_killed.py").read_text()


def oracles() -> list[int]:
    """The processes of oracles that this one has started."""
    of_ours = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in descendants(os.getpid())]
    return [pid for pid, words in of_ours if b"harness.processes.oracle" in words]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_oracle_that_is_killed_ends_the_run_and_is_told_in_a_line(run: Run, number: signal.Signals) -> None:
    def kill(progress: Progress) -> None:
        if progress.stage == "test":
            for pid in oracles():
                os.kill(pid, number)

    with pytest.raises(DeviceError) as caught:
        run(RIGHT, listen=kill)
    killed = f"the oracle of doubling, which judges, was killed by signal {number:d} ({number.name})"
    assert str(caught.value).startswith(f"{killed}, and nothing was recorded: ")
    assert "\n" not in str(caught.value)


def test_a_submission_that_can_kill_the_oracle_is_named_as_who_may_have_done_it(run: Run) -> None:
    without = Limits(load_s=30, compile_s=30, call_s=30, isolation="none")
    with pytest.raises(DeviceError) as caught:
        run(KILLS_THE_ORACLE, limits=without)
    assert str(caught.value) == (
        "the oracle of doubling, which judges, was killed by signal 9 (SIGKILL), and nothing was recorded: the "
        "submission may have done that, since it can reach other processes here; `--isolation auto` keeps it from them"
    )
