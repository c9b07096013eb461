"""What empty gates read before anything of the submission's was there: the measure for those beside its calls.

A submission shares a process with what its empty gates run, and may slow that down: its own time would seem shorter.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.cases import Case
from harness.errors import DeviceError
from harness.gates import Ended, Gates, Round, Turn
from harness.processes.court import Court, NoRoom
from harness.processes.pair import Pair
from harness.processes.peer import PeerEnded
from harness.record import Batch
from harness.timing.sampling import MAX_CALLS, Pace

FLUSH_ALLOWANCE = 1.5
"""What a flush is given, as a multiple of an empty gate's time per call without any such wait: enough to drive out a
cache full of written lines, which is half of what the flush itself reads."""
_TIMES = 2
"""Empty gates of each kind: what disturbs one makes it longer, so the shorter one counts."""


@dataclass(frozen=True)
class Empty:
    """What a batch reads without calls."""

    gate_ns: float
    """With none at all."""
    call_ns: float
    """What each empty call adds, its flush left out where that is given a time."""

    def reading_ns(self, calls: int, flush_ns: float = 0.0) -> float:
        """A batch of so many empty calls, each with a flush that is given so long."""
        return self.gate_ns + calls * (self.call_ns + flush_ns)


@dataclass(frozen=True)
class Baseline:
    """Of one process on one case."""

    flush_ns: float
    """What each flush is given, in every process alike; 0 where there is no gate."""
    gated: Empty | None
    """Behind a gate on the device; None where there is none."""
    by_message: Empty
    """Run when a message says so: this is what is taken off such readings."""

    def excess_ns(self, batch: Batch) -> float:
        """How much longer each empty call behind a gate took beside the calls of a batch."""
        assert self.gated is not None
        calls = batch.calls // batch.order.count("R")
        gate_ns = batch.empty_ns / batch.order.count("E")
        return (gate_ns - self.gated.reading_ns(calls, self.flush_ns)) / calls


def read_baselines(
    court: Court, pairs: Sequence[Pair], case: Case, flushes_ns: Sequence[float | None]
) -> list[Baseline]:
    """Each pair's, before its submission is loaded; `flushes_ns` where it is known what each flush is given.

    NoRoom when the device has too little memory; DeviceError when a process fails: nobody's code but ours is in it.
    """
    with court.staged(case, MAX_CALLS, [pair.seat for pair in pairs]) as staged, contextlib.ExitStack() as stack:
        gates = Gates(court, Round(0, 0, Pace()), random.Random())  # nothing is drawn: nothing is dealt
        order = tuple(range(staged.sets))
        try:
            for pair in pairs:
                stack.enter_context(pair.attached(staged))
            return [_read(gates, pair, order, flush_ns) for pair, flush_ns in zip(pairs, flushes_ns, strict=True)]
        except (Ended, PeerEnded) as ended:
            raise DeviceError(f"empty gates could not be read before the submission was loaded: {ended}") from None


def _read(gates: Gates, pair: Pair, order: tuple[int, ...], flush_ns: float | None) -> Baseline:
    by_message = _empty(gates, Turn(pair, by_message=True), order)
    if not pair.gated:
        return Baseline(0.0, None, by_message)
    turn = Turn(pair, by_message=False)
    gates.rehearse(turn, order, empty=True)  # what is loaded behind a closed gate waits for ever
    if flush_ns is None:
        flush_ns = float(round(FLUSH_ALLOWANCE * _shortest(gates, turn, order) / len(order)))
    turn.flush_ns = flush_ns
    return Baseline(flush_ns, _empty(gates, turn, order), by_message)


def _empty(gates: Gates, turn: Turn, order: tuple[int, ...]) -> Empty:
    one, every = (_shortest(gates, turn, each) for each in (order[:1], order))
    more = len(order) - 1
    call_ns = (every - one) / more if more else float(one)
    return Empty(one - call_ns, call_ns - turn.flush_ns)


def _shortest(gates: Gates, turn: Turn, order: tuple[int, ...]) -> int:
    return min(gates.read(turn, order, empty=True, events=turn.by_message, dealt=False)[0] for _ in range(_TIMES))


class Baselines:
    """All of a run's, of its current processes, by case and by the index of their setting."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, Baseline]] = {}
        self._lacking: dict[str, str] = {}

    def read(self, court: Court, pairs: Mapping[int, Pair], cases: Sequence[Case]) -> None:
        """Those of these processes, none of which has its submission loaded, by the index of their setting."""
        self._lacking = {}
        for case in cases:
            before = self._found.get(case.key, {})
            known = [before[index].flush_ns if index in before else None for index in pairs]
            try:
                found = read_baselines(court, list(pairs.values()), case, known)
            except NoRoom as too_large:
                self._lacking[case.key] = str(too_large)
            else:
                self._found[case.key] = {**before, **dict(zip(pairs, found, strict=True))}

    def of(self, case: Case, indices: Sequence[int]) -> list[Baseline]:
        """Those of these settings on a case. NoRoom where it had none."""
        if case.key in self._lacking:
            raise NoRoom(self._lacking[case.key])
        return [self._found[case.key][index] for index in indices]
