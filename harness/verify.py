"""Is a submission right on one case? Every output of a few calls is judged whole, before anything is timed."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Literal

from harness import wire
from harness.cases import Case
from harness.processes.pair import Pair
from harness.record import CaseResult, Judgement, Outcome, Verdict

CALLS = 2
"""Calls per case, on different contents at different addresses: one answer could be a memory of the other."""


def verify(pair: Pair, case: Case) -> CaseResult:
    """Run a test case: its own seed first, then fresh contents. PeerEnded when the contestant is gone."""
    with pair.staged(case, CALLS) as sets:
        pair.court.ask(wire.Renew(tuple(range(sets)), secrets.randbits(62), keep_first=True), wire.Renewed)
        pair.court.ask(wire.Deal(pair.seat), wire.Dealt)
        for index in range(sets):
            limit = pair.setting.limits.compile_s if index == 0 else pair.setting.limits.call_s
            report = pair.contestant(wire.Call(index), wire.Called, timeout_s=limit)
            if isinstance(report, wire.Failed):
                return result(case, "test", failure(report))
        judged = pair.court.ask(wire.Judge(pair.seat, budget_ns=0, published=True), wire.Judged)
        found = result(case, "test", verdict(judged), judgement(judged))
        return replace(found, doubts=("input-modified",) if judged.ok and judged.modified else ())


def result(case: Case, stage: str, outcome: Outcome, judgement: Judgement | None = None) -> CaseResult:
    """A case's result without a time."""
    kind: Literal["test", "benchmark"] = "test" if stage == "test" else "benchmark"
    return CaseResult(case.name, kind, dict(case.shown), outcome, judgement, is_hidden=case.is_hidden)


def failure(report: wire.Failed) -> Outcome:
    """What the contestant said of itself, as an outcome."""
    return Outcome(report.verdict, report.message or report.verdict, report.stage)


def verdict(judged: wire.Judged) -> Outcome:
    """The oracle's finding as an outcome."""
    if judged.ok:
        return Outcome("passed")
    wrong: Verdict = "wrong"
    return Outcome(wrong, judged.message or "the output is not within the problem's tolerance", "call")


def judgement(judged: wire.Judged) -> Judgement:
    """The oracle's numbers for the record."""
    return Judgement(
        judged.calls,
        judged.precision,
        judged.row_error,
        judged.row_limit,
        judged.mismatched,
        judged.gpumode,
        judged.gpumode_message,
    )
