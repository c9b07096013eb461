"""Several processes as one result: what they have in common, when they are enough, and when none of it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import case, judgement, spec

from harness.record import Batch, CaseResult, DeviceState, StoppedBy, Timing
from harness.replication import is_enough, mark, merge, void
from harness.statistics import summarise


def process(
    number: int, *per_call_ns: float, canaries: tuple[float, float] | None = None, stopped: StoppedBy = "precision"
) -> CaseResult:
    """One case as one process timed it: ten calls a batch."""
    batches = tuple(
        Batch(10, 1000 + round(10 * each), 1000, process=number, block=index, canaries_ns=canaries or ())
        for index, each in enumerate(per_call_ns)
    )
    return case(spec(), Timing(batches, 1000.0 + number, stopped_by=stopped))


def test_processes_are_put_together_and_the_worst_is_kept() -> None:
    first = process(0, 100.0, 100.0, stopped="precision")
    second = replace(process(1, 110.0, 110.0, stopped="batches"), judgement=judgement(row_error=0.009, calls=5))
    third = replace(process(2, 121.0), doubts=("clocks-disagree",))
    merged = merge([first, second, third])
    assert merged.timing is not None
    assert [batch.process for batch in merged.timing.batches] == [0, 0, 1, 1, 2]
    assert merged.timing.processes == 3
    assert (merged.timing.stopped_by, merged.timing.empty_claim_ns) == ("batches", 1001.0)
    assert merged.doubts == ("clocks-disagree",)
    assert merged.judgement is not None
    assert (merged.judgement.row_error, merged.judgement.calls) == (0.009, 2 + 5 + 2)


def test_one_process_that_failed_fails_the_case() -> None:
    failed = case(spec(), verdict="crashed", message="SIGSEGV", stage="benchmark")
    assert merge([process(0, 100.0), failed, process(2, 100.0)]) == failed


def test_the_time_is_the_mean_over_processes_and_not_over_batches() -> None:
    merged = merge([process(0, *[100.0] * 30), process(1, *[121.0] * 2)])
    assert merged.timing is not None
    assert summarise(merged.timing.batches).time_ns == pytest.approx(110.0)


def test_enough_is_when_the_processes_agree_and_never_one_alone() -> None:
    apart = [merge([process(0, 100.0, 100.0), process(1, 101.0, 101.0), process(2, 102.0, 102.0)])]
    close = [merge([process(0, 100.0, 100.0), process(1, 100.1, 100.1), process(2, 100.2, 100.2)])]
    assert not is_enough(apart, 0.005)
    assert is_enough(close, 0.005)
    assert not is_enough(close, 0.0005)
    assert not is_enough([process(0, *[100.0] * 20)], 0.005)


def test_batches_beside_a_canary_that_moved_are_voided_and_count_nowhere() -> None:
    steady = [Batch(10, 2000, 1000, block=index, canaries_ns=(70_000.0, 60_000.0)) for index in range(9)]
    moved = Batch(10, 9000, 1000, block=9, canaries_ns=(70_000.0, 61_300.0))
    (marked,), share, why = mark([[*steady, moved]])
    assert [batch.is_voided for batch in marked] == [False] * 9 + [True]
    assert (share, why) == (0.1, "")
    assert summarise(marked).time_ns == pytest.approx(100.0)


def test_a_canary_is_held_against_the_same_case_s_and_two_percent_is_allowed() -> None:
    near = [Batch(10, 2000, 1000, canaries_ns=(each,)) for each in (100.0, 100.0, 101.9, 98.1)]
    far = [Batch(10, 2000, 1000, canaries_ns=(each,)) for each in (105.0, 105.0, 105.0)]
    marked, share, _ = mark([near, far])
    assert share == 0.0
    assert not any(batch.is_voided for batches in marked for batch in batches)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (DeviceState(1980, 3201, 300_000, 50, (), 1), "another process used the GPU during 31 % of the batches"),
        (
            DeviceState(1400, 3201, 700_000, 85, ("thermal",), 0),
            "the GPU was slowed down during 31 % of the batches (thermal)",
        ),
        (None, "the referee's own compute-bound kernel moved by up to 50 % during 31 % of the batches"),
    ],
)
def test_too_many_voided_batches_void_the_run_and_it_says_why(state: DeviceState | None, words: str) -> None:
    quiet = [Batch(10, 2000, 1000, canaries_ns=(70.0, 60.0)) for _ in range(69)]
    loud = [Batch(10, 2000, 1000, canaries_ns=(72.1, 90.0), state=state) for _ in range(31)]
    timed = case(spec(), Timing((*quiet, *loud)))
    (marked,), why = void([timed])
    assert why == words
    assert marked.timing is not None
    assert sum(batch.is_voided for batch in marked.timing.batches) == 31


def test_where_there_are_no_canaries_nothing_is_voided() -> None:
    results, why = void([process(0, 100.0, 500.0), case(spec(8))])
    assert (results, why) == ((process(0, 100.0, 500.0), case(spec(8))), "")
