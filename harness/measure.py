"""How long does a submission take on one case? Batches behind the gate, read from outside, judged afterwards."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness import wire
from harness.cases import Case
from harness.processes.pair import Pair, wall_ns
from harness.processes.peer import PeerEnded
from harness.record import Batch, CaseResult, Doubt, Judgement, Outcome, Timing, TimingClass
from harness.timing.sampling import MAX_CALLS, WARM_UP, Plan, plan, stop
from harness.verify import failure, judgement, result, verdict

POLLS = 4_000_000
"""Looks of a gate before it gives up: some seconds, each look being 1 to 2 microseconds over the bus."""
PROBE_POLLS = 150_000
"""The same when finding out whether a kernel waits for the GPU itself."""
JUDGE_NS = 30_000_000
"""Time for judging one batch's outputs; at least one is judged, drawn after the batch ended."""
ORDERS, ORDERS_BY_MESSAGE = ("REER", "ERRE"), ("RE", "ER")
"""Gates of one sample: with calls (R), empty (E). On an H200 every second batch of small commands takes up to 40 us
longer than its neighbours, whatever is in it, and clocks drift; four in mirrored order have as much of both on either
side of the difference."""
SETTLE_S = 0.003
"""Pause before a gate is opened, so that the GPU has left the oracle's context: without it, readings scatter three
times as much (H200, 6 us kernel)."""
DISAGREE_SHARE, DISAGREE_NS = 0.03, 1500.0
"""Beyond the larger of these, two clocks that should agree do not."""
WRITE_BACK_SHARE = 0.05
"""What the external clock may read on top: lines that a kernel left dirty in the cache are written back after its end
event, at the expense of the next flush (torch's many-kernel baselines on an H200: up to 2.8 %)."""


class Ended(Exception):
    """The case ends here, with this outcome."""

    def __init__(self, outcome: Outcome, judged: Judgement | None = None) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome
        self.judged = judged


@dataclass(frozen=True)
class Timed:
    """One case's result and the class of its time."""

    result: CaseResult
    timing_class: TimingClass


def measure(pair: Pair, case: Case, *, seed: int, tick: Callable[[int], None]) -> Timed:
    """Time a benchmark case. `seed` draws orders and contents; `tick(batches so far)` shows progress.

    PeerEnded when the contestant is gone.
    """
    timer = _Timer(pair, random.Random(seed))
    with pair.staged(case, MAX_CALLS) as sets:
        try:
            timing, judged, doubts = timer.time(sets, tick)
        except Ended as ended:
            return Timed(result(case, "benchmark", ended.outcome, ended.judged), timer.timing_class)
        passed = result(case, "benchmark", Outcome("passed"), judged)
        return Timed(replace(passed, timing=timing, doubts=doubts), timer.timing_class)


class _Timer:
    """The steps of timing one case, on a pair whose case is staged."""

    def __init__(self, pair: Pair, draw: random.Random) -> None:
        self.pair = pair
        self.draw = draw
        self.on_cpu = pair.setting.kind == "cpu"
        self.by_message = not pair.gated
        self.worst: wire.Judged | None = None
        self.due_ns = 0.0

    @property
    def timing_class(self) -> TimingClass:
        """What a number read this way may be compared with."""
        if self.on_cpu:
            return "interpreter" if self.pair.interprets else "cpu"
        return "host-synchronising" if self.by_message else "gated"

    def time(self, sets: int, tick: Callable[[int], None]) -> tuple[Timing, Judgement, tuple[Doubt, ...]]:
        """Rehearse, find the batch's form, sample until the plan is satisfied."""
        planned = self._prepare(sets)
        batches: list[Batch] = []
        empty_claims: list[float] = []
        stopped: Any = None
        rounds = 0
        while stopped is None:
            batch, claims = self._round(planned, sets)
            rounds += 1
            if rounds > WARM_UP or self.on_cpu:
                batches.append(batch)
                empty_claims += claims
                tick(len(batches))
                stopped = stop(planned, batches)
        assert self.worst is not None
        empty_claim = statistics.median(empty_claims)
        timing = Timing(tuple(batches), empty_claim, stopped_by=stopped)
        return timing, judgement(self.worst), self._doubts(timing)

    def _doubts(self, timing: Timing) -> tuple[Doubt, ...]:
        """Do the referee's clock and the contestant's events tell the same story?"""
        external = statistics.median(batch.per_call_ns for batch in timing.batches)
        claimed = statistics.median(claim for batch in timing.batches for claim in batch.claims_ns)
        claimed -= timing.empty_claim_ns or 0.0
        allowed = max(DISAGREE_SHARE * external, DISAGREE_NS)
        agree = -allowed <= external - claimed <= allowed + WRITE_BACK_SHARE * external
        return () if agree or self.by_message else ("clocks-disagree",)

    # --- before the first reading ------------------------------------------------------------------------

    def _prepare(self, sets: int) -> Plan:
        limits = self.pair.setting.limits
        self._renew((0,), keep_first=True)
        self.pair.oracle(wire.Deal(), wire.Dealt)
        self._ask(wire.Call(0), wire.Called, limits.compile_s)
        self._take(self.pair.oracle(wire.Judge(budget_ns=0, published=True), wire.Judged))
        self._renew(range(sets))
        self.pair.oracle(wire.Deal(), wire.Dealt)
        once = self._ask(wire.Call(0), wire.Called, limits.call_s)
        if not self.by_message:
            # A kernel that waits for the GPU can never be enqueued behind a closed gate: it is timed call by call.
            self.by_message = not self._fits((0,))
        estimate = once.claim_ns
        order = tuple(range(min(sets, plan(estimate, sets, on_cpu=self.by_message).calls)))
        if not self.by_message:
            estimate = self._rehearse(order)
            order = order[: plan(estimate, sets, on_cpu=False).calls]
            while len(order) > 1 and not self._fits(order):
                order = order[: len(order) // 2]
            estimate = self._rehearse(order)
        return plan(estimate, len(order) if not self.by_message else sets, on_cpu=self.by_message)

    def _rehearse(self, order: tuple[int, ...]) -> float:
        """Run these calls with the gate open: about how long one takes, in ns."""
        seconds = self.pair.setting.limits.call_s * len(order)
        rehearsed: wire.Rehearsed = self._ask(wire.Rehearse(order), wire.Rehearsed, seconds, len(order))
        return statistics.median(rehearsed.claims_ns)

    def _fits(self, order: tuple[int, ...]) -> bool:
        """Whether this many calls can be enqueued before a patient gate gives up."""
        generation = self.pair.next_generation()
        arm = wire.Arm(generation, order, empty=False, by_message=False, polls=PROBE_POLLS)
        armed = self._ask(arm, wire.Armed, self.pair.setting.limits.call_s * len(order))
        self.pair.page.reading_ns(generation, due_ns=0, limit_ns=self._limit_ns(len(order)))
        self._hear(wire.Claims, self.pair.setting.limits.call_s * len(order), len(order))
        return not armed.expired

    # --- one round: gates with calls and empty ones, in balanced order --------------------------------------

    def _round(self, planned: Plan, sets: int) -> tuple[Batch, tuple[float, ...]]:
        order = self.draw.choice(ORDERS_BY_MESSAGE if self.by_message else ORDERS)
        readings: list[int] = []
        claims: dict[str, tuple[float, ...]] = {"R": (), "E": ()}
        for letter in order:
            indices = tuple(self.draw.sample(range(sets), planned.calls))
            if letter == "R":
                self._renew(indices)
            reading, claimed = self._batch(indices, empty=letter == "E")
            readings.append(reading)
            claims[letter] += claimed
        real, empty = (sum(ns for ns, each in zip(readings, order, strict=True) if each == kind) for kind in "RE")
        self.due_ns = real / order.count("R")
        calls = planned.calls * order.count("R")
        return Batch(calls, real, empty, claims["R"], order, tuple(readings)), claims["E"]

    def _batch(self, order: tuple[int, ...], empty: bool) -> tuple[int, tuple[float, ...]]:
        """Arm, deal, release, read; then judge while the contestant settles. Reading in ns, claims in ns per call."""
        pair, limits = self.pair, self.pair.setting.limits
        seconds = limits.call_s * len(order) + 10
        for _ in range(3):
            generation = pair.next_generation()
            arm = wire.Arm(generation, order, empty, self.by_message, POLLS)
            try:
                self._ask(arm, wire.Armed, seconds)
                if not empty:
                    pair.oracle(wire.Deal(), wire.Dealt)
                if not self.by_message:
                    time.sleep(SETTLE_S)
                reading = self._read(generation, empty, len(order))
            except Ended:
                pair.page.open(generation)  # whatever was enqueued before it failed is still waiting
                raise
            claims, judged = self._settle(seconds, len(order), judge=not empty)
            if not self.by_message and pair.page.gave_up(generation):
                continue  # it ran before it was released: neither its time nor its outputs mean anything
            if judged is not None:
                self._take(judged)
            return reading, claims
        raise PeerEnded("timed-out", "the GPU's queue could not be held behind the gate")

    def _settle(self, seconds: float, calls: int, judge: bool) -> tuple[tuple[float, ...], wire.Judged | None]:
        """The oracle judges what is sealed while the contestant's device comes to rest."""
        if not judge:
            return self._hear(wire.Claims, seconds, calls).claims_ns, None
        self.pair.tell_oracle(wire.Judge(JUDGE_NS, published=False))
        try:
            claims = self._hear(wire.Claims, seconds, calls).claims_ns
        finally:
            judged = self.pair.hear_oracle(wire.Judged)
        return claims, judged

    def _read(self, generation: int, empty: bool, calls: int) -> int:
        """The external reading: the referee's clock from release to done."""
        limit_ns = self._limit_ns(calls)
        if self.by_message:
            start = wall_ns()
            self._ask(wire.Release(generation), wire.Done, limit_ns / 1e9)
            return wall_ns() - start
        reading = self.pair.page.reading_ns(generation, due_ns=0 if empty else self.due_ns, limit_ns=limit_ns)
        if reading is None:
            raise PeerEnded(
                "timed-out", f"the GPU had not finished a batch of {calls} calls after {limit_ns / 1e9:g} s"
            )
        return reading

    def _take(self, judged: wire.Judged) -> None:
        """Keep the worst judgement; a wrong output in a timed batch ends the case."""
        if not judged.ok:
            message = verdict(judged).message
            if self.worst is not None:
                message = f"right when called alone, wrong in a timed batch on contents it had not seen: {message}"
            raise Ended(Outcome("wrong", message, "batch" if self.worst else "call"), judgement(judged))
        calls = judged.calls + (self.worst.calls if self.worst else 0)
        worse = self.worst is None or (judged.row_error or 0.0) >= (self.worst.row_error or 0.0)
        worst = judged if worse or self.worst is None else self.worst
        published = self.worst or judged  # only the first one was shown to the published check
        self.worst = replace(worst, calls=calls, gpumode=published.gpumode, gpumode_message=published.gpumode_message)

    # --- talking -------------------------------------------------------------------------------------------

    def _renew(self, indices: Any, keep_first: bool = False) -> None:
        self.pair.oracle(wire.Renew(tuple(indices), self.draw.getrandbits(62), keep_first), wire.Renewed)

    def _ask(self, order: Any, answer: type, seconds: float, calls: int | None = None) -> Any:
        return _passed(self.pair.contestant(order, answer, timeout_s=seconds), calls)

    def _hear(self, answer: type, seconds: float, calls: int) -> Any:
        return _passed(self.pair.hear_contestant(answer, timeout_s=seconds), calls)

    def _limit_ns(self, calls: int) -> int:
        return int((self.pair.setting.limits.call_s * calls + 5) * 1e9)


def _passed(report: Any, calls: int | None = None) -> Any:
    """A report that is no failure; with as many claims as there were calls, where it has claims."""
    if isinstance(report, wire.Failed):
        raise Ended(failure(report))
    if calls is not None and len(report.claims_ns) != calls:
        raise PeerEnded("protocol-violation", f"it claimed {len(report.claims_ns)} times for {calls} calls")
    return report
