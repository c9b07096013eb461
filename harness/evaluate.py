"""The referee: one submission, from its file to its record."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import __version__
from harness.cases import Case, regime_cases, secret_seeds
from harness.errors import DeviceError
from harness.measure import Timed, measure
from harness.problem import Problem
from harness.processes.isolation import Limits
from harness.processes.pair import NoRoom, Pair, Setting, wall_ns
from harness.processes.peer import PeerEnded, printable
from harness.record import (
    CaseResult,
    Mode,
    Outcome,
    ProblemVersion,
    Record,
    Software,
    Submission,
    TimingClass,
)
from harness.roofline import floor_for, rates_for
from harness.verify import result, verify


@dataclass(frozen=True)
class Request:
    """What is to be evaluated, and how."""

    problem: Problem
    submission: Submission
    mode: Mode
    device: str
    """cpu, cuda or cuda:N."""
    caches: Path
    """Folder of compile caches; each submission has one of its own in it."""
    cases: tuple[Case, ...] | None = None
    """Run these instead of the problem's own."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Progress:
    """Where a run is: shown, never stored."""

    stage: str
    case: str = ""
    done: int = 0
    total: int = 0
    batches: int = 0


Listener = Callable[[Progress], None]


def evaluate(request: Request, listen: Listener = lambda progress: None) -> Record:
    """Load, verify, time. What the submission does is in the record; a PodiumError is the caller's or the machine's."""
    run = _Run(request, listen)
    with run.stage("wait for the device"), device_lock(request.device, listen):
        run.begin_stage("start")
        with Pair(run.setting()) as pair:
            pair.prepare()
            run.begin_stage("load")
            loaded = pair.load()
            broken = loaded if isinstance(loaded, Outcome) else None
            run.begin_stage("test")
            run.each(run.tests, "test", broken, lambda case: verify(pair, case))
            run.begin_stage("benchmark")
            run.each(run.benchmarks, "benchmark", broken or run.worst(), lambda case: run.timed(pair, case))
            run.begin_stage("end")
            facts = (pair.device, pair.software, pair.isolation, pair.output, pair.notes)
    return run.record(broken, *facts)


class _Run:
    """What accumulates during one evaluation."""

    def __init__(self, request: Request, listen: Listener) -> None:
        self.request = request
        self.listen = listen
        self.master = secrets.token_bytes(32)
        self.tests, self.benchmarks = _cases(request, self.master)
        self.results: list[CaseResult] = []
        self.timing_class: TimingClass | None = None
        self.stages_ns: dict[str, int] = {}
        self._stage = ""
        self._since_ns = 0

    def setting(self) -> Setting:
        """What the two processes are started with."""
        request = self.request
        caches = request.caches / request.submission.sha256[:16]
        return Setting(request.problem, request.submission.source, request.device, request.limits, caches)

    # --- stages ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Account the wall time inside, from `name` on through every `begin_stage`."""
        self.begin_stage(name)
        try:
            yield
        finally:
            self._account()

    def begin_stage(self, name: str) -> None:
        """The stage before ends here, and this one begins."""
        self._account()
        self._stage = name
        self.listen(Progress(name))

    def _account(self) -> None:
        now = wall_ns()
        if self._stage:
            self.stages_ns[self._stage] = self.stages_ns.get(self._stage, 0) + now - self._since_ns
        self._since_ns = now

    # --- cases -----------------------------------------------------------------------------------------

    def each(
        self, cases: Sequence[Case], stage: str, broken: Outcome | None, step: Callable[[Case], CaseResult]
    ) -> None:
        """Run all cases, whatever one of them does; none when the submission cannot run at all."""
        for done, case in enumerate(cases):
            self.listen(Progress(stage, case.name, done, len(cases)))
            if broken is None:
                self.results.append(_one(case, stage, step))
            else:
                reason = "it could not be loaded" if broken.stage == "load" else "it did not pass the tests"
                self.results.append(result(case, stage, Outcome("not-run", reason)))

    def timed(self, pair: Pair, case: Case) -> CaseResult:
        """Time one case, beside the least time that the device could need for it."""
        index = self.benchmarks.index(case)
        seed = int.from_bytes(hashlib.sha256(self.master + case.name.encode()).digest()[:8], "big")
        progress = Progress("benchmark", case.name, index, len(self.benchmarks))
        timed = measure(pair, case, seed=seed, tick=lambda count: self.listen(replace(progress, batches=count)))
        self._classify(timed)
        timing, floor = timed.result.timing, _floor(self.request.problem, case, pair.device.model)
        if timing is None or floor is None:
            return timed.result
        return replace(timed.result, timing=replace(timing, roofline_ns=floor.time_ns, roofline_bound=floor.bound))

    def _classify(self, timed: Timed) -> None:
        """One case that waits for the GPU makes the whole submission one that does."""
        if self.timing_class != "host-synchronising":
            self.timing_class = timed.timing_class

    def worst(self) -> Outcome | None:
        """The first case that did not pass."""
        return next((each.outcome for each in self.results if each.outcome.verdict != "passed"), None)

    # --- the end ---------------------------------------------------------------------------------------

    def record(
        self, broken: Outcome | None, device: Any, software: Any, isolation: Any, output: str, notes: Any
    ) -> Record:
        """Everything, frozen."""
        request = self.request
        default: TimingClass = "cpu" if request.device == "cpu" else "gated"
        return Record(
            id=secrets.token_hex(4),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mode=request.mode,
            problem=ProblemVersion(request.problem.name, request.problem.content_hash),
            submission=request.submission,
            device=device,
            software=Software(podium=__version__, **software),
            timing_class=self.timing_class or default,
            isolation=isolation,
            outcome=self._clean(broken or self.worst() or Outcome("passed")),
            cases=tuple(replace(each, outcome=self._clean(each.outcome)) for each in self.results),
            stages_ns=self.stages_ns,
            notes=notes,
            output=output,
        )

    def _clean(self, outcome: Outcome) -> Outcome:
        """Safe to show, and with the file's own name for the one that it had in its scratch folder."""
        name = self.request.submission.filename
        return replace(
            outcome, message=re.sub(r"(?m)^  submission\.py:", lambda _: f"  {name}:", printable(outcome.message))
        )


def _cases(request: Request, master: bytes) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Tests and benchmarks of a run: the asked ones, or the problem's.

    The problem's tests are joined by one in each further regime, on contents nobody has seen; benchmarks get secret
    seeds where a time will be ranked.
    """
    problem, asked = request.problem, request.cases
    tests, benchmarks = (asked, asked) if asked else problem.cases_on(request.device)
    if asked is None:
        tests = (*tests, *regime_cases(master, tests, problem.regimes))
    if request.mode == "test":
        return tests, ()
    if request.mode == "leaderboard" and asked is None:
        benchmarks = secret_seeds(master, benchmarks)
    return tests, benchmarks


def _one(case: Case, stage: str, step: Callable[[Case], CaseResult]) -> CaseResult:
    """One case, whatever becomes of it."""
    try:
        return step(case)
    except PeerEnded as ended:
        return result(case, stage, Outcome(ended.verdict, ended.message, stage))
    except NoRoom as too_large:
        return result(case, stage, Outcome("not-run", str(too_large)))


def _floor(problem: Problem, case: Case, model: str) -> Any:
    rates = rates_for(model)
    return floor_for(problem.roofline, case.spec, rates) if problem.roofline and rates else None


def _lock_file(path: Path) -> int:
    """Open the lock's file, made if need be: readable is enough for a lock, whoever made it."""
    with contextlib.suppress(FileExistsError):
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def device_lock(device: str, listen: Listener) -> Iterator[None]:
    """One run at a time on a device: two at once would time each other. Freed by the system if this process dies."""
    path = Path(tempfile.gettempdir()) / f"podium-lock-{device.replace(':', '-')}"
    try:
        descriptor = _lock_file(path)
    except OSError as error:
        raise DeviceError(f"cannot lock {device}: {error.strerror} ({path}); remove that file or set TMPDIR") from error
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                listen(Progress("wait for another run on this device"))
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)
