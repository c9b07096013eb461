"""Times beside what a device could do at best: by its data sheet, for people; by its own measured rates, for doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness import wire
from harness.errors import PodiumError
from harness.processes.court import Court, NoRoom
from harness.record import CaseResult, Doubt
from harness.roofline import FALLBACKS, Floor, PeakRates, Roofline, floor_for, hard_floor_ns, rates_for
from harness.statistics import summarise

NEAR = 2.0
"""How fast the device is, is found out when a time is less than this many times what its data sheet allows, which is
more than any device does; or when there is no data sheet."""


def beside_floors(
    cases: Sequence[CaseResult], roofline: Roofline | None, court: Court, output_bytes: Mapping[str, int]
) -> tuple[list[CaseResult], tuple[str, ...]]:
    """The cases with both floors beside their times, a doubt on those below the second; and notes.

    `output_bytes` by the case's name: what may still lie in the cache when a call ends.
    """
    if roofline is None:
        return list(cases), ()
    rates = rates_for(court.device.model)
    listed = [floor_for(roofline, case.spec, rates) if rates else None for case in cases]
    seen, notes = None, tuple[str, ...]()
    if court.kind != "cpu" and any(map(_is_near, cases, listed)):
        try:
            seen = _seen(court.ask(wire.Roof(_units(roofline)), wire.RoofFound), roofline, rates)
        except (NoRoom, PodiumError) as reason:  # nothing of it may cost a run that is over
            notes = (f"how fast this device is was not found out: {reason}",)
    cache_bytes = court.device.cache_bytes or 0
    found = []
    for case, floor in zip(cases, listed, strict=True):
        hard_ns = None
        if seen is not None:
            resident_bytes = min(output_bytes.get(case.name, 0), cache_bytes)
            hard_ns = hard_floor_ns(*seen, case.spec, resident_bytes)
        found.append(_beside(case, floor, hard_ns))
    return found, notes


def _is_near(case: CaseResult, floor: Floor | None) -> bool:
    if case.timing is None:
        return False
    return floor is None or summarise(case.timing.batches).time_ns < NEAR * floor.time_ns


def _units(roofline: Roofline) -> tuple[str, ...]:
    """Kinds of units that could do its operations."""
    return tuple(dict.fromkeys(unit for kind in roofline.operations for unit in FALLBACKS.get(kind, (kind,))))


def _seen(found: wire.RoofFound, roofline: Roofline, rates: PeakRates | None) -> tuple[Roofline, PeakRates] | None:
    """As measured; by the data sheet for units that cannot be tried.

    Without a data sheet nobody knows of units that could not be tried: only operations of kinds that could count.
    """
    if found.bytes_per_s is None:
        return None
    if rates is not None:
        return roofline, PeakRates(found.bytes_per_s, {**rates.operations_per_s, **found.operations_per_s})
    known = {kind: text for kind, text in roofline.operations.items() if kind in found.operations_per_s}
    return Roofline(roofline.bytes, known), PeakRates(found.bytes_per_s, found.operations_per_s)


def _beside(case: CaseResult, floor: Floor | None, hard_ns: float | None) -> CaseResult:
    timing = case.timing
    if timing is None:
        return case
    if floor is not None:
        timing = replace(timing, roofline_ns=floor.time_ns, roofline_bound=floor.bound)
    is_below = hard_ns is not None and summarise(timing.batches).time_ns < hard_ns
    doubts: tuple[Doubt, ...] = (*case.doubts, "below-roofline") if is_below else case.doubts
    return replace(case, timing=replace(timing, floor_ns=hard_ns), doubts=doubts)
