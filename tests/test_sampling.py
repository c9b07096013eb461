"""Planning batches and stopping: by precision, by time, by count, and never by what the number says."""

from __future__ import annotations

import pytest

from harness.record import Batch
from harness.timing.sampling import LOOKS, SLOW_LOOKS, Pace, Plan, plan
from harness.timing.sampling import stop as stop_at

PACE = Pace()


def stop(planned: Plan, batches: list[Batch], pace: Pace = PACE) -> str | None:
    return stop_at(planned, batches, pace)


@pytest.mark.parametrize(
    ("estimate_ns", "sets", "calls"),
    [(6e3, 24, 16), (6e3, 15, 8), (6e3, 5, 4), (6e3, 3, 3), (2e6, 24, 8), (9e6, 24, 2), (50e6, 24, 2), (50e6, 1, 1)],
)
def test_a_batch_holds_what_fits_into_twenty_milliseconds(estimate_ns: float, sets: int, calls: int) -> None:
    assert plan(estimate_ns, sets, on_cpu=False).calls == calls


def test_slow_calls_on_a_cpu_are_sampled_a_few_times() -> None:
    assert plan(1e9, 24, on_cpu=True).looks == SLOW_LOOKS
    assert plan(1e9, 24, on_cpu=True).calls == 1
    assert plan(1e6, 24, on_cpu=True).looks == LOOKS


def test_a_plan_by_hand() -> None:
    assert plan(6e3, 24, on_cpu=False) == Plan(16, (4, 6, 8, 12, 16, 24, 32, 48, 64), 0.5e9)
    assert plan(6e6, 24, on_cpu=False) == Plan(3, (4, 6, 8, 12, 16, 24, 32, 48, 64), 1e9)
    assert plan(0.2e9 + 1, 4, on_cpu=True) == Plan(1, (3, 4, 6, 8), 1e9)
    assert plan(0.0, 4, on_cpu=True) == Plan(4, (4, 6, 8, 12, 16, 24, 32, 48, 64), 0.5e9)


@pytest.mark.parametrize(("renew_ns", "calls"), [(0.1e6, 16), (0.8e6, 8), (1.2e6, 8), (5e6, 8)])
def test_contents_that_take_long_to_make_make_smaller_batches(renew_ns: float, calls: int) -> None:
    assert plan(6e3, 24, on_cpu=False, renew_ns=renew_ns).calls == calls


def batches(*per_call: int) -> list[Batch]:
    return [Batch(10, 10 * each + 1000, 1000) for each in per_call]


def test_nothing_stops_before_the_first_look() -> None:
    assert stop(plan(1e4, 24, on_cpu=False), batches(*[10_000] * 3)) is None


def test_still_readings_stop_at_a_look_and_not_between() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    assert stop(planned, batches(*[10_000] * 8)) == "precision"
    assert stop(planned, batches(*[10_000] * 9)) is None


def test_a_process_among_several_stops_at_its_share_and_anyone_when_time_is_up() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    restless = batches(*[10_000 + 900 * (index % 5) for index in range(9)])
    assert stop(planned, restless[:4], Pace(most=4)) == "batches"
    assert stop(planned, restless[:3], Pace(most=4)) is None
    assert stop(planned, restless[:2], Pace(most=2)) == "batches"
    assert stop_at(planned, restless[:4], Pace(until_ns=5), now_ns=6) == "time"
    assert stop_at(planned, restless[:4], Pace(until_ns=5), now_ns=5) is None
    assert stop_at(planned, restless[:3], Pace(until_ns=5), now_ns=6) is None


def test_what_precise_means_can_be_asked_for() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    readings = batches(*[10_000 + 20 * (index % 2) for index in range(8)])
    assert stop(planned, readings, Pace(half_width=0.002)) == "precision"
    assert stop(planned, readings, Pace(half_width=0.0005)) is None


def test_restless_readings_stop_at_the_last_look() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    restless = batches(*[10_000 + 900 * (index % 5) for index in range(64)])
    assert stop(planned, restless[:63]) is None
    assert stop(planned, restless) == "batches"


def test_slow_calls_stop_by_time_once_there_are_three_and_else_at_eight() -> None:
    planned = plan(0.3e9, 4, on_cpu=True)
    calls = [Batch(1, 300_000_000 + 20_000_000 * (index % 2), 0) for index in range(8)]
    assert [stop(planned, calls[:count]) for count in range(5)] == [None, None, None, None, "time"]
    assert stop(planned, [Batch(1, 600_000_000, 0)] * 2) is None  # over the cap, but two say nothing of their spread
    assert stop(planned, [Batch(1, 400_000_000, 0)] * 3) == "time"
    quick = [Batch(1, 100_000_000 + 20_000_000 * (index % 2), 0) for index in range(8)]
    assert stop(planned, quick[:7]) is None
    assert stop(planned, quick) == "batches"


def test_the_empty_batch_is_no_kernel_time() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    restless = [Batch(10, 1_000_000_000 + 900 * (index % 5), 999_900_000) for index in range(9)]
    assert stop(planned, restless) is None


def test_kernel_time_has_a_cap() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    restless = batches(*[5_000_000 + 900_000 * (index % 5) for index in range(9)])
    assert stop(planned, restless) == "time"


def test_precision_is_the_same_question_for_every_scale() -> None:
    planned = plan(1e4, 24, on_cpu=False)
    readings = [1000 + (7 * index) % 5 for index in range(8)]
    assert stop(planned, batches(*readings)) == stop(planned, batches(*(each * 100 for each in readings)))
