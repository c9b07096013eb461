"""Which of several kernels is faster, and is that real? Pure functions over the samples of one comparison.

All kernels were timed in one run, in blocks: each block holds every kernel once, in random order, on identical
inputs. Blocks belong to heats; each heat gave every kernel a fresh process. What is compared is the logarithm of
two kernels' times in the same block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.record import Batch, Device, Outcome, ProblemVersion, Scalar, Software, TimingClass

PairVerdict = Literal["FASTER", "SLOWER", "TIE", "UNRESOLVED", "INVALID"]
"""Of the first kernel against the second."""


@dataclass(frozen=True)
class CaseSamples:
    """One kernel's samples on one case."""

    name: str
    """The case as `key=value` words."""
    spec: dict[str, Scalar]
    outcome: Outcome
    batches: tuple[Batch, ...] = ()
    """Each with its heat (`process`) and its `block` in it; empty where the case did not pass."""


@dataclass(frozen=True)
class Entry:
    """One kernel of a comparison."""

    label: str
    """What it is called in the tables: its file's name, with as much of its path as tells it from the others."""
    filename: str
    sha256: str
    record_id: str | None
    """The record it was taken from, None for a file."""
    outcome: Outcome
    timing_class: TimingClass
    cases: tuple[CaseSamples, ...]


@dataclass(frozen=True)
class Ratio:
    """How one kernel's time relates to another's: `time(first) / time(second)`, below 1 where the first is faster."""

    verdict: PairVerdict
    ratio: float | None
    """None where it could not be had (INVALID)."""
    low: float | None = None
    """Ends of the interval, at the confidence that is left to this pair among all pairs shown (Holm)."""
    high: float | None = None
    heats: int = 0
    blocks: int = 0
    more_blocks: int | None = None
    """About how many blocks it would take in addition; None unless UNRESOLVED."""
    reason: str = ""
    """Why it is INVALID."""


@dataclass(frozen=True)
class PairResult:
    """Two kernels: the verdict over the geometric mean of the cases, and case by case."""

    first: str
    second: str
    overall: Ratio
    cases: tuple[tuple[str, Ratio], ...]
    """Case name and its ratio."""


@dataclass(frozen=True)
class Standing:
    """One kernel's place: from `rank` to `rank_to`, equal where it is surely told from its neighbours."""

    label: str
    rank: int | None
    """None for a kernel that did not pass."""
    rank_to: int | None
    time_ns: float | None
    """Geometric mean over the cases."""
    low_ns: float | None
    high_ns: float | None


@dataclass(frozen=True)
class Comparison:
    """One run of `podium compare`: what was measured and what follows from it."""

    id: str
    created: str
    """UTC, ISO 8601."""
    problem: ProblemVersion
    device: Device
    software: Software
    entries: tuple[Entry, ...]
    """Kernels in the order asked for; raw samples inside."""
    control: Entry | None
    """The hidden duplicate of one of them."""
    control_of: str | None
    standings: tuple[Standing, ...]
    """Fastest first."""
    pairs: tuple[PairResult, ...]
    control_result: Ratio | None
    """The duplicate against its original: anything but a tie casts doubt on all the rest."""
    stages_ns: dict[str, int]
    complete: bool = True
    """False when it was stopped before the precision or the time asked for."""
    stopped_by: str = ""
    """precision, time, heats, or what interrupted it."""
    voided_share: float = 0.0
    """Share of the blocks that canaries or the device's state voided, alike for all kernels."""
    notes: tuple[str, ...] = ()
