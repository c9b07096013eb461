"""One gate: armed, dealt, released, read from outside; then its outputs are judged. Every reading comes from here."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harness import wire
from harness.processes.court import Court
from harness.processes.pair import Pair, wall_ns
from harness.processes.peer import PeerEnded
from harness.record import DeviceState, Judgement, Outcome
from harness.timing.gate import Reading
from harness.timing.sampling import Pace
from harness.verify import failure, judgement, verdict

POLLS = 4_000_000
"""Looks of a gate before it gives up: some seconds, each look being 1 to 2 microseconds over the bus."""
PROBE_POLLS = 150_000
"""The same when finding out whether a kernel waits for the GPU itself."""
JUDGE_NS = 3_000_000
"""Time for judging one batch's outputs; at least one is judged, drawn after the batch ended."""
SETTLE_S = 0.003
"""Pause before a gate is opened, so that the GPU has left the oracle's context: without it, readings scatter three
times as much (H200, 6 us kernel)."""
UNSEEN_NS, UNSEEN_SHARE = 4000, 0.001
"""A reading of which the referee did not see more than the larger of these is read again, on fresh contents. Where a
look at the clock takes 1 us, 2 us are usual, and 2 to 4 % of the readings had more: up to 0.1 ms."""


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


class Turn:
    """One contestant at the gates of one case: what it is asked, how it is judged, how it ends."""

    def __init__(self, pair: Pair, *, by_message: bool, is_alone: bool = True) -> None:
        self.pair = pair
        self.is_alone = is_alone
        self.by_message = by_message
        self.flush_ns = 0.0
        """What each flush is given."""
        self.worst: wire.Judged | None = None
        self.is_modified = False
        self.due_ns = 0.0
        self.idle_ns: list[float] = []
        """By gate with calls: from done to the contestant's word that its device is idle."""
        self.ended: Ended | None = None

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


class Gates:
    """What opens gates between an oracle and its contestants, on one case, and keeps what the oracle's canaries read.

    `draw` draws contents.
    """

    def __init__(self, court: Court, heat: Round, draw: random.Random) -> None:
        self.court = court
        self.heat = heat
        self.draw = draw
        self.canaries: list[tuple[float, ...]] = []

    def rehearse(self, turn: Turn, order: tuple[int, ...], empty: bool = False) -> float:
        """Run these calls with the gate open: about how long one takes, in ns."""
        seconds = turn.pair.setting.limits.call_s * len(order)
        rehearsed: wire.Rehearsed = turn.ask(wire.Rehearse(order, empty), wire.Rehearsed, seconds, len(order))
        return statistics.median(rehearsed.claims_ns)

    def fits(self, turn: Turn, order: tuple[int, ...]) -> bool:
        """Whether this many calls can be enqueued before a patient gate gives up."""
        generation = turn.pair.next_generation()
        arm = wire.Arm(generation, order, empty=False, by_message=False, events=True, polls=PROBE_POLLS)
        seconds = turn.pair.setting.limits.call_s * len(order)
        armed = turn.ask(arm, wire.Armed, seconds)
        turn.pair.page.read(generation, due_ns=0, limit_ns=turn.limit_ns(len(order)))
        turn.hear(wire.Claims, seconds, len(order))
        return not armed.expired

    def read(
        self,
        turn: Turn,
        order: tuple[int, ...],
        empty: bool,
        events: bool = False,
        ahead: int = 0,
        dealt: bool = True,
    ) -> tuple[int, tuple[float, ...]]:
        """Arm, deal, release, read; then judge. Reading in ns, claims in ns per call.

        `ahead` empty kernels go ahead of the gate. Not `dealt`: an empty gate over arenas that nothing is dealt into.
        """
        pair = turn.pair
        seconds = pair.setting.limits.call_s * len(order) + 10
        for last in (False, False, True):
            generation = pair.next_generation()
            arm = wire.Arm(generation, order, empty, turn.by_message, events, POLLS, turn.flush_ns, ahead)
            try:
                armed: wire.Armed = turn.ask(arm, wire.Armed, seconds)
                if dealt and not (empty and turn.by_message):
                    # Before an empty batch too: what the oracle leaves in the cache is written back on its time.
                    self.court.ask(wire.Deal(pair.seat, blank=empty), wire.Dealt)
                if dealt and not turn.by_message:
                    time.sleep(SETTLE_S)
                reading = self._external(turn, generation, empty, len(order))
            except Ended:
                pair.page.open(generation)  # whatever was enqueued before it failed is still waiting
                raise
            claims, judged = self._settle(turn, seconds, len(order) if events else 0, judge=not empty)
            if not turn.by_message and pair.page.gave_up(generation):
                # It ran before it was released: neither its time nor its outputs mean anything. The word is in the
                # contestant's memory, so it may lie: it is never asked again about contents that it has seen.
                if not empty:
                    # Given up before all was enqueued: either that was slow for once, or it waits for what is behind.
                    if armed.expired and not self.fits(turn, order):
                        raise waits("in a timed batch but did not when it was tried")
                    self.renew(order)
                continue
            if judged is not None:
                turn.take(judged)
                turn.due_ns = float(reading.ns)
            if reading.unseen_ns > max(UNSEEN_NS, UNSEEN_SHARE * reading.ns) and not last:
                if not empty:
                    self.renew(order)
                continue
            return reading.ns, claims
        raise PeerEnded("timed-out", "the GPU's queue could not be held behind the gate")

    def _settle(
        self, turn: Turn, seconds: float, calls: int, judge: bool
    ) -> tuple[tuple[float, ...], wire.Judged | None]:
        """The oracle takes what is sealed out of reach at once, and judges it while the contestant comes to rest."""
        done_ns = wall_ns()
        if not judge:
            return turn.hear(wire.Claims, seconds, calls).claims_ns, None
        self.court.tell(wire.Judge(turn.pair.seat, JUDGE_NS, published=False))
        try:
            claims = turn.hear(wire.Claims, seconds, calls).claims_ns
            turn.idle_ns.append(wall_ns() - done_ns)
        finally:
            judged = self.court.hear(wire.Judged)
        return claims, judged

    def _external(self, turn: Turn, generation: int, empty: bool, calls: int) -> Reading:
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

    def renew(self, indices: Sequence[int], keep_first: bool = False, watched: bool = False) -> DeviceState | None:
        """Fresh contents for these sets; meanwhile, look at the device."""
        self.court.tell(wire.Renew(tuple(indices), self.draw.getrandbits(62), keep_first))
        state = self.heat.watch.state(self.heat.pids) if watched and self.heat.watch is not None else None
        self.canaries.append(self.court.hear(wire.Renewed).canaries_ns)
        return state


def waits(where: str) -> Ended:
    """The end of a kernel whose time would be of another class than what was measured of it before."""
    message = f"it waits for the GPU inside custom_kernel {where}: its times would have no common scale"
    return Ended(Outcome("timed-out", message, "batch"))


def _passed(report: Any, calls: int | None = None) -> Any:
    """A report that is no failure; with as many claims as there were calls, where it has claims."""
    if isinstance(report, wire.Failed):
        raise Ended(failure(report))
    if calls is not None and len(report.claims_ns) != calls:
        raise PeerEnded("protocol-violation", f"it claimed {len(report.claims_ns)} times for {calls} calls")
    return report
