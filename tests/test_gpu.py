"""What only a GPU can show: the gate, kernels that cheat in time, and kernels that ruin their context."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import wire
from harness.contest import Contender, Contest, compare_kernels
from harness.doubts import EMPTY_NS
from harness.evaluate import Request, evaluate
from harness.problem import load_problem
from harness.processes.court import Court
from harness.processes.isolation import Limits
from harness.record import Mode, Record
from harness.roofline import rates_for
from harness.statistics import summarise
from harness.submission import read_submission

pytestmark = pytest.mark.gpu
PROBLEM = Path(__file__).parent / "problems" / "doubling"
Run = Callable[..., Record]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Evaluate a submission's text on the GPU."""

    def submit(source: str, mode: Mode = "benchmark") -> Record:
        file = tmp_path / "kernel.py"
        file.write_text(textwrap.dedent(source))
        limits = Limits(load_s=60, compile_s=60, call_s=10)
        return evaluate(
            Request(
                load_problem(PROBLEM), read_submission(file, "us"), mode, "cuda", tmp_path / "caches", limits=limits
            )
        )

    return submit


def test_an_honest_kernel_is_timed_behind_the_gate_and_both_clocks_agree(run: Run) -> None:
    record = run("def custom_kernel(data):\n    return 2 * data[0] + data[1]\n")
    assert (record.outcome.verdict, record.timing_class, record.doubts) == ("passed", "gated", ())
    for case in record.timed:
        assert case.timing is not None
        assert summarise(case.timing.batches).time_ns > 1000


def test_what_the_harness_runs_on_the_device_is_compiled_once_and_no_submission_can_write_it(run: Run) -> None:
    source = """
        from pathlib import Path
        begun = Path("/proc/self/environ").read_text().split("\\0")
        begun = dict(line.split("=", 1) for line in begun if "=" in line)
        kept = list(Path(begun["TRITON_CACHE_DIR"]).rglob("*"))
        assert any("_empty_kernel" in path.name for path in kept)
        for path in kept:
            try:
                print("reached:", path.open("r+b"))
            except OSError:
                pass
        print("compiled here:", [path.name for path in Path("compiled").rglob("*.json")])
        def custom_kernel(data):
            return 2 * data[0] + data[1]
    """
    for _ in range(2):
        assert run(source).output.splitlines()[:1] == ["compiled here: []"]


def test_empty_gates_read_the_same_before_a_submission_is_there_as_beside_it(run: Run) -> None:
    for case in run("def custom_kernel(data):\n    return 2 * data[0] + data[1]\n").timed:
        assert case.timing is not None
        assert case.timing.empty_excess_ns is not None
        assert abs(case.timing.empty_excess_ns) < EMPTY_NS


def test_the_device_is_about_as_fast_as_its_data_sheet_says() -> None:
    with Court(load_problem(PROBLEM), "cuda") as court:
        found = court.ask(wire.Roof(("bf16", "fp32", "fp4")), wire.RoofFound)
        listed = rates_for(court.device.model)
    assert found.bytes_per_s is not None
    assert set(found.operations_per_s) == {"bf16", "fp32"}
    assert min(found.bytes_per_s, *found.operations_per_s.values()) > 1e10
    if listed is not None:
        assert 0.5 < found.bytes_per_s / listed.bytes_per_s < 1.0
        assert 0.4 < found.operations_per_s["bf16"] / listed.operations_per_s["bf16"] < 1.0


def test_a_kernel_that_reads_a_value_back_is_host_synchronising(run: Run) -> None:
    record = run("def custom_kernel(data):\n    data[0].sum().item()\n    return 2 * data[0] + data[1]\n")
    assert (record.outcome.verdict, record.timing_class) == ("passed", "host-synchronising")


@pytest.mark.parametrize(
    "source",
    [
        """
        import torch
        stream = torch.cuda.Stream()
        def custom_kernel(data):
            out = torch.empty_like(data[0])
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                torch.add(2 * data[0], data[1], out=out)
            return out
        """,
        """
        cache = {}
        def custom_kernel(data):
            key = data[0].data_ptr(), data[0].shape
            if key not in cache:
                cache[key] = 2 * data[0] + data[1]
            return cache[key]
        """,
        """
        import torch
        def custom_kernel(data):
            return torch.empty_like(data[0])
        """,
    ],
    ids=["unjoined side stream", "cached by address", "nothing written"],
)
def test_an_output_that_was_not_computed_in_time_is_wrong(run: Run, source: str) -> None:
    assert run(source).outcome.verdict == "wrong"


def test_an_illegal_access_ends_its_case_and_the_next_one_runs_in_a_fresh_process(run: Run) -> None:
    record = run(
        """
        import torch
        import triton
        import triton.language as tl

        @triton.jit
        def wild(pointer):
            tl.store(pointer + 2**40, 1.0)

        def custom_kernel(data):
            if data[0].shape[0] == 3:
                wild[(1,)](data[0])
                torch.cuda.synchronize()
            return 2 * data[0] + data[1]
        """,
        "test",
    )
    assert [case.outcome.verdict for case in record.cases] == ["passed", "crashed", "passed"]
    assert "illegal memory access" in record.outcome.message


def test_too_much_device_memory_is_out_of_memory(run: Run) -> None:
    record = run(
        "import torch\ndef custom_kernel(data):\n    return torch.empty(1 << 50, dtype=torch.uint8, device='cuda')\n",
        "test",
    )
    assert {case.outcome.verdict for case in record.cases} == {"out-of-memory"}


def test_a_kernel_that_never_ends_is_timed_out_and_the_device_comes_back(run: Run) -> None:
    record = run(
        """
        import triton
        import triton.language as tl

        @triton.jit
        def spin(pointer):
            while tl.load(pointer, volatile=True) < 1e30:
                pass

        def custom_kernel(data):
            if data[0].shape[0] == 3:
                spin[(1,)](data[0])
            return 2 * data[0] + data[1]
        """,
        "test",
    )
    assert [case.outcome.verdict for case in record.cases] == ["passed", "timed-out", "passed"]


def test_a_cpu_output_is_no_output(run: Run) -> None:
    record = run("def custom_kernel(data):\n    return (2 * data[0] + data[1]).cpu()\n", "test")
    assert record.outcome.verdict == "bad-output"
    assert "on cpu; expected float32 [4, 32] on cuda" in record.outcome.message


def test_a_side_stream_that_watches_the_gate_computes_with_lines_that_are_not_there_yet(run: Run) -> None:
    """It finds the harness's queue, waits for the gate beside it, and answers every call of the batch at once."""
    record = run(
        """
        import sys, torch
        side = torch.cuda.Stream()
        known, ready, state = {}, {}, {"generation": None, "event": None}

        def custom_kernel(data):
            frame = sys._getframe()
            while not hasattr(frame.f_locals.get("self"), "queue"):
                frame = frame.f_back
            contestant = frame.f_locals["self"]
            queue = contestant.queue
            if state.get("mapping") is not contestant.mapping:
                known.clear(), ready.clear(), state.update(mapping=contestant.mapping)
            known[data[0].data_ptr()] = data
            coming = int(queue._words[0]) + 1
            if state["generation"] != coming or data[0].data_ptr() not in ready:
                with torch.cuda.stream(side):
                    queue._gate(coming, 200_000)
                    for key, (x, shift) in known.items():
                        ready[key] = 2 * x + shift
                    state.update(generation=coming, event=side.record_event())
            torch.cuda.current_stream().wait_event(state["event"])
            return ready[data[0].data_ptr()]
        """
    )
    assert record.outcome.verdict == "wrong", record.outcome
    assert "wrong in a timed batch" in record.outcome.message


def test_the_referee_s_own_kernels_are_timed_beside_and_a_quiet_device_is_steady(run: Run) -> None:
    record = run("def custom_kernel(data):\n    return 2 * data[0] + data[1]\n", mode="leaderboard")
    assert (record.outcome.verdict, record.unsteady) == ("passed", "")
    for case in record.timed:
        assert case.timing is not None
        assert case.timing.processes >= 3
        assert {len(batch.canaries_ns) for batch in case.timing.batches} == {2}
        assert all(batch.claims_ns == () for batch in case.timing.batches)
        assert all(batch.claims_ns for batch in case.timing.claimed)


def test_kernels_that_are_compared_have_a_small_arena_each_and_map_nothing_beside_it(tmp_path: Path) -> None:
    source = textwrap.dedent(
        """
        import ctypes

        def custom_kernel(data):
            base, size = ctypes.c_void_p(), ctypes.c_size_t()
            found = ctypes.byref(base), ctypes.byref(size), ctypes.c_void_p(data[1].data_ptr())
            assert ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2(*found) == 0
            assert (base.value, size.value) == (data[1].data_ptr(), 2 << 20), (base, size, data[1].data_ptr())
            return 2 * data[0] + data[1]
        """
    )
    contenders = []
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(f"{source}# {name}\n")
        contenders.append(Contender(name, read_submission(tmp_path / name, "us")))
    asked = Contest(load_problem(PROBLEM), tuple(contenders), "cuda", tmp_path / "caches", max_seconds=5)
    found = compare_kernels(asked)
    assert [entry.outcome.message for entry in found.entries] == ["", "", ""]
