"""Timing a case, with a scripted pair of processes in the place of real ones: exact to the digit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness import wire
from harness.baseline import FLUSH_ALLOWANCE, Baseline, Baselines, Empty, read_baselines
from harness.cases import Case
from harness.doubts import EMPTY_NS, IDLE_NS, late_doubts
from harness.errors import DeviceError
from harness.gates import POLLS, PROBE_POLLS, UNSEEN_NS, Round
from harness.measure import Form, Timed, measure
from harness.processes.court import NoRoom
from harness.processes.isolation import Limits
from harness.processes.peer import PeerEnded
from harness.record import Outcome
from harness.timing.gate import Reading
from harness.timing.sampling import MAX_CALLS, SHARED, Pace
from harness.timing.start import START_NS

RIGHT = wire.Judged(1, True, "", "bf16", 0.001, 0.01, 0.0, "pass", "")
CASE = Case({"m": 16, "seed": 3})


class ScriptedCourt:
    """Answers as the oracle would, and keeps what everybody was told."""

    def __init__(self, shared_inputs: tuple[str, ...] = ()) -> None:
        self.problem = SimpleNamespace(shared_inputs=shared_inputs)
        self.device = SimpleNamespace(model="a GPU", cache_bytes=1 << 20)
        self.told: list[Any] = []
        self.seats: tuple[int, ...] = ()
        self.turn_of: dict[int, int] = {}
        """The seat of who was told, by the order's place in `told`; none for the oracle's."""
        self.judged: Callable[[int], wire.Judged] = lambda count: RIGHT
        self.judgements = 0
        self.canaries_ns: tuple[float, ...] = ()

    @contextlib.contextmanager
    def staged(self, case: Case, max_sets: int, seats: Sequence[int]) -> Iterator[wire.Staged]:
        self.seats = tuple(seats)
        handles = tuple("" if seat in seats else None for seat in range(10))
        yield wire.Staged({"outputs": [{"tensor": {"bytes": 640}}]}, handles, 1, max_sets)

    def ask(self, order: Any, answer: type) -> Any:
        self.tell(order)
        return self.hear(answer)

    def tell(self, order: Any) -> None:
        self.told.append(order)

    def hear(self, answer: type) -> Any:
        if answer is wire.Judged:
            self.judgements += 1
            return self.judged(self.judgements)
        return wire.Renewed(self.canaries_ns) if answer is wire.Renewed else answer()

    def orders(self, kind: type) -> list[Any]:
        return [order for order in self.told if isinstance(order, kind)]


class ScriptedPair:
    """Answers as a contestant would. `per_call_ns` of kernel time, `empty_ns` a batch for everything else."""

    def __init__(
        self, *, per_call_ns: int = 10_000, empty_ns: int = 700_000, kind: str = "cuda", **script: Any
    ) -> None:
        self.court = script.get("court") or ScriptedCourt(script.get("shared_inputs", ()))
        self.court.judged = script.get("judged", self.court.judged)
        self.setting = SimpleNamespace(limits=Limits())
        self.seat = script.get("seat", 0)
        self.kind = kind
        self.pid: int | None = 1
        self.interprets = False
        self.gated = kind != "cpu" and script.get("gated", True)
        self.generation = 0
        self.per_call_ns, self.empty_ns = per_call_ns, empty_ns
        self.synchronises: Callable[[wire.Arm], bool] = script.get("synchronises", lambda arm: False)
        self.queue_room = script.get("queue_room", 1000)
        self.claim: Callable[[int], float] = script.get("claim", lambda place: float(self.per_call_ns))
        self.reading: Callable[[wire.Arm], int | None] = script.get("reading", self._reading)
        self.unseen: Callable[[wire.Arm], int] = script.get("unseen", lambda arm: 200)
        self.late = set(script.get("late", ()))
        self.dies_at: int | None = script.get("dies_at")
        self.fails_at: int | None = script.get("fails_at")
        self.armed: wire.Arm | None = None
        self.page = SimpleNamespace(
            read=self._page_reading, gave_up=lambda generation: generation in self.late, open=lambda g: None
        )

    @contextlib.contextmanager
    def attached(self, staged: wire.Staged) -> Iterator[None]:
        yield

    def drop(self) -> None:
        self.pid = None

    def next_generation(self) -> int:
        self.generation += 1
        return self.generation

    def _reading(self, arm: wire.Arm) -> int:
        """An empty gate has an empty kernel in each call's place."""
        return self.empty_ns + len(arm.order) * int(START_NS if arm.empty else self.per_call_ns)

    def _page_reading(self, generation: int, *, due_ns: float, limit_ns: int) -> Reading | None:
        assert self.armed is not None
        assert self.armed.generation == generation
        ns = self.reading(self.armed)
        return None if ns is None else Reading(ns, self.unseen(self.armed))

    def contestant(self, order: Any, *answers: type, timeout_s: float) -> Any:
        self.court.turn_of[len(self.court.told)] = self.seat
        self.court.told.append(order)
        if isinstance(order, wire.Call):
            return wire.Called(float(self.per_call_ns))
        if isinstance(order, wire.Rehearse):
            return wire.Rehearsed(tuple(float(self.per_call_ns) for _ in order.order))
        if isinstance(order, wire.Arm):
            if order.generation == self.dies_at:
                raise PeerEnded("crashed", "the process was ended by SIGSEGV")
            if order.generation == self.fails_at:
                return wire.Failed("crashed", "batch", "ValueError: no")
            self.armed = order
            expired = self.synchronises(order) or len(order.order) > self.queue_room
            self.late |= {order.generation} if expired else set()
            return wire.Armed(order.generation, expired)
        assert isinstance(order, wire.Release)
        return wire.Done(order.generation)

    def hear_contestant(self, *answers: type, timeout_s: float) -> Any:
        assert self.armed is not None
        if not self.armed.events:
            return wire.Claims(self.armed.generation, ())
        places = range(len(self.armed.order))
        claims = tuple(1000.0 + (START_NS if self.armed.empty else self.claim(place)) for place in places)
        return wire.Claims(self.armed.generation, claims)

    def orders(self, kind: type) -> list[Any]:
        return list(self.court.orders(kind))


PACE = Pace()
FLUSH_NS = 60_000.0


def baseline(pair: ScriptedPair, *, excess_ns: float = 0.0) -> Baseline:
    """What its empty gates read beforehand: so much less for each call than they read later."""
    if not pair.gated:
        return Baseline(0.0, None, Empty(0.0, 0.0))
    return Baseline(FLUSH_NS, Empty(pair.empty_ns, START_NS - FLUSH_NS - excess_ns), Empty(0.0, 0.0))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.gates.SETTLE_S", 0.0)


def together(
    *pairs: ScriptedPair, pace: Pace = PACE, forms: Any = None, seed: int = 1, excess_ns: float = 0.0
) -> list[Timed]:
    heat = Round(0, seed, pace)
    known = forms or [None] * len(pairs)
    before = [baseline(pair, excess_ns=excess_ns) for pair in pairs]
    return measure(pairs[0].court, pairs, CASE, heat, before, known)  # type: ignore[arg-type]


def time(pair: ScriptedPair, pace: Pace = PACE, *, excess_ns: float = 0.0) -> Timed:
    return together(pair, pace=pace, excess_ns=excess_ns)[0]


def test_a_call_s_time_is_the_reading_less_the_empty_one_over_the_calls() -> None:
    timed = time(ScriptedPair(per_call_ns=8_212))
    assert timed.timing_class == "gated"
    timing = timed.result.timing
    assert timing is not None
    assert {batch.per_call_ns for batch in timing.batches} == {8212.0}
    assert {batch.empty_ns for batch in timing.batches} == {2 * (700_000 + MAX_CALLS * int(START_NS))}
    assert {batch.start_ns for batch in timing.batches} == {START_NS}
    assert {batch.calls for batch in timing.batches} == {2 * MAX_CALLS}
    assert {batch.claims_ns for batch in timing.batches} == {()}  # events would hold the queue up
    assert timing.empty_claim_ns == 1000.0 + START_NS
    assert timed.result.doubts == ()
    assert timed.result.outcome == Outcome("passed")


def test_still_readings_stop_at_the_first_look() -> None:
    timing = time(ScriptedPair()).result.timing
    assert timing is not None
    assert (timing.stopped_by, len(timing.batches)) == ("precision", 4)


def test_restless_readings_go_on_until_the_last_look() -> None:
    wobble = iter(range(10_000))
    pair = ScriptedPair()
    pair.reading = lambda arm: pair._reading(arm) + (next(wobble) % 7) * 20_000
    timing = time(pair).result.timing
    assert timing is not None
    assert (timing.stopped_by, len(timing.batches)) == ("batches", 64)


def test_kernel_time_is_capped() -> None:
    wobble = iter(range(10_000))
    pair = ScriptedPair(per_call_ns=9_000_000)
    pair.reading = lambda arm: pair._reading(arm) + (next(wobble) % 7) * 2_000_000
    timing = time(pair).result.timing
    assert timing is not None
    assert timing.stopped_by == "time"
    assert sum(batch.reading_ns - batch.empty_ns for batch in timing.batches) >= 1e9


def test_a_sample_s_gates_are_balanced_so_that_drift_and_alternation_cancel() -> None:
    opened = iter(range(100_000))
    pair = ScriptedPair(per_call_ns=10_000)

    def drifting(arm: wire.Arm) -> int:
        count = next(opened)
        return pair._reading(arm) + 700 * count + (40_000 if count % 2 else 0)

    pair.reading = drifting
    timing = time(pair).result.timing
    assert timing is not None
    assert {batch.order for batch in timing.batches} == {"REER", "ERRE"}
    assert {batch.per_call_ns for batch in timing.batches} == {10_000.0}
    for batch in timing.batches:
        assert sum(batch.gates_ns) == batch.reading_ns + batch.empty_ns


def test_every_batch_has_contents_of_its_own_dealt_after_it_was_armed() -> None:
    pair = ScriptedPair()
    time(pair)
    told = pair.court.told
    seeds = [order.seed for order in pair.orders(wire.Renew)]
    assert len(set(seeds)) == len(seeds)
    real = [
        index
        for index, order in enumerate(told)
        if isinstance(order, wire.Arm) and not order.empty and order.polls == POLLS
    ]
    assert len(real) == 10  # five samples of two: one with events, four that count
    for index in real:
        assert told[index + 1] == wire.Deal(0, blank=False)
        assert isinstance(told[index + 2], wire.Judge)


@pytest.mark.parametrize("empty", [False, True])
def test_a_reading_whose_end_the_referee_slept_through_is_read_again_on_fresh_contents(empty: bool) -> None:
    pair = ScriptedPair(per_call_ns=10_000)
    paused: list[int] = []

    def unseen(arm: wire.Arm) -> int:
        if arm.empty == empty and arm.flush_ns and len(paused) < 2:
            paused.append(arm.generation)
            return UNSEEN_NS + 50_000
        return UNSEEN_NS - 100

    def reading(arm: wire.Arm) -> int:
        return pair._reading(arm) + (50_000 if len(paused) == 1 and arm.generation == paused[0] else 0)

    pair.unseen, pair.reading = unseen, reading
    timing = time(pair).result.timing
    assert timing is not None
    orders = [order for order in pair.orders(wire.Arm) if order.flush_ns]
    assert [order.generation for order in orders if order.empty == empty][:2] == paused
    assert {batch.per_call_ns for batch in timing.batches} == {10_000.0}
    seeds = [order.seed for order in pair.orders(wire.Renew)]
    assert len(set(seeds)) == len(seeds)
    usual = len(time(ScriptedPair(per_call_ns=10_000)).result.timing.batches)  # type: ignore[union-attr]
    assert len(timing.batches) == usual
    assert len(orders) == 4 * (usual + 1) + 2  # one with events does not count


def test_a_referee_that_never_sees_an_end_in_time_takes_the_third_reading() -> None:
    pair = ScriptedPair(per_call_ns=10_000, unseen=lambda arm: 10 * UNSEEN_NS)
    timing = time(pair).result.timing
    assert timing is not None
    assert len([order for order in pair.orders(wire.Arm) if order.flush_ns]) == 3 * 4 * (len(timing.batches) + 1)


def test_before_an_empty_batch_the_oracle_does_the_same_work_with_contents_that_are_no_secret() -> None:
    pair = ScriptedPair()
    time(pair)
    told = pair.court.told
    empty = [index for index, order in enumerate(told) if isinstance(order, wire.Arm) and order.empty]
    assert len(empty) == 10
    assert {told[index + 1] for index in empty} == {wire.Deal(0, blank=True)}


def test_a_kernel_that_waits_for_the_gpu_is_timed_call_by_call_and_says_so() -> None:
    pair = ScriptedPair(synchronises=lambda arm: True)
    timed = time(pair)
    assert timed.timing_class == "host-synchronising"
    assert all(order.by_message for order in pair.orders(wire.Arm)[1:])


def test_a_batch_that_does_not_fit_into_the_queue_is_halved() -> None:
    timing = time(ScriptedPair(queue_room=7)).result.timing
    assert timing is not None
    assert {batch.calls for batch in timing.batches} == {8}


def test_on_the_cpu_the_gate_is_a_message() -> None:
    pair = ScriptedPair(kind="cpu")
    timed = time(pair)
    assert timed.timing_class == "cpu"
    assert all(order.by_message for order in pair.orders(wire.Arm))


def test_a_gpu_that_can_have_no_gate_is_timed_call_by_call() -> None:
    pair = ScriptedPair(gated=False)
    assert time(pair).timing_class == "host-synchronising"
    assert all(order.by_message for order in pair.orders(wire.Arm))


def test_an_output_wrong_in_a_timed_batch_has_no_time() -> None:
    wrong = wire.Judged(3, False, "row 0 is 1 off", "bf16", 1.0, 0.01, 1.0, None, "")
    timed = time(ScriptedPair(judged=lambda count: RIGHT if count < 5 else wrong))
    assert timed.result.outcome.verdict == "wrong"
    assert "right when called alone" in timed.result.outcome.message
    assert timed.result.timing is None


def test_a_case_wrong_from_the_first_call_says_only_what_is_wrong() -> None:
    wrong = wire.Judged(1, False, "row 0 is 1 off", "bf16", 1.0, 0.01, 1.0, "fail", "no")
    outcome = time(ScriptedPair(judged=lambda count: wrong)).result.outcome
    assert (outcome.verdict, outcome.message, outcome.stage) == ("wrong", "row 0 is 1 off", "call")


def test_clocks_that_disagree_are_a_doubt() -> None:
    pair = ScriptedPair(per_call_ns=10_000)
    pair.reading = lambda arm: pair.empty_ns + (0 if arm.empty else 20_000 * len(arm.order))
    assert time(pair).result.doubts == ("clocks-disagree",)


def test_calls_of_two_lengths_are_no_disagreement_of_the_clocks() -> None:
    """A reading is the sum of its calls: it has their mean, which may be far from most of them."""
    pair = ScriptedPair(per_call_ns=450_000, claim=lambda place: 400_000.0 if place % 3 == 0 else 475_000.0)
    pair.reading = lambda arm: (
        pair.empty_ns + sum(int(START_NS) if arm.empty else int(pair.claim(place)) for place in range(len(arm.order)))
    )
    assert time(pair).result.doubts == ()


def test_what_a_process_needs_longer_to_start_any_kernel_is_not_in_its_time() -> None:
    pair = ScriptedPair(per_call_ns=10_000)
    pair.reading = lambda arm: pair.empty_ns + len(arm.order) * (200 + (START_NS if arm.empty else 10_000))
    timing = time(pair).result.timing
    assert timing is not None
    assert {batch.per_call_ns for batch in timing.batches} == {10_000.0}


@pytest.mark.parametrize(("per_call_ns", "doubts"), [(13_000, ("clocks-disagree",)), (11_000, ())])
def test_a_submission_s_clock_that_says_much_less_than_the_referee_s_is_a_doubt(
    per_call_ns: int, doubts: tuple[str, ...]
) -> None:
    pair = ScriptedPair(per_call_ns=per_call_ns, claim=lambda place: 10_000.0)
    assert time(pair).result.doubts == doubts


def read_baseline(pair: ScriptedPair, flush_ns: float | None = None) -> Baseline:
    (found,) = read_baselines(pair.court, [pair], CASE, [flush_ns])  # type: ignore[list-item, arg-type]
    return found


def test_every_flush_is_given_more_time_than_an_empty_gate_takes_with_all_that_is_in_it() -> None:
    pair = ScriptedPair(empty_ns=MAX_CALLS * 30_000)
    found = read_baseline(pair)
    assert found.flush_ns == round(FLUSH_ALLOWANCE * (30_000 + START_NS))
    armed = [order.flush_ns for order in pair.orders(wire.Arm) if not order.by_message]
    assert armed == [0.0] * 2 + [found.flush_ns] * 4
    (timed,) = measure(pair.court, [pair], CASE, Round(0, 1, PACE), [found])  # type: ignore[list-item, arg-type]
    assert timed.result.timing is not None
    assert {batch.flush_ns for batch in timed.result.timing.batches} == {found.flush_ns}


def test_empty_gates_are_read_with_one_call_and_with_many_before_anything_is_dealt() -> None:
    pair = ScriptedPair(empty_ns=700_000)
    pair.reading = lambda arm: 5_000 + len(arm.order) * round(6_700 + arm.flush_ns)
    found = read_baseline(pair, flush_ns=66_000.0)
    assert (found.flush_ns, found.gated) == (66_000.0, Empty(5_000, 6_700))
    assert {len(order.order) for order in pair.orders(wire.Arm)} == {1, MAX_CALLS}
    assert all(order.empty for order in pair.orders(wire.Arm))
    assert {type(order) for order in pair.court.told} == {wire.Rehearse, wire.Arm, wire.Release}
    behind_a_gate = next(
        place for place, order in enumerate(pair.court.told) if getattr(order, "by_message", 1) is False
    )
    assert pair.court.told[behind_a_gate - 1] == wire.Rehearse(tuple(range(MAX_CALLS)), empty=True)


def test_each_process_keeps_its_own_empty_gates_and_all_give_a_flush_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def read(court: object, pairs: Sequence[str], case: Case, flushes_ns: Sequence[float | None]) -> list[Baseline]:
        asked.append((pairs, list(flushes_ns)))
        return [Baseline(70.0, Empty(len(asked), 0.0), Empty(0.0, 0.0)) for _ in pairs]

    monkeypatch.setattr("harness.baseline.read_baselines", read)
    baselines, court = Baselines(), SimpleNamespace()
    baselines.read(court, {0: "a", 2: "c"}, [CASE])  # type: ignore[arg-type, dict-item]
    baselines.read(court, {0: "a again"}, [CASE])  # type: ignore[arg-type, dict-item]
    assert asked == [(["a", "c"], [None, None]), (["a again"], [70.0])]
    assert [each.gated for each in baselines.of(CASE, [2, 0])] == [Empty(1, 0.0), Empty(2, 0.0)]


def test_a_case_that_has_no_room_is_told_until_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Exception | list[Baseline]] = [NoRoom("too large"), [Baseline(0.0, None, Empty(0.0, 1.0))]]

    def read(*_: object) -> list[Baseline]:
        answer = found.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("harness.baseline.read_baselines", read)
    baselines, court = Baselines(), SimpleNamespace()
    baselines.read(court, {0: "a"}, [CASE])  # type: ignore[arg-type, dict-item]
    with pytest.raises(NoRoom, match="too large"):
        baselines.of(CASE, [0])
    baselines.read(court, {0: "a"}, [CASE])  # type: ignore[arg-type, dict-item]
    assert baselines.of(CASE, [0]) == [Baseline(0.0, None, Empty(0.0, 1.0))]


def test_of_empty_gates_that_something_disturbed_the_shorter_counts() -> None:
    pair = ScriptedPair(empty_ns=700_000)
    pair.reading = lambda arm: pair._reading(arm) + (90_000 if arm.generation % 2 else 0)
    found = read_baseline(pair, flush_ns=66_000.0).gated
    assert found is not None
    assert found.gate_ns == 700_000


def test_a_process_that_fails_before_it_has_a_submission_is_the_machine_s_fault() -> None:
    with pytest.raises(DeviceError, match=r"empty gates could not be read before the submission was loaded: .*SIGSEGV"):
        read_baseline(ScriptedPair(dies_at=2))


@pytest.mark.parametrize(
    ("script", "excess_ns", "doubts"),
    [
        ({}, EMPTY_NS - 1, ()),
        ({}, EMPTY_NS + 1, ("clocks-disagree",)),
        ({"per_call_ns": 100_000}, 2_999, ()),
        ({"per_call_ns": 100_000}, 3_001, ("clocks-disagree",)),
    ],
)
def test_empty_calls_that_take_longer_than_before_the_submission_was_there_are_a_doubt(
    script: dict[str, Any], excess_ns: float, doubts: tuple[str, ...]
) -> None:
    timed = time(ScriptedPair(**script), excess_ns=excess_ns).result
    assert timed.timing is not None
    assert timed.timing.empty_excess_ns == pytest.approx(excess_ns)
    assert late_doubts(timed.timing) == doubts


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_by_message_what_empty_calls_took_before_the_submission_was_there_is_taken_off(kind: str) -> None:
    pair = ScriptedPair(kind=kind, synchronises=lambda arm: not arm.empty)
    before = Baseline(0.0, None, Empty(3_000.0, 50.0))
    (timed,) = measure(pair.court, [pair], CASE, Round(0, 1, PACE), [before])  # type: ignore[list-item, arg-type]
    assert timed.timing_class == ("cpu" if kind == "cpu" else "host-synchronising")
    assert timed.result.timing is not None
    assert (timed.result.timing.empty_excess_ns, timed.result.doubts) == (None, ())
    for batch in timed.result.timing.batches:
        assert set(batch.order) == {"R"}
        assert batch.empty_ns == len(batch.order) * 3_000 + batch.calls * 50
    assert not any(order.empty for order in pair.orders(wire.Arm))


@pytest.mark.parametrize(("idle_ns", "doubts"), [(IDLE_NS - 1e5, ()), (2 * IDLE_NS, ("async-work",))])
def test_a_device_that_is_at_work_after_every_batch_is_a_doubt(
    idle_ns: float, doubts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr("harness.gates.wall_ns", lambda: next(clock) * round(idle_ns))
    timing = time(ScriptedPair()).result.timing
    assert timing is not None
    assert timing.idle_ns == round(idle_ns)
    assert late_doubts(timing) == doubts


def test_a_device_that_is_at_rest_in_time_after_one_batch_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([3 * IDLE_NS] * 5 + [1000.0] + [3 * IDLE_NS] * 1000)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += next(steps)
        return now

    monkeypatch.setattr("harness.gates.wall_ns", clock)
    timing = time(ScriptedPair()).result.timing
    assert timing is not None
    assert late_doubts(timing) == ()


@pytest.mark.parametrize(("calls", "shifts"), [(16, {0}), (8, {0, 2}), (4, {0, 1, 2, 3})])
def test_gates_of_few_calls_begin_at_other_slots_of_the_queue_with_calls_and_empty_alike(
    calls: int, shifts: set[int]
) -> None:
    pair = ScriptedPair()
    together(pair, forms=[Form(calls, False, 10_000.0)], pace=Pace(most=SHARED))
    for empty in (False, True):
        ahead = [order.shift for order in pair.orders(wire.Arm) if order.empty == empty and order.polls == POLLS]
        counts = [ahead[-4:].count(each) for each in shifts]
        assert set(ahead[-4:]) == shifts and len(set(counts)) == 1


def test_where_there_is_no_queue_there_is_no_allowance() -> None:
    timing = time(ScriptedPair(kind="cpu")).result.timing
    assert timing is not None
    assert {batch.flush_ns for batch in timing.batches} == {0.0}


def test_a_batch_that_ran_before_it_was_released_is_run_again() -> None:
    pair = ScriptedPair(late={12})
    timed = time(pair)
    assert timed.result.outcome == Outcome("passed")
    assert timed.result.timing is not None
    assert len(timed.result.timing.batches) == 4


def test_a_gate_said_to_have_given_up_is_never_opened_again_on_contents_already_seen() -> None:
    pair = ScriptedPair(late=set(range(7, 100, 3)))
    time(pair)
    seen = True
    for order in pair.court.told:
        if isinstance(order, wire.Renew):
            seen = False
        elif isinstance(order, wire.Judge):
            assert not seen  # what is judged was made since the last judgement
            seen = True


def test_claims_for_other_than_its_calls_are_a_violation() -> None:
    pair = ScriptedPair()
    pair.hear_contestant = lambda *answers, timeout_s: wire.Claims(pair.generation, (1.0,) * 99)  # type: ignore[method-assign]
    assert time(pair).result.outcome.verdict == "protocol-violation"
    assert pair.pid is None


def test_a_device_that_never_comes_back_ends_the_contestant() -> None:
    pair = ScriptedPair()
    pair.reading = lambda arm: None if arm.polls == POLLS else pair._reading(arm)
    assert time(pair).result.outcome.verdict == "timed-out"
    assert pair.pid is None


def test_a_first_call_that_works_for_all_of_them_is_a_doubt_where_inputs_are_shared() -> None:
    def carrying(place: int) -> float:
        return 30_000.0 if place == 0 else 10_000.0

    def pair(*shared: str) -> ScriptedPair:
        found = ScriptedPair(claim=carrying, shared_inputs=shared)
        found.reading = lambda arm: found._reading(arm) + (0 if arm.empty else 20_000)
        return found

    assert time(pair("1")).result.doubts == ("state-carried",)
    assert time(pair()).result.doubts == ()
    assert time(ScriptedPair(shared_inputs=("1",))).result.doubts == ()


def test_where_processes_share_a_number_each_takes_a_few_samples() -> None:
    wobble = iter(range(10_000))
    pair = ScriptedPair()
    pair.reading = lambda arm: pair._reading(arm) + (next(wobble) % 7) * 20_000
    timing = time(pair, Pace(most=SHARED)).result.timing
    assert timing is not None
    assert (timing.stopped_by, len(timing.batches)) == ("batches", SHARED)


def test_after_its_time_is_up_a_case_takes_what_it_needs_at_the_least() -> None:
    wobble = iter(range(10_000))
    pair = ScriptedPair()
    pair.reading = lambda arm: pair._reading(arm) + (next(wobble) % 7) * 20_000
    timing = time(pair, Pace(until_ns=0)).result.timing
    assert timing is not None
    assert (timing.stopped_by, len(timing.batches)) == ("time", 4)


def test_the_next_process_need_not_find_out_what_the_first_one_did() -> None:
    pair = ScriptedPair()
    (timed,) = together(pair, forms=[Form(6, False, 10_000.0)])
    assert timed.result.timing is not None
    assert {batch.flush_ns for batch in timed.result.timing.batches} == {60_000.0}
    assert {batch.calls for batch in timed.result.timing.batches} == {12}
    assert len(pair.orders(wire.Rehearse)) == 1
    assert {order.order for order in pair.orders(wire.Rehearse)} == {tuple(range(6))}
    assert [order.polls for order in pair.orders(wire.Arm)] == [PROBE_POLLS] + [POLLS] * 20
    patient = together(ScriptedPair(), forms=[Form(1, True, 10_000.0)])
    assert patient[0].timing_class == "host-synchronising"


def test_a_kernel_that_waits_for_the_gpu_in_a_later_process_only_is_found_out_before_a_batch() -> None:
    pair = ScriptedPair(synchronises=lambda arm: True)
    (timed,) = together(pair, forms=[Form(6, False, 10_000.0)])
    assert (timed.result.outcome.verdict, timed.result.timing) == ("timed-out", None)
    assert timed.result.outcome.message.startswith(
        "it waits for the GPU inside custom_kernel in this process but did not in the first: "
    )
    assert [(order.polls, order.order) for order in pair.orders(wire.Arm)] == [(PROBE_POLLS, (0,))] * 2


def test_a_pause_of_the_machine_while_a_later_process_is_tried_is_no_waiting() -> None:
    pair = ScriptedPair(synchronises=lambda arm: arm.generation == 1)
    (timed,) = together(pair, forms=[Form(6, False, 10_000.0)])
    assert timed.result.outcome == Outcome("passed")


def test_a_kernel_that_waits_for_the_gpu_in_real_batches_only_ends_after_one_patient_gate() -> None:
    pair = ScriptedPair(synchronises=lambda arm: not arm.empty and arm.generation > 8)
    (timed,) = together(pair)
    assert timed.result.outcome.verdict == "timed-out"
    assert "it waits for the GPU inside custom_kernel in a timed batch" in timed.result.outcome.message
    expired = [order.polls for order in pair.orders(wire.Arm) if order.generation in pair.late]
    assert expired == [POLLS, PROBE_POLLS]


def test_calls_that_were_slow_to_enqueue_once_are_enqueued_again_on_fresh_contents() -> None:
    once = iter([True])
    pair = ScriptedPair(synchronises=lambda arm: arm.polls == POLLS and not arm.empty and next(once, False))
    (timed,) = together(pair)
    assert timed.result.outcome == Outcome("passed")
    told = pair.court.told
    slow = next(
        place for place, arm in enumerate(told) if isinstance(arm, wire.Arm) and arm.polls == POLLS and not arm.empty
    )
    later = [type(order) for order in told[slow + 1 : slow + 6]]
    assert later == [wire.Deal, wire.Judge, wire.Arm, wire.Renew, wire.Arm]


def test_a_kernel_that_raised_beside_others_has_no_process_any_more_and_alone_it_goes_on_to_the_next_case() -> None:
    court = ScriptedCourt()
    steady, failed = ScriptedPair(court=court), ScriptedPair(court=court, fails_at=9)
    alive, dead = together(steady, failed)
    assert (alive.result.outcome, dead.result.outcome.verdict) == (Outcome("passed"), "crashed")
    assert (steady.pid, failed.pid) == (1, None)
    alone = ScriptedPair(fails_at=9)
    assert time(alone).result.outcome.verdict == "crashed"
    assert alone.pid == 1


def test_kernels_that_are_compared_see_the_same_contents_in_every_block() -> None:
    court = ScriptedCourt()
    court.canaries_ns = (70_000.0, 60_000.0)
    fast, slow = ScriptedPair(court=court), ScriptedPair(court=court, per_call_ns=10_200)
    found = together(fast, slow)
    times = [[batch.per_call_ns for batch in each.result.timing.batches] for each in found if each.result.timing]
    assert times == [[10_000.0] * 4, [10_200.0] * 4]
    assert [batch.block for batch in found[0].result.timing.batches] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert {b.canaries_ns for each in found for b in each.result.timing.batches} == {(70_000.0, 60_000.0)}  # type: ignore[union-attr]
    # Two renewals for the first calls, then two a block, whatever the number of kernels.
    assert len(court.orders(wire.Renew)) == 2 + 2 * 5


def test_contents_are_dealt_and_outputs_judged_where_the_contestant_sits_whose_turn_it_is() -> None:
    court = ScriptedCourt()
    together(ScriptedPair(court=court, seat=2), ScriptedPair(court=court, seat=5))
    assert court.seats == (2, 5)
    dealt: list[int] = []
    for place, order in enumerate(court.told):
        if isinstance(order, wire.Deal):
            armed = isinstance(court.told[place - 1], wire.Arm)
            dealt.append(court.turn_of[place - 1 if armed else place + 1])
        if isinstance(order, wire.Deal | wire.Judge):
            assert order.seat == dealt[-1]
    # Two first deals, then five samples of four gates each.
    assert (dealt.count(2), dealt.count(5)) == (22, 22)


def test_who_dies_in_block_seven_leaves_the_others_to_go_on() -> None:
    court = ScriptedCourt()
    wobble = iter(range(10_000))
    steady, mortal = ScriptedPair(court=court), ScriptedPair(court=court, dies_at=32)
    steady.reading = lambda arm: steady._reading(arm) + (next(wobble) % 7) * 200_000
    mortal.reading = lambda arm: mortal._reading(arm) + (next(wobble) % 7) * 200_000
    alive, dead = together(steady, mortal)
    assert dead.result.outcome.verdict == "crashed"
    assert dead.result.timing is None and mortal.pid is None
    assert alive.result.outcome == Outcome("passed")
    assert len(alive.result.timing.batches) >= 7  # type: ignore[union-attr]


def test_only_sets_that_have_contents_are_rehearsed() -> None:
    court = ScriptedCourt()
    quick, slow = ScriptedPair(court=court), ScriptedPair(court=court)
    together(quick, slow, forms=[Form(24, False, 1e4), Form(4, False, 5e6)])
    assert {order.order for order in court.orders(wire.Rehearse)} == {(0, 1, 2, 3)}
