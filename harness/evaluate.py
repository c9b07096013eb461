"""The referee: one submission, from its file to its record."""

from __future__ import annotations

import contextlib
import fcntl
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

from harness import __version__, wire
from harness.baseline import Baselines
from harness.cases import Case, regime_cases, secret_seeds
from harness.devices.monitor import Missing, Monitor, open_monitor
from harness.errors import DeviceError
from harness.floors import beside_floors
from harness.gates import Round
from harness.heats import Budget, Heats
from harness.inventory import list_kernels
from harness.measure import Form, measure
from harness.problem import Problem
from harness.processes.court import Court, NoRoom
from harness.processes.isolation import Limits
from harness.processes.kernels import NAME
from harness.processes.pair import Setting
from harness.processes.peer import PeerEnded, printable
from harness.progress import Listener, Progress, Stages
from harness.record import (
    CaseResult,
    Device,
    Mode,
    Outcome,
    ProblemVersion,
    Record,
    Software,
    Submission,
    TimingClass,
)
from harness.replication import is_enough, lost, merge, void
from harness.secret import Source, own_source
from harness.timing.sampling import Pace, shared
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
    source: Source | None = None
    """What the hidden cases are made from; None for a secret of the run's own."""
    kernels: bool = False
    """Whether to list, when all is timed, what each benchmark launches."""

    @property
    def has_secret(self) -> bool:
        """Whether benchmarks get seeds that nobody knows: in all that may be ranked."""
        return self.mode == "leaderboard" and not self.cases

    @property
    def processes(self) -> tuple[int, int]:
        """Contestant processes that time it: at the least and at the most."""
        if self.mode != "leaderboard":
            return 1, 1
        if self.device == "cpu":
            return MIN_PROCESSES, MIN_PROCESSES  # times there are no GPU's: more of them are not worth the wait
        return MIN_PROCESSES, MAX_PROCESSES if self.precision >= PRECISION else 2 * MAX_PROCESSES


def evaluate(request: Request, listen: Listener = lambda progress: None) -> Record:
    """Load, verify, time. What the submission does is in the record; a PodiumError is the caller's or the machine's."""
    run, stages = _Run(request, listen), Stages(listen)
    stages.begin("wait for the device")
    with device_lock(request.device, listen):
        stages.begin("start")
        caches, kernels = request.limits.caches(request.caches), request.caches / NAME
        court = Court(request.problem, request.device, caches=caches, kernels=kernels)
        with court, Heats(court, [run.setting()], *request.processes) as heats, watching(request.device) as watch:
            stages.begin("empty gates")
            pair = heats.next()[0]
            run.read_baselines(heats)
            stages.begin("load")
            loaded = pair.load()
            broken = loaded if isinstance(loaded, Outcome) else None
            stages.begin("test")
            run.examine(court)
            run.each(run.tests, "test", broken, lambda case: verify(pair, case))
            stages.begin("benchmark")
            run.time(heats, watch, broken or run.worst())
            if request.kernels:
                stages.begin("kernels")
                run.list_kernels(heats)
            stages.begin("end")
            run.look_at(court, heats, watch)
    stages.end()
    return run.record(broken, stages.taken_ns)


class _Run:
    """What accumulates during one evaluation."""

    def __init__(self, request: Request, listen: Listener) -> None:
        self.request = request
        self.listen = listen
        self.source = request.source or own_source()
        self.seed = secrets.randbits(62)
        """Orders, and the contents of batches: another one in every run, also where the cases are the same."""
        self.tests, self.benchmarks = _cases(request, self.source)
        self.notes: tuple[str, ...] = ()
        self.results: list[CaseResult] = []
        self.baselines = Baselines()
        self.forms: dict[str, Form | None] = {}
        self.output_bytes: dict[str, int] = {}
        self.timing_class: TimingClass | None = None
        self.unsteady = ""
        self.facts: dict[str, Any] = {}

    def setting(self) -> Setting:
        """What its contestants are started with."""
        return setting_of(self.request.submission, self.request.limits, self.request.caches)

    # --- cases -----------------------------------------------------------------------------------------

    def each(
        self, cases: Sequence[Case], stage: str, broken: Outcome | None, step: Callable[[Case], CaseResult]
    ) -> None:
        """Run all cases, whatever one of them does; none when the submission cannot run at all."""
        if broken is not None:
            return self.not_run(cases, stage, broken)
        for done, case in enumerate(cases):
            self.listen(Progress(stage, case.name, done, len(cases)))
            self.results.append(outlived(case, stage, step))
        return None

    def not_run(self, cases: Sequence[Case], stage: str, broken: Outcome | None) -> None:
        """None of these cases, and why."""
        failed = broken is not None and broken.stage == "load"
        reason = "it could not be loaded" if failed else "it did not pass the tests"
        self.results += [result(case, stage, Outcome("not-run", reason)) for case in cases]

    def examine(self, court: Court) -> None:
        """Note what the check of a problem that brings its own lets pass."""
        if self.request.problem.is_foreign and self.tests:
            specs = tuple(dict(case.spec) for case in self.tests)
            self.notes += court.ask(wire.Examine(specs), wire.Examined).warnings

    def read_baselines(self, heats: Heats) -> None:
        """Read empty gates on all benchmarks in the current heat's process, before the submission is there."""
        self.baselines.read(heats.court, heats.current, self.benchmarks)

    def time(self, heats: Heats, watch: Monitor | Missing, broken: Outcome | None) -> None:
        """Time the benchmarks in one process after another, until the score is as exact as asked."""
        if broken is not None or not self.benchmarks:
            self.not_run(self.benchmarks, "benchmark", broken)
            return
        found: dict[str, list[CaseResult]] = {case.key: [] for case in self.benchmarks}
        budget = Budget(self.request.max_seconds)
        while True:
            loaded = heats.current[0].load() if heats.number else None
            latest = self._heat(heats, watch, loaded if isinstance(loaded, Outcome) else None, budget)
            incomplete = heats.number >= heats.least and self._lacks_room(heats, list(latest.values()))
            if not incomplete:
                for key, each in latest.items():
                    found[key].append(each)
            merged, self.unsteady = void([merge(found[case.key]) for case in self.benchmarks])
            failed = any(each.outcome.verdict != "passed" for each in merged)
            if incomplete or failed or self._is_over(heats, merged, budget):
                break
            self.listen(Progress("start another process"))
            count = heats.number + 1
            try:
                heats.next(budget.further(heats))
                self.read_baselines(heats)
            except DeviceError as error:
                if count < heats.least:
                    raise
                self.notes += (no_further("process", count, error),)
                break
        timed, notes = beside_floors(merged, self.request.problem.roofline, heats.court, self.output_bytes)
        self.results += timed
        self.notes += notes

    def _heat(
        self,
        heats: Heats,
        watch: Monitor | Missing,
        broken: Outcome | None,
        budget: Budget,
    ) -> dict[str, CaseResult]:
        """All cases in the current heat's process, in an order of its own, by their keys."""
        found = {}
        precision = self.request.precision
        batches = shared(len(self.benchmarks)) * (1 if precision >= PRECISION else 2)
        pace = Pace(precision / 2, batches if heats.least > 1 else None, budget.until_ns(heats))
        heat = heats.round(self.seed, pace, watch)
        stage = "benchmark" if heats.least == 1 else f"benchmark, process {heats.number + 1}"
        for done, case in enumerate(heats.shuffled(self.benchmarks, self.seed)):
            progress = Progress(stage, case.name, done, len(self.benchmarks))
            self.listen(progress)
            each = result(case, "benchmark", broken) if broken else self._timed(heats, case, heat, progress)
            found[case.key] = each
            if each.outcome.verdict == "not-run" and heats.number >= heats.least:
                break  # this process will not count
        return found

    def _lacks_room(self, heats: Heats, latest: Sequence[CaseResult]) -> bool:
        """Whether the device's memory, and nothing else, kept this process from having all cases; it is noted."""
        if {each.outcome.verdict for each in latest} - {"passed"} != {"not-run"}:
            return False
        lacking = next(each for each in latest if each.outcome.verdict == "not-run")
        self.notes += (left_out(f"process {heats.number + 1}", lacking.name, lacking.outcome.message),)
        return True

    def _timed(self, heats: Heats, case: Case, heat: Round, progress: Progress) -> CaseResult:
        def tick(batches: int) -> None:
            self.listen(replace(progress, batches=batches))

        try:
            baselines, forms = self.baselines.of(case, [0]), [self.forms.get(case.key)]
            (timed,) = measure(heats.court, [heats.current[0]], case, heat, baselines, forms, tick)
        except NoRoom as too_large:
            return result(case, "benchmark", Outcome("not-run", str(too_large)))
        self.forms[case.key] = timed.form
        self.output_bytes[case.name] = timed.output_bytes
        self.timing_class = joined_class(self.timing_class, timed.timing_class)
        return timed.result

    def _is_over(self, heats: Heats, merged: Sequence[CaseResult], budget: Budget) -> bool:
        count = heats.number + 1
        if count < heats.least:
            return False
        return count >= heats.most or budget.is_over or is_enough(merged, self.request.precision)

    def worst(self) -> Outcome | None:
        """The first case that did not pass."""
        return next((each.outcome for each in self.results if each.outcome.verdict != "passed"), None)

    def list_kernels(self, heats: Heats) -> None:
        """What each timed benchmark launches; where that cannot be told, a note says why."""
        pair = heats.current.get(0)
        if pair is None or not pair.is_loaded:
            self.notes += ("what it launches is not known: its last process is gone",)
            return
        timed = iter(self.benchmarks)
        for place, each in enumerate(self.results):
            if each.stage != "benchmark":
                continue
            case = next(timed)
            if each.timing is None:
                continue
            found = list_kernels(pair, case)
            if isinstance(found, str):
                self.notes += (f"what {each.name} launches is not known: {found}",)
                return
            self.results[place] = replace(each, kernels=found)

    # --- the end ---------------------------------------------------------------------------------------

    def look_at(self, court: Court, heats: Heats, watch: Monitor | Missing) -> None:
        """What the record says of the machine, while its processes are there."""
        notes = (*heats.notes, *self.notes)
        named = lost((each.name, each.timing.batches) for each in self.results if each.timing is not None)
        notes += tuple(each for each in named if each != self.unsteady)
        if isinstance(watch, Missing) and self.request.device != "cpu":
            notes += (f"clocks, power and other processes are not recorded: {watch.reason}",)
        notes += self.source.notes(heats.isolation)
        device, software = machine(court, watch)
        self.facts = {
            "device": device,
            "software": software,
            "isolation": heats.isolation,
            "output": heats.output,
            "refused": heats.refused(),
            "notes": notes,
        }

    def record(self, broken: Outcome | None, stages_ns: dict[str, int]) -> Record:
        """Everything, frozen."""
        request = self.request
        return Record(
            id=secrets.token_hex(4),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mode=request.mode,
            problem=ProblemVersion(request.problem.name, request.problem.content_hash),
            submission=request.submission,
            timing_class=self.timing_class or untimed_class(request.device),
            outcome=self._clean(broken or self.worst() or Outcome("passed")),
            cases=tuple(replace(each, outcome=self._clean(each.outcome)) for each in self.results),
            stages_ns=stages_ns,
            unsteady=self.unsteady,
            precision=request.precision if self.timing_class else None,
            secret=self.source.told if request.has_secret else None,
            replay_of=self.source.replay_of,
            **self.facts,
        )

    def _clean(self, outcome: Outcome) -> Outcome:
        """Safe to show, and with the file's own name for the one that it had in its scratch folder."""
        name = self.request.submission.filename
        return replace(
            outcome, message=re.sub(r"(?m)^  submission\.py:", lambda _: f"  {name}:", printable(outcome.message))
        )


def _cases(request: Request, source: Source) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Tests and benchmarks of a run; secret seeds where a time will be ranked."""
    where, secret = (request.problem, request.device, request.cases), request.has_secret
    tests, benchmarks = cases_of(*where, source.master, secret=secret, is_hidden=source.seed_file is not None)
    return tests, () if request.mode == "test" else benchmarks


def cases_of(
    problem: Problem,
    device: str,
    asked: tuple[Case, ...] | None,
    master: bytes,
    *,
    secret: bool,
    is_hidden: bool = False,
) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """(tests, benchmarks): the asked ones as they are, or the problem's on a device.

    The problem's tests are joined by one in each further regime, on contents nobody has seen; its benchmarks get
    `secret` seeds where asked for. Both kinds of seeds stay hidden where asked for.
    """
    if asked:
        return asked, asked
    tests, benchmarks = problem.cases_on(device)
    if secret:
        benchmarks = secret_seeds(master, benchmarks, is_hidden=is_hidden)
    return (*tests, *regime_cases(master, tests, problem.regimes, is_hidden=is_hidden)), benchmarks


def outlived(case: Case, stage: str, step: Callable[[Case], CaseResult]) -> CaseResult:
    """One case, whatever becomes of it."""
    try:
        return step(case)
    except PeerEnded as ended:
        return result(case, stage, Outcome(ended.verdict, ended.message, stage))
    except NoRoom as too_large:
        return result(case, stage, Outcome("not-run", str(too_large)))


def left_out(readings: str, case: str, reason: str) -> str:
    """A note on readings that count nowhere, since the device had no room for a case beside them."""
    return f"{readings} is left out and was the last: {case}: {reason}"


def no_further(what: str, count: int, error: DeviceError) -> str:
    """A note on processes that could not be started, where those before are enough."""
    return f"no further {what} after {count}: {error}"


def setting_of(submission: Submission, limits: Limits, caches: Path) -> Setting:
    """What a submission's contestants are started with; `caches` has a folder of compiled kernels for each of them."""
    return Setting(submission.source, limits, caches / submission.sha256[:16])


def machine(court: Court, watch: Monitor | Missing) -> tuple[Device, Software]:
    """The device with the power cap in force, and the versions of what runs on it."""
    device = replace(court.device, power_limit_mw=watch.power_limit_mw())
    return device, Software(podium=__version__, **court.software)


def joined_class(known: TimingClass | None, found: TimingClass) -> TimingClass:
    """The class of times together: one that waited for the GPU makes all of them such."""
    return known if known == "host-synchronising" else found


def untimed_class(device: str) -> TimingClass:
    """The timing class of what was not timed on a device (cpu, cuda, cuda:N)."""
    return "cpu" if device == "cpu" else "gated"


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
