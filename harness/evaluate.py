"""The referee: one submission, from its file to its record."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
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
from harness.devices.monitor import Missing, Monitor, open_monitor
from harness.errors import DeviceError
from harness.heats import Heats
from harness.measure import Form, Round, Timed, measure
from harness.problem import Problem
from harness.processes.court import Court, NoRoom
from harness.processes.isolation import Limits
from harness.processes.pair import Pair, Setting, wall_ns
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
from harness.replication import is_enough, merge, void
from harness.roofline import floor_for, rates_for
from harness.timing.sampling import SHARED, Pace
from harness.verify import result, verify

PRECISION = 0.005
"""Asked half-width of a score's 95 % interval, where nothing else is asked."""
MIN_PROCESSES, MAX_PROCESSES = 3, 12
"""Contestant processes that time a leaderboard run: their luck differs, and three at the least show by how much."""


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
    precision: float = PRECISION
    """Asked half-width of the score's 95 % interval, as a share of it."""
    max_seconds: float | None = None
    """About how long the timing may take at most; None for each case's own cap."""

    @property
    def processes(self) -> tuple[int, int]:
        """Contestant processes that time it: at the least and at the most."""
        if self.mode != "leaderboard":
            return 1, 1
        if self.device == "cpu":
            return MIN_PROCESSES, MIN_PROCESSES  # times there are no GPU's: more of them are not worth the wait
        return MIN_PROCESSES, MAX_PROCESSES if self.precision >= PRECISION else 2 * MAX_PROCESSES


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
        court = Court(request.problem, request.device)
        with court, Heats(court, [run.setting()], *request.processes) as heats, watching(request.device) as watch:
            run.begin_stage("load")
            (pair,) = heats.next()
            (loaded,) = heats.load()
            broken = loaded if isinstance(loaded, Outcome) else None
            run.begin_stage("test")
            run.each(run.tests, "test", broken, lambda case: verify(pair, case))
            run.begin_stage("benchmark")
            run.time(heats, watch, broken or run.worst())
            run.begin_stage("end")
            run.look_at(court, heats, watch)
    return run.record(broken)


class _Run:
    """What accumulates during one evaluation."""

    def __init__(self, request: Request, listen: Listener) -> None:
        self.request = request
        self.listen = listen
        self.master = secrets.token_bytes(32)
        self.seed = int.from_bytes(hashlib.sha256(b"order" + self.master).digest()[:8], "big")
        self.tests, self.benchmarks = _cases(request, self.master)
        self.results: list[CaseResult] = []
        self.forms: dict[str, Form | None] = {}
        self.timing_class: TimingClass | None = None
        self.unsteady = ""
        self.facts: dict[str, Any] = {}
        self.stages_ns: dict[str, int] = {}
        self._stage = ""
        self._since_ns = 0

    def setting(self) -> Setting:
        """What its contestants are started with."""
        request = self.request
        return Setting(request.submission.source, request.limits, request.caches / request.submission.sha256[:16])

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
        if broken is not None:
            return self.not_run(cases, stage, broken)
        for done, case in enumerate(cases):
            self.listen(Progress(stage, case.name, done, len(cases)))
            self.results.append(_one(case, stage, step))
        return None

    def not_run(self, cases: Sequence[Case], stage: str, broken: Outcome | None) -> None:
        """None of these cases, and why."""
        failed = broken is not None and broken.stage == "load"
        reason = "it could not be loaded" if failed else "it did not pass the tests"
        self.results += [result(case, stage, Outcome("not-run", reason)) for case in cases]

    def time(self, heats: Heats, watch: Monitor | Missing, broken: Outcome | None) -> None:
        """Time the benchmarks in one process after another, until the score is as exact as asked."""
        if broken is not None or not self.benchmarks:
            self.not_run(self.benchmarks, "benchmark", broken)
            return
        found: dict[str, list[CaseResult]] = {case.name: [] for case in self.benchmarks}
        begin_ns = wall_ns()
        while True:
            loaded = heats.load() if heats.number else []
            self._heat(heats, watch, found, [each for each in loaded if isinstance(each, Outcome)], begin_ns)
            merged = [merge(found[case.name]) for case in self.benchmarks]
            if any(each.outcome.verdict != "passed" for each in merged) or self._is_over(heats, merged, begin_ns):
                break
            self.listen(Progress("start another process"))
            heats.next()
        steady, self.unsteady = void(merged)
        self.results += [self._beside_roofline(case, heats.court) for case in steady]

    def _heat(
        self,
        heats: Heats,
        watch: Monitor | Missing,
        found: dict[str, list[CaseResult]],
        broken: Sequence[Outcome],
        begin_ns: int,
    ) -> None:
        """All cases in the current heat's process, in an order of its own."""
        pair = heats.current[0]
        most = self.request.max_seconds
        until_ns = None if most is None else begin_ns + int(most * 1e9 * (heats.number + 1) / heats.least)
        precision = self.request.precision
        shared = SHARED if precision >= PRECISION else 2 * SHARED
        pace = Pace(precision / 2, shared if heats.least > 1 else None, until_ns)
        heat = Round(heats.number, self.seed, pace, None if isinstance(watch, Missing) else watch, heats.pids)
        order = random.Random(f"{self.seed} {heats.number}").sample(self.benchmarks, len(self.benchmarks))
        stage = "benchmark" if heats.least == 1 else f"benchmark, process {heats.number + 1}"
        for done, case in enumerate(order):
            progress = Progress(stage, case.name, done, len(order))
            self.listen(progress)
            outcome = broken[0] if broken else None
            found[case.name].append(
                result(case, "benchmark", outcome) if outcome else self._timed(pair, case, heat, heats.court, progress)
            )

    def _timed(self, pair: Pair, case: Case, heat: Round, court: Court, progress: Progress) -> CaseResult:
        def tick(batches: int) -> None:
            self.listen(replace(progress, batches=batches))

        try:
            (timed,) = measure(court, [pair], case, heat, [self.forms.get(case.name)], tick)
        except NoRoom as too_large:
            return result(case, "benchmark", Outcome("not-run", str(too_large)))
        self.forms[case.name] = timed.form
        self._classify(timed)
        return timed.result

    def _is_over(self, heats: Heats, merged: Sequence[CaseResult], begin_ns: int) -> bool:
        count = heats.number + 1
        if count < heats.least:
            return False
        most = self.request.max_seconds
        late = most is not None and wall_ns() - begin_ns > most * 1e9
        return count >= heats.most or late or is_enough(merged, self.request.precision)

    def _beside_roofline(self, case: CaseResult, court: Court) -> CaseResult:
        """The least time that the device could need, beside the time."""
        floor = _floor(self.request.problem, case.spec, court.device.model)
        if case.timing is None or floor is None:
            return case
        return replace(case, timing=replace(case.timing, roofline_ns=floor.time_ns, roofline_bound=floor.bound))

    def _classify(self, timed: Timed) -> None:
        """One case that waits for the GPU makes the whole submission one that does."""
        if self.timing_class != "host-synchronising":
            self.timing_class = timed.timing_class

    def worst(self) -> Outcome | None:
        """The first case that did not pass."""
        return next((each.outcome for each in self.results if each.outcome.verdict != "passed"), None)

    # --- the end ---------------------------------------------------------------------------------------

    def look_at(self, court: Court, heats: Heats, watch: Monitor | Missing) -> None:
        """What the record says of the machine, while its processes are there."""
        notes = heats.notes
        if isinstance(watch, Missing) and self.request.device != "cpu":
            notes += (f"clocks, power and other processes are not recorded: {watch.reason}",)
        self.facts = {
            "device": replace(court.device, power_limit_mw=watch.power_limit_mw()),
            "software": Software(podium=__version__, **court.software),
            "isolation": heats.current[0].isolation,
            "output": heats.output,
            "notes": notes,
        }

    def record(self, broken: Outcome | None) -> Record:
        """Everything, frozen."""
        request = self.request
        default: TimingClass = "cpu" if request.device == "cpu" else "gated"
        return Record(
            id=secrets.token_hex(4),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mode=request.mode,
            problem=ProblemVersion(request.problem.name, request.problem.content_hash),
            submission=request.submission,
            timing_class=self.timing_class or default,
            outcome=self._clean(broken or self.worst() or Outcome("passed")),
            cases=tuple(replace(each, outcome=self._clean(each.outcome)) for each in self.results),
            stages_ns=self.stages_ns,
            unsteady=self.unsteady,
            precision=request.precision if self.timing_class else None,
            **self.facts,
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


def _floor(problem: Problem, spec: dict[str, Any], model: str) -> Any:
    rates = rates_for(model)
    return floor_for(problem.roofline, spec, rates) if problem.roofline and rates else None


@contextlib.contextmanager
def watching(device: str) -> Iterator[Monitor | Missing]:
    """The vendor's management library, or why it is missing."""
    monitor = open_monitor(device)
    try:
        yield monitor
    finally:
        monitor.close()


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
