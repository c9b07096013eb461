"""What one evaluation left behind: frozen, plain data that goes to JSON and comes back the same.

Raw readings are kept and nothing is derived here: summaries, ranks and opinions are computed from a
record (harness.statistics, leaderboard.ranking), so that they can change without measuring again.
Durations are nanoseconds, sizes are bytes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from harness.wire import read_dataclass

FORMAT = 1
"""Version of this layout, raised when a field changes its meaning."""

Mode = Literal["test", "benchmark", "leaderboard"]
Verdict = Literal[
    "passed",
    "wrong",
    "bad-output",
    "load-failed",
    "compile-failed",
    "crashed",
    "out-of-memory",
    "timed-out",
    "protocol-violation",
    "not-run",
]
Doubt = Literal[
    "clocks-disagree",
    "below-roofline",
    "async-work",
    "input-modified",
    "state-carried",
    "sandbox-denied",
    "unsteady-device",
]
StoppedBy = Literal["precision", "time", "batches"]
TimingClass = Literal["gated", "host-synchronising", "cpu", "interpreter"]
"""gated: GPU time between the gate's release and the GPU's done-word. host-synchronising: wall time of single
calls of a kernel that waits for the GPU itself. cpu: wall time on the CPU. interpreter: wall time of Triton's
interpreter. Numbers of different classes are never ranked beside each other."""

Scalar = int | bool | str | float
R = TypeVar("R")


@dataclass(frozen=True)
class Submission:
    """The file that was judged."""

    filename: str
    author: str
    sha256: str
    """Of the file's bytes."""
    source: str
    is_baseline: bool = False
    """True for the problem's shipped torch baseline, unchanged."""


@dataclass(frozen=True)
class ProblemVersion:
    """Which problem, and exactly which version of it: boards are per content hash."""

    name: str
    content_hash: str


@dataclass(frozen=True)
class Device:
    """The machine's device as the oracle saw it."""

    kind: Literal["cuda", "rocm", "cpu"]
    model: str
    memory_bytes: int | None = None
    cache_bytes: int | None = None
    """Size of the last-level cache that a flush has to replace."""
    units: int | None = None
    """Multiprocessors, compute units or cores."""
    architecture: str | None = None
    """sm_90, gfx950, x86_64."""
    driver: str | None = None
    power_limit_mw: int | None = None
    """The power cap in force, where the vendor's library tells."""


@dataclass(frozen=True)
class Software:
    """Versions that can move a number."""

    podium: str
    python: str
    torch: str
    triton: str | None
    runtime: str | None
    """CUDA or HIP runtime of torch."""
    system: str


@dataclass(frozen=True)
class Layer:
    """One protection around the contestant, and whether this machine could give it."""

    name: str
    applied: bool
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a submission's run, or one case of it, ended."""

    verdict: Verdict
    message: str = ""
    """For a person: what happened, in a line or a short paragraph."""
    stage: str = ""
    """load, compile, call, rehearse, batch: where it ended."""

    def __post_init__(self) -> None:
        if self.verdict != "passed" and not self.message:
            raise ValueError(f"an outcome {self.verdict!r} needs a message that says why")


@dataclass(frozen=True)
class Judgement:
    """What the oracle found in one case's outputs."""

    calls: int
    """Outputs judged."""
    precision: str | None
    """The declared precision whose reference was nearest, None when the problem declares none."""
    row_error: float | None
    """Worst row's ||out - ref|| / ||ref||, None when there was nothing finite to compare."""
    row_limit: float | None
    mismatched: float | None
    """Share of elements outside atol + rtol * |ref|."""
    gpumode: Literal["pass", "fail"] | None = None
    """Whether the tolerance published for the competition would accept these outputs."""
    gpumode_message: str = ""


@dataclass(frozen=True)
class DeviceState:
    """What the vendor's management library said of the GPU at one moment; None where the driver does not say."""

    clock_mhz: int | None
    memory_clock_mhz: int | None
    power_mw: int | None
    temperature_c: int | None
    throttle: tuple[str, ...] = ()
    """Reasons that slow the GPU down, in words: power cap, thermal, hardware slowdown, power brake, other GPU in
    sync group, clocks set by user."""
    others: int = 0
    """Other processes seen on the GPU, beyond our own."""


@dataclass(frozen=True)
class Batch:
    """One sample of a time: gates opened next to each other, with calls behind them and without, in balanced order."""

    calls: int
    """Calls behind all gates together."""
    reading_ns: int
    """External reading, from release to done on the referee's clock: the sum over the gates with calls."""
    empty_ns: int
    """The same for as many empty gates: same flushes, events and seals, an empty kernel in each call's place. Where
    there is no gate, what empty batches took before the submission was loaded."""
    claims_ns: tuple[float, ...] = ()
    """The contestant's own event readings per call, empty event pair not subtracted; none in most gated batches."""
    order: str = ""
    """In which order the gates were opened: R with calls, E empty."""
    gates_ns: tuple[int, ...] = ()
    """Each gate's reading, in that order."""
    process: int = 0
    """Which of the run's contestant processes it was, from 0."""
    block: int = 0
    """Which block of that process and case, from 0; kernels that are compared share their blocks."""
    canaries_ns: tuple[float, ...] = ()
    """The referee's own kernels beside it: a memory-bound one, a compute-bound one. Empty where there are none."""
    state: DeviceState | None = None
    """What the device said of itself."""
    flush_ns: float = 0.0
    """What the flush before each call was given, whatever it took: its own time is in no reading. 0 where there is no
    such wait."""
    start_ns: float = 0.0
    """Added for a kernel's start (nominal) where the empty gates had one in each call's place; otherwise 0."""
    is_voided: bool = False
    """Kept, and left out of every number: the canaries moved."""

    def __post_init__(self) -> None:
        if self.calls < 1 or self.reading_ns <= 0 or self.empty_ns < 0 or len(self.order) != len(self.gates_ns):
            raise ValueError(f"impossible batch {self}")

    @property
    def per_call_ns(self) -> float:
        """Time of one call, external clock."""
        return (self.reading_ns - self.empty_ns) / self.calls + self.start_ns


@dataclass(frozen=True)
class Timing:
    """All readings of one benchmark case."""

    batches: tuple[Batch, ...]
    empty_claim_ns: float | None = None
    """What the contestant's events read in empty gates, mean of their calls; subtract it from a claim, and add the
    batch's `start_ns`."""
    roofline_ns: float | None = None
    """The least time that the device's peak rates allow for this case; None where they are not known."""
    roofline_bound: Literal["memory", "compute"] | None = None
    stopped_by: StoppedBy = "batches"
    """What ended the sampling in the process that needed the most."""
    claimed: tuple[Batch, ...] = ()
    """Batches with the contestant's own events around each call, which cost time themselves: they check one clock
    against the other, and count nowhere else. Empty where every batch has claims."""
    empty_excess_ns: float | None = None
    """How much longer an empty call took beside the submission's calls than before the submission was loaded, median of
    a process's batches; of several processes the trimmed mean. None where that says nothing."""
    idle_ns: float | None = None
    """The least time of a process's batches from the GPU's done to the contestant's word that its device is at rest;
    of several processes the trimmed mean. None where there is no gate."""
    floor_ns: float | None = None
    """A time that this very device cannot go below on this case, by rates measured after the run; None where it was not
    near enough to ask, or they are not known."""

    @property
    def processes(self) -> int:
        """Contestant processes that it was timed in."""
        return len({batch.process for batch in self.batches})


@dataclass(frozen=True)
class Kernel:
    """What a call launched, by the profiler in the contestant's own process: a remark, which decides nothing."""

    name: str
    launches: int


@dataclass(frozen=True)
class CaseResult:
    """One case: what was asked, how it ended, and its readings if it was timed."""

    name: str
    """The case as `key=value` words."""
    stage: Literal["test", "benchmark"]
    spec: dict[str, Scalar]
    outcome: Outcome
    judgement: Judgement | None = None
    timing: Timing | None = None
    doubts: tuple[Doubt, ...] = ()
    is_hidden: bool = False
    """Name and spec are without the seed, which is an organiser's secret."""
    kernels: tuple[Kernel, ...] = ()
    """What one call launched (on a CPU, operators), where that was asked for."""

    def __post_init__(self) -> None:
        if self.timing is not None and self.outcome.verdict != "passed":
            raise ValueError(f"{self.name}: a time is only shown for a case that passed")


@dataclass(frozen=True)
class Secret:
    """What the hidden cases of a leaderboard run were made from: a secret of its own, or an organiser's seed file."""

    master: str | None = None
    """The run's own, in hex, written down when the run was over; None where it comes from a file."""
    commitment: str | None = None
    """SHA-256 of the seed file, all that is kept of it; None for a secret of the run's own."""

    def __post_init__(self) -> None:
        if (self.master is None) == (self.commitment is None):
            raise ValueError("a secret is either a run's own or a seed file's")


@dataclass(frozen=True)
class Record:
    """One submission, evaluated once."""

    id: str
    created: str
    """UTC, ISO 8601."""
    mode: Mode
    problem: ProblemVersion
    submission: Submission
    device: Device
    software: Software
    timing_class: TimingClass
    isolation: tuple[Layer, ...]
    outcome: Outcome
    """The first thing that went wrong, or passed."""
    cases: tuple[CaseResult, ...]
    stages_ns: dict[str, int]
    """Wall time by stage."""
    notes: tuple[str, ...] = ()
    """What this machine could not give, and other remarks that decide nothing."""
    output: str = ""
    """The end of what the submission printed."""
    unsteady: str = ""
    """Why the times of the whole run cannot be trusted, in a sentence; empty when they can."""
    refused: tuple[str, ...] = ()
    """System calls that it asked for and that its sandbox refused, each once, where the sandbox could tell."""
    precision: float | None = None
    """Asked half-width of the score's 95 % interval, as a share of it; None where nothing was timed."""
    secret: Secret | None = None
    """None where no case was hidden, and in records from before it was kept."""
    replay_of: str | None = None
    """The record whose hidden cases were run once more: they were known before, and this is never ranked."""
    format: int = FORMAT

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Every doubt of the run or any case, once, in order of appearance."""
        own: tuple[Doubt, ...] = ("unsteady-device",) if self.unsteady else ()
        own += ("sandbox-denied",) if self.refused else ()
        return tuple(dict.fromkeys((*own, *(doubt for case in self.cases for doubt in case.doubts))))

    @property
    def timed(self) -> tuple[CaseResult, ...]:
        """The cases that have readings."""
        return tuple(case for case in self.cases if case.timing is not None)

    @property
    def is_rankable(self) -> bool:
        """Whether nothing but its doubts can keep this record off a board: a whole leaderboard run that passed."""
        is_whole = self.mode == "leaderboard" and self.replay_of is None
        return is_whole and self.outcome.verdict == "passed" and bool(self.timed)

    @property
    def is_ranked(self) -> bool:
        """Whether this record stands on a board by itself, with no doubt that its owner would have to clear."""
        return self.is_rankable and not self.doubts


def to_dict(record: Any) -> dict[str, Any]:
    """A record (or any dataclass of this module) as JSON-ready data."""
    return dataclasses.asdict(record)


def from_dict(kind: type[R], data: Any, where: str = "record") -> R:
    """The dataclass `kind` from what `to_dict` gave; ValueError names the field that does not fit."""
    return read_dataclass(kind, data, where)
