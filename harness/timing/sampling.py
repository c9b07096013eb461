"""How many calls make a batch, and how many batches make a number: planned before, stopped by precision.

Stopping looks only at how wide the interval is, at a few fixed counts, and never at what it says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.record import Batch, StoppedBy
from harness.statistics import is_precise
from harness.timing.slots import SLOTS

MAX_CALLS = SLOTS**2
"""Calls behind one gate: enough to bring a call's kernels to each slot of the queue alike (timing.slots). With
flush, reveal, events and seal each, that is well inside a queue of about 1000 commands."""
MIN_CALLS = 8
"""Fewer than these are only taken where memory or a kernel's own length asks for it."""
BATCH_NS = 20e6
"""Calls are taken together up to about this much kernel time per batch."""
RENEW_NS = 12e6
"""Calls are taken together up to about this much time for making their contents."""
CLAIMED = 1
"""Blocks with the contestant's own events, in the first process, before those that count."""
LOOKS = (4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Counts of batches at which the precision is looked at."""
SLOW_LOOKS = (3, 4, 6, 8)
"""The same where one call takes seconds (an interpreter)."""
SLOW_CALL_NS = 0.2e9
SHARED, SHARED_BY_ALL = 2, 8
"""Batches of one process where several share a number: of each case, and at the least of all its cases together. On an
H200, small kernels' times differ by 0.1 us from process to process and by 0.07 us from batch to batch: where there is
more than one case to time in it, the next process tells more than the next batch."""


@dataclass(frozen=True)
class Pace:
    """How exact one process's number is to be, and how long that may take."""

    half_width: float = 0.0025
    """Half of the 99 % interval, as a share of the time, at which the number is good enough."""
    most: int | None = None
    """Batches at the most, where other processes add theirs."""
    until_ns: int | None = None
    """On the referee's clock: after this, no batch is begun that is not needed at the least."""


def shared(cases: int) -> int:
    """How many batches of each of so many cases one process takes, where several share a number."""
    return max(SHARED, math.ceil(SHARED_BY_ALL / cases))


@dataclass(frozen=True)
class Plan:
    """One case's batches. Times in ns."""

    calls: int
    looks: tuple[int, ...]
    cap_ns: float
    """Kernel time after which no further batch is begun."""


def plan(estimate_ns: float, sets: int, *, on_cpu: bool, renew_ns: float = 0.0) -> Plan:
    """Batches for a kernel that takes about `estimate_ns`, with `sets` input sets to deal, made in `renew_ns` each."""
    fitting = int(BATCH_NS // max(estimate_ns, 1.0))
    made = max(MIN_CALLS, int(RENEW_NS // max(renew_ns, 1.0)))
    calls = max(1 if on_cpu else 2, min(sets, MAX_CALLS, fitting, made))
    calls = min(calls, sets)
    if not on_cpu and calls > SLOTS:
        calls -= calls % (2 * SLOTS if calls >= 2 * SLOTS else SLOTS)  # whole rounds of gates (slots.shift)
    if on_cpu and estimate_ns > SLOW_CALL_NS:
        return Plan(calls, SLOW_LOOKS, 1e9)
    return Plan(calls, LOOKS, 1e9 if estimate_ns > 5e6 else 0.5e9)


def stop(plan: Plan, batches: Sequence[Batch], pace: Pace, now_ns: int = 0) -> StoppedBy | None:
    """Why to stop after these batches: precision, time or batches; None to go on."""
    count = len(batches)
    if count < min(plan.looks[0], pace.most or plan.looks[0]):
        return None
    if count in plan.looks and is_precise(batches, half_width=pace.half_width):
        return "precision"
    if pace.most is not None and count >= pace.most:
        return "batches"
    if sum(batch.reading_ns - batch.empty_ns for batch in batches) >= plan.cap_ns:
        return "time"
    if pace.until_ns is not None and now_ns > pace.until_ns:
        return "time"
    return "batches" if count >= plan.looks[-1] else None
