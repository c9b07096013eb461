"""How many calls make a batch, and how many batches make a number: planned before, stopped by precision.

Stopping looks only at how wide the interval is, at a few fixed counts, and never at what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.record import Batch
from harness.statistics import is_precise

MAX_CALLS = 24
"""Calls behind one gate: with flush, events and seal each, well inside a launch queue of about 1000 commands."""
BATCH_NS = 20e6
"""Calls are taken together up to about this much kernel time per batch."""
WARM_UP = 2
"""Rounds whose readings are not kept: the device comes up to its clocks."""
LOOKS = (8, 12, 16, 24, 32, 48, 64)
"""Counts of batches at which the precision is looked at."""
SLOW_LOOKS = (3, 4, 6, 8)
"""The same where one call takes seconds (an interpreter)."""
SLOW_CALL_NS = 0.2e9


@dataclass(frozen=True)
class Plan:
    """One case's batches. Times in ns."""

    calls: int
    looks: tuple[int, ...]
    cap_ns: float
    """Kernel time after which no further batch is begun."""
    half_width: float
    """Half of the 99 % interval, as a share of the time, at which the number is good enough."""


def plan(estimate_ns: float, sets: int, *, on_cpu: bool, half_width: float = 0.0025) -> Plan:
    """Batches for a kernel that takes about `estimate_ns`, with `sets` input sets to deal."""
    fitting = int(BATCH_NS // max(estimate_ns, 1.0))
    calls = max(1 if on_cpu else 2, min(sets, MAX_CALLS, fitting))
    calls = min(calls, sets)
    if on_cpu and estimate_ns > SLOW_CALL_NS:
        return Plan(calls, SLOW_LOOKS, 1e9, half_width)
    return Plan(calls, LOOKS, 1e9 if estimate_ns > 5e6 else 0.5e9, half_width)


def stop(plan: Plan, batches: Sequence[Batch]) -> str | None:
    """Why to stop after these batches: precision, time or batches; None to go on."""
    count = len(batches)
    if count < plan.looks[0]:
        return None
    if count in plan.looks and is_precise(batches, half_width=plan.half_width):
        return "precision"
    if sum(batch.reading_ns - batch.empty_ns for batch in batches) >= plan.cap_ns:
        return "time"
    return "batches" if count >= plan.looks[-1] else None
