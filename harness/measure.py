"""How long do submissions take on one case? Batches behind the gate, read from outside, judged afterwards.

Any number of contestants may take turns: blocks hold each of them once, in random order, on identical contents, which
are dealt into a contestant's own arena in its own turn. A leaderboard's run has one.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness import wire
from harness.baseline import Baseline, Empty
from harness.cases import Case
from harness.gates import Gates, Round, Turn, waits
from harness.processes.court import Court
from harness.processes.pair import Pair, wall_ns
from harness.record import Batch, CaseResult, DeviceState, Doubt, Outcome, StoppedBy, Timing, TimingClass
from harness.timing.sampling import CLAIMED, MAX_CALLS, Plan, plan, stop
from harness.timing.slots import shift
from harness.timing.start import START_NS
from harness.verify import judgement, result

PASSES = ("RE", "ER")
"""Gates of one sample: with calls (R), empty (E), the second pass mirroring the first: what drifts, and what a gate
inherits from the one before it, is on either side of the difference."""
DISAGREE_SHARE, DISAGREE_NS = 0.03, 1500.0
"""Beyond the larger of these, two clocks that should agree do not."""
WRITE_BACK_SHARE = 0.05
"""What the external clock may read on top: copying an output away drives out lines that the kernel wrote (vectoradd of
4096 and 8192 squared on an H200: 1.4 and 2.2 us; torch's many-kernel baselines: up to 2.8 %)."""
CARRIED_SHARE, CARRIED_NS = 0.10, 3000.0
"""Beyond the larger of these, the first call of a batch did work for all of them."""


@dataclass(frozen=True)
class Form:
    """How a submission's batches on a case look, as its first process found out; the next need not."""

    calls: int
    by_message: bool
    estimate_ns: float


@dataclass(frozen=True)
class Timed:
    """One case's result in one process, the class of its time, and the form of its batches."""

    result: CaseResult
    timing_class: TimingClass
    form: Form | None = None
    output_bytes: int = 0


def measure(
    court: Court,
    pairs: Sequence[Pair],
    case: Case,
    heat: Round,
    baselines: Sequence[Baseline],
    forms: Sequence[Form | None] = (None,),
    tick: Callable[[int], None] = lambda batches: None,
) -> list[Timed]:
    """Time a benchmark case on each of `pairs`, in their order; `tick(batches so far)` shows progress.

    `baselines` are what each pair's empty gates read before its submission was there. A contestant that fails or ends
    is a result; the others go on, without its process beside them. NoRoom when the device has too little memory.
    """
    seats = [pair.seat for pair in pairs]
    with court.staged(case, MAX_CALLS, seats) as staged, contextlib.ExitStack() as stack:
        is_alone = len(pairs) == 1
        turns = [_Turn(*each, is_alone) for each in zip(pairs, forms, baselines, strict=True)]
        for turn in turns:
            with turn.surviving():
                stack.enter_context(turn.pair.attached(staged))
        _Blocks(court, case, staged.sets, turns, heat).time(tick)
        return [replace(turn.timed(case), output_bytes=staged.output_bytes) for turn in turns]


class _Turn(Turn):
    """One contestant's part in the timing of one case."""

    def __init__(self, pair: Pair, form: Form | None, baseline: Baseline, is_alone: bool) -> None:
        super().__init__(pair, by_message=not pair.gated or (form is not None and form.by_message), is_alone=is_alone)
        self.form = form
        self.baseline = baseline
        self.on_cpu = pair.kind == "cpu"
        self.plan: Plan | None = None
        self.batches: list[Batch] = []
        self.claimed: list[Batch] = []
        self.empty_claims: list[float] = []
        self.stopped: StoppedBy | None = None

    @property
    def timing_class(self) -> TimingClass:
        """What a number read this way may be compared with."""
        if self.on_cpu:
            return "interpreter" if self.pair.interprets else "cpu"
        return "host-synchronising" if self.by_message else "gated"

    def timed(self, case: Case) -> Timed:
        """What came of it."""
        if self.ended is not None:
            return Timed(result(case, "benchmark", self.ended.outcome, self.ended.judged), self.timing_class)
        assert self.worst is not None and self.stopped is not None
        empty_claim = statistics.fmean(self.empty_claims) if self.empty_claims else None
        timing = Timing(
            tuple(self.batches),
            empty_claim,
            stopped_by=self.stopped,
            claimed=tuple(self.claimed),
            empty_excess_ns=self._empty_excess_ns(),
            idle_ns=None if self.by_message else min(self.idle_ns, default=None),
        )
        passed = result(case, "benchmark", Outcome("passed"), judgement(self.worst))
        return Timed(replace(passed, timing=timing, doubts=self._doubts(timing)), self.timing_class, self.form)

    def _empty_excess_ns(self) -> float | None:
        """How much longer an empty call takes beside the submission's than it took before that was there.

        None where those before are what is taken off: by message.
        """
        if self.by_message:
            return None
        return statistics.median(self.baseline.excess_ns(batch) for batch in self.batches)

    def _doubts(self, timing: Timing) -> tuple[Doubt, ...]:
        """Were inputs left as they were? Do the clocks tell the same story, and do all calls of a batch?"""
        doubts: list[Doubt] = ["input-modified"] if self.is_modified else []
        if not self._clocks_agree(timing):
            doubts.append("clocks-disagree")
        if self.by_message:
            return tuple(doubts)
        if timing.claimed:
            excess, claimed = first_call_excess_ns(timing.claimed), self._claimed_ns(timing)
            if self.pair.court.problem.shared_inputs and excess > max(CARRIED_SHARE * claimed, CARRIED_NS):
                doubts.append("state-carried")
        return tuple(doubts)

    def _clocks_agree(self, timing: Timing) -> bool:
        """The referee's and the contestant's, each the mean over the same calls."""
        if self.by_message or not timing.claimed:
            return True
        external = statistics.fmean(batch.per_call_ns for batch in timing.claimed)
        allowed = max(DISAGREE_SHARE * external, DISAGREE_NS)
        return -allowed <= external - self._claimed_ns(timing) <= allowed + WRITE_BACK_SHARE * external

    def _claimed_ns(self, timing: Timing) -> float:
        claimed = statistics.fmean(claim for batch in timing.claimed for claim in batch.claims_ns)
        return claimed + timing.claimed[0].start_ns - (timing.empty_claim_ns or 0.0)


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
        self.sets = sets
        self.turns = turns
        self.heat = heat
        self.draw = random.Random(f"{heat.seed} {heat.number} {case.key}")
        self.gates = Gates(court, heat, self.draw)

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
        self.gates.renew((0,), keep_first=True)
        for turn in self.active:
            with turn.surviving():
                self.court.ask(wire.Deal(turn.pair.seat), wire.Dealt)
                turn.ask(wire.Call(0), wire.Called, turn.pair.setting.limits.compile_s)
                judge = wire.Judge(turn.pair.seat, budget_ns=0, published=self.heat.number == 0)
                turn.take(self.court.ask(judge, wire.Judged))
        known = [turn.form.calls for turn in self.active if turn.form is not None]
        indices = range(min(known)) if len(known) == len(self.active) and known else range(self.sets)
        start = wall_ns()
        self.gates.renew(indices)
        renew_ns = (wall_ns() - start) / max(len(indices), 1)
        for turn in self.active:
            with turn.surviving():
                self.court.ask(wire.Deal(turn.pair.seat), wire.Dealt)
                if turn.form is None:
                    turn.form = self._find_form(turn, renew_ns)
                elif not turn.by_message:
                    self.gates.rehearse(turn, tuple(indices))
                    if not any(self.gates.fits(turn, (0,)) for _ in range(2)):  # twice: the machine may have paused
                        raise waits("in this process but did not in the first")
                form = turn.form
                turn.plan = plan(form.estimate_ns, form.calls, on_cpu=turn.by_message)
                turn.flush_ns = 0.0 if turn.by_message else turn.baseline.flush_ns

    def _find_form(self, turn: _Turn, renew_ns: float) -> Form:
        once = turn.ask(wire.Call(0), wire.Called, turn.pair.setting.limits.call_s)
        if not turn.by_message:
            # A kernel that waits for the GPU can never be enqueued behind a closed gate: it is timed call by call.
            turn.by_message = not self.gates.fits(turn, (0,))
        estimate = once.claim_ns
        if turn.by_message:
            return Form(plan(estimate, self.sets, on_cpu=True, renew_ns=renew_ns).calls, True, estimate)
        order = tuple(range(min(self.sets, plan(estimate, self.sets, on_cpu=False).calls)))
        estimate = self.gates.rehearse(turn, order)
        order = order[: plan(estimate, self.sets, on_cpu=False, renew_ns=renew_ns).calls]
        while len(order) > 1 and not self.gates.fits(turn, order):
            order = order[: len(order) // 2]
        estimate = self.gates.rehearse(turn, order)
        return Form(plan(estimate, len(order), on_cpu=False).calls, False, estimate)

    # --- one block: everybody's gates with calls and empty ones, in balanced order ---------------------------

    def _block(self, calls: int, number: int) -> None:
        turns = self.draw.sample(self.active, len(self.active))
        first = {id(turn): "R" if turn.by_message else self.draw.choice(PASSES) for turn in turns}
        orders = [(turns, first)]
        if not any(turn.by_message for turn in turns):
            orders.append((turns[::-1], {key: letters[::-1] for key, letters in first.items()}))
        readings: dict[int, list[tuple[str, int, tuple[float, ...]]]] = {id(turn): [] for turn in turns}
        self.gates.canaries = []
        state: DeviceState | None = None
        for half, (each, letters) in enumerate(orders):
            ahead = shift(len(orders) * number + half, calls)
            indices = tuple(self.draw.sample(range(self.sets), calls))
            found = self.gates.renew(indices, watched=state is None)
            state = state or found
            for turn in each:
                if turn.ended is not None:
                    continue
                with turn.surviving():
                    for letter in letters[id(turn)]:
                        order = tuple(self.draw.sample(indices, calls))
                        events = turn.by_message or number < 0
                        reading, claims = self.gates.read(turn, order, letter == "E", events, ahead)
                        readings[id(turn)].append((letter, reading, claims))
        canaries = tuple(statistics.fmean(each) for each in zip(*self.gates.canaries, strict=True))
        for turn in self.active:
            gates = readings[id(turn)]
            batch = replace(
                _batch_of(gates, calls, turn.baseline.by_message),
                process=self.heat.number,
                block=number,
                canaries_ns=canaries,
                state=state,
                flush_ns=turn.flush_ns,
                start_ns=0.0 if turn.by_message else START_NS,
            )
            (turn.claimed if number < 0 else turn.batches).append(batch)
            turn.empty_claims += [claim for letter, _, claims in gates if letter == "E" for claim in claims]


def _batch_of(gates: Sequence[tuple[str, int, tuple[float, ...]]], calls: int, otherwise: Empty) -> Batch:
    """One sample from its gates: letter, reading, claims; `otherwise` is taken off where none of them is empty."""
    real, empty = (sum(ns for letter, ns, _ in gates if letter == kind) for kind in "RE")
    order = "".join(letter for letter, _, _ in gates)
    if "E" not in order:
        empty = max(0, round(otherwise.reading_ns(calls))) * len(order)
    claims = tuple(claim for letter, _, each in gates if letter == "R" for claim in each)
    return Batch(calls * order.count("R"), real, empty, claims, order, tuple(ns for _, ns, _ in gates))
