"""Doubts that a time's own evidence raises, over all processes that it was read in: one late gate is nobody's fault."""

from __future__ import annotations

from harness.record import Doubt, Timing
from harness.statistics import summarise

EMPTY_SHARE, EMPTY_NS = 0.03, 500.0
"""Empty calls beside the submission's are longer than before it was there by no more than the larger of these, as a
share of the kernel's own time and in ns."""
IDLE_NS, IDLE_SHARE = 0.5e6, 0.02
"""A contestant's device is at rest so long after a batch at the latest (the second: of the batch's reading), or
something of it is still at work."""


def late_doubts(timing: Timing) -> tuple[Doubt, ...]:
    """Were empty gates made longer, and is the device still at work when a batch has ended?"""
    doubts: list[Doubt] = []
    excess_ns = timing.empty_excess_ns or 0.0
    if excess_ns > EMPTY_NS and excess_ns > EMPTY_SHARE * summarise(timing.batches).time_ns:
        doubts.append("clocks-disagree")
    longest_ns = max(batch.reading_ns for batch in timing.batches)
    if timing.idle_ns is not None and timing.idle_ns > IDLE_NS + IDLE_SHARE * longest_ns:
        doubts.append("async-work")
    return tuple(doubts)
