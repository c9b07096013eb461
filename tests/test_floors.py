"""Times beside what a device can do: the data sheet's floor for people, the measured one for doubts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness import wire
from harness.errors import DeviceError, ProblemError
from harness.floors import beside_floors
from harness.processes.court import NoRoom
from harness.record import Batch, CaseResult, Outcome, Timing
from harness.roofline import COMPUTE_SLACK, MEMORY_SLACK, Roofline

ADD = Roofline("6 * n", {"fp32": "n"})
"""Two fp16 numbers read and one written for each of n."""
GEMM = Roofline("4 * n * n", {"fp4": "2 * n ** 3"})
MIB = 1 << 20


class ScriptedCourt:
    """An oracle before a device that is as fast as said."""

    def __init__(self, model: str, bytes_per_s: float | None, operations: Any = None, kind: str = "cuda") -> None:
        self.kind = kind
        self.device = SimpleNamespace(model=model, cache_bytes=50 * MIB)
        self.found = wire.RoofFound(bytes_per_s, operations or {})
        self.asked: list[wire.Roof] = []

    def ask(self, order: wire.Roof, answer: type) -> wire.RoofFound:
        self.asked.append(order)
        assert answer is wire.RoofFound
        return self.found


class FullCourt(ScriptedCourt):
    """One that cannot find out."""

    reason: Exception

    def ask(self, order: wire.Roof, answer: type) -> wire.RoofFound:
        raise self.reason


def timed(n: int, time_ns: int) -> CaseResult:
    batches = tuple(Batch(1, time_ns, 0, process=0, block=block) for block in range(2))
    return CaseResult(f"n={n}", "benchmark", {"n": n}, Outcome("passed"), timing=Timing(batches))


def beside(court: Any, case: CaseResult, roofline: Roofline | None = ADD, written: int = 0) -> CaseResult:
    (found,), _ = beside_floors([case], roofline, court, {case.name: written})
    return found


def test_a_time_below_what_the_memory_was_seen_to_move_is_a_doubt() -> None:
    """6 GB at 4.0 TB/s and a tenth more: 1.364 ms."""
    court = ScriptedCourt("NVIDIA H200", 4.0e12)
    n = 10**9
    limit_ns = 6 * n / 4.0e12 * 1e9 / MEMORY_SLACK
    below, above = (beside(court, timed(n, round(limit_ns * factor))) for factor in (0.99, 1.01))
    assert (below.doubts, above.doubts) == (("below-roofline",), ())
    assert above.timing is not None
    assert above.timing.floor_ns == pytest.approx(limit_ns)
    assert above.timing.roofline_ns == pytest.approx(6 * n / 4.8e12 * 1e9)
    assert above.timing.roofline_bound == "memory"


def test_what_was_written_may_still_lie_in_the_cache() -> None:
    court = ScriptedCourt("NVIDIA H200", 4.0e12)
    n = 20 * MIB
    found = [beside(court, timed(n, 30_000), written=written).timing for written in (0, 40 * MIB, 500 * MIB)]
    floors = [timing.floor_ns for timing in found if timing is not None]
    expected = [(6 * n - resident) / 4.0e12 * 1e9 / MEMORY_SLACK for resident in (0, 40 * MIB, 50 * MIB)]
    assert floors == pytest.approx(expected)


def test_a_product_faster_than_the_units_were_seen_to_be_is_a_doubt() -> None:
    """FP4 has no unit on an H200; FP8's was seen at 1500 TFLOP/s."""
    court = ScriptedCourt("NVIDIA H200", 4.0e12, {"fp8": 1500e12})
    n = 8192
    limit_ns = 2 * n**3 / 1500e12 * 1e9 / COMPUTE_SLACK
    below, above = (beside(court, timed(n, round(limit_ns * factor)), GEMM) for factor in (0.99, 1.01))
    assert (below.doubts, above.doubts) == (("below-roofline",), ())
    assert court.asked == [wire.Roof(("fp4", "fp8", "bf16", "fp32"))] * 2


def test_units_that_cannot_be_tried_are_as_fast_as_the_data_sheet_says() -> None:
    found = beside(ScriptedCourt("NVIDIA B200", 7.0e12), timed(8192, 130_000), GEMM)
    assert found.timing is not None
    assert found.timing.floor_ns == pytest.approx(2 * 8192**3 / 9000e12 * 1e9 / COMPUTE_SLACK)


def test_the_device_is_not_tried_for_times_far_above_the_data_sheet_s() -> None:
    court = ScriptedCourt("NVIDIA H200", 4.0e12)
    found = beside(court, timed(10**9, 2_600_000))
    assert court.asked == []
    assert found.timing is not None
    assert (found.timing.floor_ns, found.doubts) == (None, ())


def test_a_device_without_a_data_sheet_is_always_tried() -> None:
    court = ScriptedCourt("some GPU", 4.0e12)
    found = beside(court, timed(10**9, 1_300_000))
    assert len(court.asked) == 1
    assert found.doubts == ("below-roofline",)
    assert found.timing is not None
    assert found.timing.roofline_ns is None


def test_without_a_data_sheet_operations_in_a_format_that_could_not_be_tried_say_nothing() -> None:
    court = ScriptedCourt("some GPU", 4.0e12, {"fp8": 1500e12, "bf16": 800e12})
    found = beside(court, timed(8192, 100), GEMM).timing
    assert found is not None
    assert found.floor_ns == pytest.approx(4 * 8192**2 / 4.0e12 * 1e9 / MEMORY_SLACK)


@pytest.mark.parametrize("court", [ScriptedCourt("a CPU", None, kind="cpu"), ScriptedCourt("some GPU", None)])
def test_where_nothing_is_known_there_is_no_doubt(court: ScriptedCourt) -> None:
    assert beside(court, timed(10**9, 5)).doubts == ()


def test_a_problem_that_states_no_floor_is_left_alone() -> None:
    court = ScriptedCourt("NVIDIA H200", 4.0e12)
    case = timed(10**9, 5)
    assert beside(court, case, roofline=None) == case
    assert court.asked == []


@pytest.mark.parametrize("reason", [NoRoom("full"), ProblemError("no such kernel"), DeviceError("the oracle ended")])
def test_a_device_that_cannot_be_tried_is_a_note_and_costs_no_run(reason: Exception) -> None:
    court: Any = FullCourt("NVIDIA H200", None)
    court.reason = reason
    cases, notes = beside_floors([timed(10**9, 5)], ADD, court, {})
    assert notes == (f"how fast this device is was not found out: {reason}",)
    assert cases[0].doubts == ()
    assert cases[0].timing is not None
    assert cases[0].timing.roofline_ns is not None
