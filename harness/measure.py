"""How long do submissions take on one case? Batches behind the gate, read from outside, judged afterwards.

Any number of contestants may take turns: blocks hold each of them once, in random order, on identical contents, which
are dealt into a contestant's own arena in its own turn. A leaderboard's run has one.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harness import wire
from harness.cases import Case
from harness.processes.court import Court
from harness.processes.pair import Pair, wall_ns
from harness.processes.peer import PeerEnded
from harness.record import Batch, CaseResult, DeviceState, Doubt, Judgement, Outcome, StoppedBy, Timing, TimingClass
from harness.timing.gate import Reading
from harness.timing.sampling import CLAIMED, MAX_CALLS, Pace, Plan, plan, stop
from harness.timing.slots import shift
from harness.timing.start import START_NS
from harness.verify import failure, judgement, result, verdict

POLLS = 4_000_000
"""Looks of a gate before it gives up: some seconds, each look being 1 to 2 microseconds over the bus."""
PROBE_POLLS = 150_000
"""The same when finding out whether a kernel waits for the GPU itself."""
JUDGE_NS = 3_000_000
"""Time for judging one batch's outputs; at least one is judged, drawn after the batch ended."""
PASSES = ("RE", "ER")
"""Gates of one sample: with calls (R), empty (E), the second pass mirroring the first: what drifts, and what a gate
inherits from the one before it, is on either side of the difference."""
SETTLE_S = 0.003
"""Pause before a gate is opened, so that the GPU has left the oracle's context: without it, readings scatter three
times as much (H200, 6 us kernel)."""
UNSEEN_NS, UNSEEN_SHARE = 4000, 0.001
"""A reading of which the referee did not see more than the larger of these is read again, on fresh contents. Where a
look at the clock takes 1 us, 2 us are usual, and 2 to 4 % of the readings had more: up to 0.1 ms."""
DISAGREE_SHARE, DISAGREE_NS = 0.03, 1500.0
"""Beyond the larger of these, two clocks that should agree do not."""
WRITE_BACK_SHARE = 0.05
"""What the external clock may read on top: copying an output away drives out lines that the kernel wrote (vectoradd of
4096 and 8192 squared on an H200: 1.4 and 2.2 us; torch's many-kernel baselines: up to 2.8 %)."""
FLUSH_ALLOWANCE = 1.5
"""What a flush is given, as a multiple of an empty gate's time per call without any such wait: enough to drive out a
cache full of written lines, which is half of what the flush itself reads."""
CARRIED_SHARE, CARRIED_NS = 0.10, 3000.0
"""Beyond the larger of these, the first call of a batch did work for all of them."""


class Ended(Exception):
    """The case ends here for one contestant, with this outcome."""

    def __init__(self, outcome: Outcome, judged: Judgement | None = None) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome
        self.judged = judged


class Watch(Protocol):
    """What tells the device's state (devices.monitor.Monitor)."""

    def state(self, own_pids: Collection[int]) -> DeviceState | None:
        """How the device is now."""


@dataclass(frozen=True)
class Form:
    """How a submission's batches on a case look, as its first process found out; the next need not."""

    calls: int
    by_message: bool
    estimate_ns: float
    flush_ns: float = 0.0
    """What each flush is given."""


@dataclass(frozen=True)
class Timed:
    """One case's result in one process, the class of its time, and the form of its batches."""

    result: CaseResult
    timing_class: TimingClass
    form: Form | None = None


@dataclass(frozen=True)
class Round:
    """What is the same for all contestants and cases of one heat."""

    number: int
    """Which process of each submission this is, from 0."""
    seed: int
    """Draws orders and contents."""
    pace: Pace
    watch: Watch | None = None
    pids: tuple[int, ...] = ()
    """The run's own processes on the device."""


def measure(
    court: Court,
    pairs: Sequence[Pair],
    case: Case,
    heat: Round,
    forms: Sequence[Form | None] = (None,),
    tick: Callable[[int], None] = lambda batches: None,
) -> list[Timed]:
    """Time a benchmark case on each of `pairs`, in their order; `tick(batches so far)` shows progress.

    A contestant that fails or ends is a result; the others go on, without its process beside them. NoRoom when the
    device has too little memory.
    """
    seats = [pair.seat for pair in pairs]
    with court.staged(case, MAX_CALLS, seats) as staged, contextlib.ExitStack() as stack:
        is_alone = len(pairs) == 1
        turns = [_Turn(pair, form, is_alone) for pair, form in zip(pairs, forms, strict=True)]
        for turn in turns:
            with turn.surviving():
                stack.enter_context(turn.pair.attached(staged))
        _Blocks(court, case, staged.sets, turns, heat).time(tick)
        return [turn.timed(case) for turn in turns]


class _Turn:
    """One contestant's part in the timing of one case."""

    def __init__(self, pair: Pair, form: Form | None, is_alone: bool) -> None:
        self.pair = pair
        self.form = form
        self.is_alone = is_alone
        self.on_cpu = pair.kind == "cpu"
        self.by_message = not pair.gated or (form is not None and form.by_message)
        self.plan: Plan | None = None
        self.worst: wire.Judged | None = None
        self.is_modified = False
        self.due_ns = 0.0
        self.flush_ns = 0.0
        self.batches: list[Batch] = []
        self.claimed: list[Batch] = []
        self.empty_claims: list[float] = []
        self.stopped: StoppedBy | None = None
        self.ended: Ended | None = None

    @property
    def timing_class(self) -> TimingClass:
        """What a number read this way may be compared with."""
        if self.on_cpu:
            return "interpreter" if self.pair.interprets else "cpu"
        return "host-synchronising" if self.by_message else "gated"

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """What this contestant does inside ends its own part and nobody else's."""
        try:
            yield
        except Ended as ended:
            self.ended = ended
        except PeerEnded as ended:
            self.ended = Ended(Outcome(ended.verdict, ended.message, "benchmark"))
            self._drop()
        if self.ended is not None and not self.is_alone:
            self._drop()

    def _drop(self) -> None:
        if self.pair.pid is not None:
            self.pair.drop()

    def timed(self, case: Case) -> Timed:
        """What came of it."""
        if self.ended is not None:
            return Timed(result(case, "benchmark", self.ended.outcome, self.ended.judged), self.timing_class)
        assert self.worst is not None and self.stopped is not None
        empty_claim = statistics.median(self.empty_claims) if self.empty_claims else None
        timing = Timing(tuple(self.batches), empty_claim, stopped_by=self.stopped, claimed=tuple(self.claimed))
        passed = result(case, "benchmark", Outcome("passed"), judgement(self.worst))
        return Timed(replace(passed, timing=timing, doubts=self._doubts(timing)), self.timing_class, self.form)

    def _doubts(self, timing: Timing) -> tuple[Doubt, ...]:
        """Were inputs left as they were? Do both clocks tell the same story, and do all calls of a batch?"""
        doubts: list[Doubt] = ["input-modified"] if self.is_modified else []
        if self.by_message or not timing.claimed:
            return tuple(doubts)
        external = statistics.median(batch.per_call_ns for batch in timing.claimed)
        claimed = statistics.median(claim for batch in timing.claimed for claim in batch.claims_ns)
        claimed += timing.claimed[0].start_ns - (timing.empty_claim_ns or 0.0)
        allowed = max(DISAGREE_SHARE * external, DISAGREE_NS)
        if not -allowed <= external - claimed <= allowed + WRITE_BACK_SHARE * external:
            doubts.append("clocks-disagree")
        excess = first_call_excess_ns(timing.claimed)
        if self.pair.court.problem.shared_inputs and excess > max(CARRIED_SHARE * claimed, CARRIED_NS):
            doubts.append("state-carried")
        return tuple(doubts)

    # --- talking -----------------------------------------------------------------------------------------

    def ask(self, order: Any, answer: type, seconds: float, calls: int | None = None) -> Any:
        """The contestant's answer; Ended when it is a failure."""
        return _passed(self.pair.contestant(order, answer, timeout_s=seconds), calls)

    def hear(self, answer: type, seconds: float, calls: int) -> Any:
        """Its next report, alike."""
        return _passed(self.pair.hear_contestant(answer, timeout_s=seconds), calls)

    def take(self, judged: wire.Judged) -> None:
        """Keep the worst judgement; a wrong output in a timed batch ends the case."""
        if not judged.ok:
            message = verdict(judged).message
            if self.worst is not None:
                message = f"right when called alone, wrong in a timed batch on contents it had not seen: {message}"
            raise Ended(Outcome("wrong", message, "batch" if self.worst else "call"), judgement(judged))
        self.is_modified = self.is_modified or judged.modified
        calls = judged.calls + (self.worst.calls if self.worst else 0)
        worse = self.worst is None or (judged.row_error or 0.0) >= (self.worst.row_error or 0.0)
        worst = judged if worse or self.worst is None else self.worst
        published = self.worst or judged  # only the first one was shown to the published check
        self.worst = replace(worst, calls=calls, gpumode=published.gpumode, gpumode_message=published.gpumode_message)

    def limit_ns(self, calls: int) -> int:
        """Longest that a batch may take."""
        return int((self.pair.setting.limits.call_s * calls + 5) * 1e9)


def first_call_excess_ns(batches: Sequence[Batch]) -> float:
    """How much longer, by its events, a gate's first call takes than the calls after it: the least over the gates."""
    excesses = []
    for batch in batches:
        gates = max(1, batch.order.count("R"))
        each = len(batch.claims_ns) // gates
        for start in range(0, each * gates if each > 1 else 0, max(each, 1)):
            first, *rest = batch.claims_ns[start : start + each]
            excesses.append(first - statistics.median(rest))
    return min(excesses, default=0.0)


class _Blocks:
    """The steps of timing one case, with an arena between the oracle and each contestant."""

    def __init__(self, court: Court, case: Case, sets: int, turns: Sequence[_Turn], heat: Round) -> None:
        self.court = court
        self.case = case
        self.sets = sets
        self.turns = turns
        self.heat = heat
        self.draw = random.Random(f"{heat.seed} {heat.number} {case.key}")
        self.canaries: list[tuple[float, ...]] = []

    @property
    def active(self) -> list[_Turn]:
        """Who is still in it."""
        return [turn for turn in self.turns if turn.ended is None]

    def time(self, tick: Callable[[int], None]) -> None:
        """Rehearse, find the batches' form, sample until everybody's plan is satisfied."""
        self._prepare()
        calls = min((turn.form.calls for turn in self.active if turn.form is not None), default=1)
        first = self.heat.number == 0 and not all(turn.by_message for turn in self.turns)
        block = -CLAIMED if first else 0
        while self.active:
            self._block(calls, block)
            block += 1
            if block < 1:
                continue
            tick(block)
            for turn in self.active:
                assert turn.plan is not None
                turn.stopped = turn.stopped or stop(turn.plan, turn.batches, self.heat.pace, wall_ns())
            if all(turn.stopped for turn in self.active):
                return

    # --- before the first reading ------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._renew((0,), keep_first=True)
        for turn in self.active:
            with turn.surviving():
                self.court.ask(wire.Deal(turn.pair.seat), wire.Dealt)
                turn.ask(wire.Call(0), wire.Called, turn.pair.setting.limits.compile_s)
                judge = wire.Judge(turn.pair.seat, budget_ns=0, published=self.heat.number == 0)
                turn.take(self.court.ask(judge, wire.Judged))
        known = [turn.form.calls for turn in self.active if turn.form is not None]
        indices = range(min(known)) if len(known) == len(self.active) and known else range(self.sets)
        start = wall_ns()
        self._renew(indices)
        renew_ns = (wall_ns() - start) / max(len(indices), 1)
        for turn in self.active:
            with turn.surviving():
                self.court.ask(wire.Deal(turn.pair.seat), wire.Dealt)
                if turn.form is None:
                    turn.form = self._find_form(turn, renew_ns)
                elif not turn.by_message:
                    self._rehearse(turn, tuple(indices))
                    if not (self._fits(turn, (0,)) or self._fits(turn, (0,))):  # twice: the machine may have paused
                        raise _waits("in this process but did not in the first")
                form = turn.form
                turn.plan = plan(form.estimate_ns, form.calls, on_cpu=turn.by_message)
                turn.flush_ns = form.flush_ns

    def _find_form(self, turn: _Turn, renew_ns: float) -> Form:
        once = turn.ask(wire.Call(0), wire.Called, turn.pair.setting.limits.call_s)
        if not turn.by_message:
            # A kernel that waits for the GPU can never be enqueued behind a closed gate: it is timed call by call.
            turn.by_message = not self._fits(turn, (0,))
        estimate = once.claim_ns
        if turn.by_message:
            return Form(plan(estimate, self.sets, on_cpu=True, renew_ns=renew_ns).calls, True, estimate)
        order = tuple(range(min(self.sets, plan(estimate, self.sets, on_cpu=False).calls)))
        estimate = self._rehearse(turn, order)
        order = order[: plan(estimate, self.sets, on_cpu=False, renew_ns=renew_ns).calls]
        while len(order) > 1 and not self._fits(turn, order):
            order = order[: len(order) // 2]
        estimate = self._rehearse(turn, order)
        calls = plan(estimate, len(order), on_cpu=False).calls
        return Form(calls, False, estimate, self._flush_ns(turn, order[:calls]))

    def _rehearse(self, turn: _Turn, order: tuple[int, ...]) -> float:
        """Run these calls with the gate open: about how long one takes, in ns."""
        seconds = turn.pair.setting.limits.call_s * len(order)
        rehearsed: wire.Rehearsed = turn.ask(wire.Rehearse(order), wire.Rehearsed, seconds, len(order))
        return statistics.median(rehearsed.claims_ns)

    def _flush_ns(self, turn: _Turn, order: tuple[int, ...]) -> float:
        """The time to give to each flush: empty gates without that wait tell."""
        readings = [self._gate(turn, order, empty=True, events=False)[0] for _ in range(2)]
        return round(FLUSH_ALLOWANCE * min(readings) / len(order))

    def _fits(self, turn: _Turn, order: tuple[int, ...]) -> bool:
        """Whether this many calls can be enqueued before a patient gate gives up."""
        generation = turn.pair.next_generation()
        arm = wire.Arm(generation, order, empty=False, by_message=False, events=True, polls=PROBE_POLLS)
        seconds = turn.pair.setting.limits.call_s * len(order)
        armed = turn.ask(arm, wire.Armed, seconds)
        turn.pair.page.read(generation, due_ns=0, limit_ns=turn.limit_ns(len(order)))
        turn.hear(wire.Claims, seconds, len(order))
        return not armed.expired

    # --- one block: everybody's gates with calls and empty ones, in balanced order ---------------------------

    def _block(self, calls: int, number: int) -> None:
        turns = self.draw.sample(self.active, len(self.active))
        first = {id(turn): self.draw.choice(PASSES) for turn in turns}
        orders = [(turns, first)]
        if not any(turn.by_message for turn in turns):
            orders.append((turns[::-1], {key: letters[::-1] for key, letters in first.items()}))
        readings: dict[int, list[tuple[str, int, tuple[float, ...]]]] = {id(turn): [] for turn in turns}
        self.canaries = []
        state: DeviceState | None = None
        for half, (each, letters) in enumerate(orders):
            ahead = shift(len(orders) * number + half, calls)
            indices = tuple(self.draw.sample(range(self.sets), calls))
            found = self._renew(indices, watched=state is None)
            state = state or found
            for turn in each:
                if turn.ended is not None:
                    continue
                with turn.surviving():
                    for letter in letters[id(turn)]:
                        order = tuple(self.draw.sample(indices, calls))
                        events = turn.by_message or number < 0
                        reading, claims = self._gate(turn, order, letter == "E", events, ahead)
                        readings[id(turn)].append((letter, reading, claims))
        canaries = tuple(statistics.fmean(each) for each in zip(*self.canaries, strict=True))
        for turn in self.active:
            gates = readings[id(turn)]
            batch = replace(
                _batch_of(gates, calls),
                process=self.heat.number,
                block=number,
                canaries_ns=canaries,
                state=state,
                flush_ns=turn.flush_ns,
                start_ns=0.0 if turn.by_message else START_NS,
            )
            (turn.claimed if number < 0 else turn.batches).append(batch)
            turn.empty_claims += [claim for letter, _, claims in gates if letter == "E" for claim in claims]

    def _gate(
        self, turn: _Turn, order: tuple[int, ...], empty: bool, events: bool, ahead: int = 0
    ) -> tuple[int, tuple[float, ...]]:
        """Arm, deal, release, read; then judge while the contestant settles. Reading in ns, claims in ns per call."""
        pair = turn.pair
        seconds = pair.setting.limits.call_s * len(order) + 10
        for last in (False, False, True):
            generation = pair.next_generation()
            arm = wire.Arm(generation, order, empty, turn.by_message, events, POLLS, turn.flush_ns, ahead)
            try:
                armed: wire.Armed = turn.ask(arm, wire.Armed, seconds)
                if not empty or not turn.by_message:
                    # Before an empty batch too: what the oracle leaves in the cache is written back on its time.
                    self.court.ask(wire.Deal(pair.seat, blank=empty), wire.Dealt)
                if not turn.by_message:
                    time.sleep(SETTLE_S)
                reading = self._read(turn, generation, empty, len(order))
            except Ended:
                pair.page.open(generation)  # whatever was enqueued before it failed is still waiting
                raise
            claims, judged = self._settle(turn, seconds, len(order) if events else 0, judge=not empty)
            if not turn.by_message and pair.page.gave_up(generation):
                # It ran before it was released: neither its time nor its outputs mean anything. The word is in the
                # contestant's memory, so it may lie: it is never asked again about contents that it has seen.
                if not empty:
                    # Given up before all was enqueued: either that was slow for once, or it waits for what is behind.
                    if armed.expired and not self._fits(turn, order):
                        raise _waits("in a timed batch but did not when it was tried")
                    self._renew(order)
                continue
            if judged is not None:
                turn.take(judged)
                turn.due_ns = float(reading.ns)
            if reading.unseen_ns > max(UNSEEN_NS, UNSEEN_SHARE * reading.ns) and not last:
                if not empty:
                    self._renew(order)
                continue
            return reading.ns, claims
        raise PeerEnded("timed-out", "the GPU's queue could not be held behind the gate")

    def _settle(
        self, turn: _Turn, seconds: float, calls: int, judge: bool
    ) -> tuple[tuple[float, ...], wire.Judged | None]:
        """The oracle judges what is sealed while the contestant's device comes to rest."""
        if not judge:
            return turn.hear(wire.Claims, seconds, calls).claims_ns, None
        self.court.tell(wire.Judge(turn.pair.seat, JUDGE_NS, published=False))
        try:
            claims = turn.hear(wire.Claims, seconds, calls).claims_ns
        finally:
            judged = self.court.hear(wire.Judged)
        return claims, judged

    def _read(self, turn: _Turn, generation: int, empty: bool, calls: int) -> Reading:
        """The external reading: the referee's clock from release to done."""
        limit_ns = turn.limit_ns(calls)
        if turn.by_message:
            start = wall_ns()
            turn.ask(wire.Release(generation), wire.Done, limit_ns / 1e9)
            return Reading(wall_ns() - start, 0)
        due_ns = 0 if empty else turn.due_ns
        reading: Reading | None = turn.pair.page.read(generation, due_ns=due_ns, limit_ns=limit_ns)
        if reading is None:
            raise PeerEnded(
                "timed-out", f"the GPU had not finished a batch of {calls} calls after {limit_ns / 1e9:g} s"
            )
        return reading

    def _renew(self, indices: Sequence[int], keep_first: bool = False, watched: bool = False) -> DeviceState | None:
        """Fresh contents for these sets; meanwhile, look at the device."""
        self.court.tell(wire.Renew(tuple(indices), self.draw.getrandbits(62), keep_first))
        state = self.heat.watch.state(self.heat.pids) if watched and self.heat.watch is not None else None
        self.canaries.append(self.court.hear(wire.Renewed).canaries_ns)
        return state


def _waits(where: str) -> Ended:
    """The end of a kernel whose time would be of another class than what was measured of it before."""
    message = f"it waits for the GPU inside custom_kernel {where}: its times would have no common scale"
    return Ended(Outcome("timed-out", message, "batch"))


def _batch_of(gates: Sequence[tuple[str, int, tuple[float, ...]]], calls: int) -> Batch:
    """One sample from its gates: letter, reading, claims."""
    real, empty = (sum(ns for letter, ns, _ in gates if letter == kind) for kind in "RE")
    order = "".join(letter for letter, _, _ in gates)
    claims = tuple(claim for letter, _, each in gates if letter == "R" for claim in each)
    return Batch(calls * order.count("R"), real, empty, claims, order, tuple(ns for _, ns, _ in gates))


def _passed(report: Any, calls: int | None = None) -> Any:
    """A report that is no failure; with as many claims as there were calls, where it has claims."""
    if isinstance(report, wire.Failed):
        raise Ended(failure(report))
    if calls is not None and len(report.claims_ns) != calls:
        raise PeerEnded("protocol-violation", f"it claimed {len(report.claims_ns)} times for {calls} calls")
    return report
