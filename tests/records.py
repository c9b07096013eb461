"""Hand-written sample records for tests: builders whose defaults make a plain, passing entry."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.record import (
    Batch,
    CaseResult,
    Device,
    Doubt,
    Judgement,
    Layer,
    Mode,
    Outcome,
    ProblemVersion,
    Record,
    Scalar,
    Software,
    Submission,
    Timing,
    TimingClass,
    Verdict,
)

H200 = Device("cuda", "NVIDIA H200", 150_754_820_096, 62_914_560, 132, "sm_90", "570.124")
MI355X = Device("rocm", "AMD Instinct MI355X", 309_237_645_312, 268_435_456, 256, "gfx950", "6.14")
CPU = Device("cpu", "AMD EPYC 9654", 67_553_994_752, 402_653_184, 2, "x86_64")
SOFTWARE = Software("0.1.0", "3.12.3", "2.11.0", "3.6.0", "12.8", "Linux-6.8-x86_64")
EMPTY_NS = 710_000
EMPTY_CLAIM_NS = 1360.0


def batch(per_call_ns: float, calls: int = 24, claimed_ns: float | None = None) -> Batch:
    """A batch that reads `per_call_ns` from outside (to a whole ns per batch) and `claimed_ns` by its events."""
    claims = () if claimed_ns is None else (claimed_ns + EMPTY_CLAIM_NS,) * calls
    return Batch(calls, EMPTY_NS + round(per_call_ns * calls), EMPTY_NS, claims)


def timing(
    time_ns: float, spread: float = 0.0, batches: int = 8, *, roofline_ns: float | None = None, claimed: float = 0.97
) -> Timing:
    """Batches that alternate between `time_ns` times 1 - spread and 1 + spread; events read `claimed` of it."""
    readings = [time_ns * (1 + (spread if index % 2 else -spread)) for index in range(batches)]
    return Timing(
        tuple(batch(reading, claimed_ns=reading * claimed) for reading in readings),
        EMPTY_CLAIM_NS,
        roofline_ns,
        "memory" if roofline_ns else None,
        "precision",
    )


def spec(m: int = 16, *, seed: int = 1) -> dict[str, Scalar]:
    """A GEMM's case."""
    return {"m": m, "n": 2112, "k": 7168, "seed": seed}


def judgement(*, precision: str | None = None, row_error: float | None = 0.0031, calls: int = 2) -> Judgement:
    """A good one."""
    return Judgement(calls, precision, row_error, 0.01, 0.0, "pass")


def case(
    of: dict[str, Scalar] | None = None,
    timed: Timing | None = None,
    *,
    verdict: Verdict = "passed",
    message: str = "",
    judged: Judgement | None = None,
    doubts: Sequence[Doubt] = (),
    stage: str | None = None,
) -> CaseResult:
    """One case: a benchmark if it has a timing, else a test."""
    chosen = spec() if of is None else of
    return CaseResult(
        name=" ".join(f"{key}={value}" for key, value in chosen.items()),
        stage="benchmark" if timed is not None or stage == "benchmark" else "test",
        spec=chosen,
        outcome=Outcome(verdict, message, "" if verdict == "passed" else "call"),
        judgement=judgement() if judged is None and verdict == "passed" else judged,
        timing=timed,
        doubts=tuple(doubts),
    )


def cases(*times_ns: float, spread: float = 0.002, roofline_share: float | None = 0.5) -> tuple[CaseResult, ...]:
    """A passing test, and one benchmark per time, of m = 16, 32, 64 …"""
    benchmarks = (
        case(
            spec(16 << index, seed=900 + index),
            timing(each, spread, roofline_ns=None if roofline_share is None else each * roofline_share),
        )
        for index, each in enumerate(times_ns)
    )
    return (case(spec(8)), *benchmarks)


def submission(
    filename: str = "kernel.py", author: str = "ada", source: str | None = None, *, is_baseline: bool = False
) -> Submission:
    """A file whose hash is its source's."""
    text = f"# {filename} by {author}\n" if source is None else source
    return Submission(filename, author, hashlib.sha256(text.encode()).hexdigest(), text, is_baseline)


def record(
    id: str = "3f9a01bc",
    results: Sequence[CaseResult] | None = None,
    *,
    created: str = "2026-12-01T12:00:00+00:00",
    mode: Mode = "leaderboard",
    problem: str = "fp4_gemm",
    problem_hash: str = "9d1c0b7a55e2",
    by: Submission | None = None,
    device: Device = H200,
    timing_class: TimingClass = "gated",
    outcome: Outcome | None = None,
    notes: Sequence[str] = (),
    isolation: Sequence[Layer] = (Layer("session", True), Layer("clean environment", True)),
    output: str = "",
) -> Record:
    """A record; its outcome is the first case's that did not pass."""
    found = cases(8212.0, 28585.0, 177157.0) if results is None else tuple(results)
    failed = (each.outcome for each in found if each.outcome.verdict != "passed")
    return Record(
        id=id,
        created=created,
        mode=mode,
        problem=ProblemVersion(problem, problem_hash),
        submission=by or submission(),
        device=device,
        software=SOFTWARE,
        timing_class=timing_class,
        isolation=tuple(isolation),
        outcome=outcome or next(failed, Outcome("passed")),
        cases=found,
        stages_ns={"load": 2_100_000_000, "test": 1_400_000_000, "benchmark": 5_300_000_000},
        notes=tuple(notes),
        output=output,
    )
