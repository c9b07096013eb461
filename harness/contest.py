"""The referee of several kernels: all verified, then timed in turns behind the same gate, until they are told apart."""

from __future__ import annotations

import functools
import itertools
import os
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.baseline import Baselines
from harness.cases import Case
from harness.compare import (
    CaseSamples,
    Comparison,
    Entry,
    is_settled,
    judge_control,
    judge_pairs,
    standings,
)
from harness.devices.monitor import Missing, Monitor
from harness.errors import DeviceError, SubmissionError
from harness.evaluate import (
    cases_of,
    device_lock,
    joined_class,
    left_out,
    machine,
    no_further,
    outlived,
    setting_of,
    untimed_class,
    watching,
)
from harness.floors import beside_floors
from harness.gates import Round
from harness.heats import Budget, Heats
from harness.measure import Form, measure
from harness.problem import Problem
from harness.processes.court import Court, NoRoom
from harness.processes.isolation import Limits
from harness.processes.kernels import NAME
from harness.processes.pair import Setting
from harness.processes.peer import printable
from harness.progress import Listener, Progress, Stages
from harness.record import Batch, CaseResult, Device, Outcome, ProblemVersion, Record, Software, Submission, TimingClass
from harness.replication import lost, mark, merge
from harness.timing.sampling import Pace, shared
from harness.verify import verify

PRECISION = 0.0025
"""Half-width of every pair's 95 % interval, as a share, where nothing else is asked: half of the tie band."""
MIN_HEATS, MAX_HEATS = 4, 12
"""Fresh processes of every kernel: at the least, and at the most."""


@dataclass(frozen=True)
class Contender:
    """One kernel that is to be compared."""

    label: str
    submission: Submission
    record: Record | None = None
    """Where it was taken from, None for a file."""


@dataclass(frozen=True)
class Contest:
    """What is to be compared, and how."""

    problem: Problem
    contenders: tuple[Contender, ...]
    device: str
    caches: Path
    cases: tuple[Case, ...] | None = None
    """Compare on these instead of the problem's own."""
    limits: Limits = field(default_factory=Limits)
    precision: float = PRECISION
    max_seconds: float | None = None
    """About how long the timing may take at most."""


def labels(paths: Sequence[str]) -> list[str]:
    """Short names that differ: the last part of each path, with as many before it as are needed to tell them apart."""
    parts = [path.split(os.sep) for path in paths]
    found = []
    for index, own in enumerate(parts):
        others = [each for place, each in enumerate(parts) if place != index and each != own]
        depth = next((n for n in range(1, len(own) + 1) if all(each[-n:] != own[-n:] for each in others)), len(own))
        found.append(os.sep.join(own[-depth:]))
    return [
        label if found[:index].count(label) == 0 else f"{label} ({found[:index].count(label) + 1})"
        for index, label in enumerate(found)
    ]


def compare_kernels(contest: Contest, listen: Listener = lambda progress: None) -> Comparison:
    """Verify all, time them in turns, judge every pair. Ctrl-C ends it early: the comparison says so."""
    _check_records(contest)
    run, stages = _Contest(contest, listen), Stages(listen)
    stages.begin("wait for the device")
    with device_lock(contest.device, listen):
        stages.begin("start")
        caches, kernels = contest.limits.caches(contest.caches), contest.caches / NAME
        court = Court(contest.problem, contest.device, len(run.all), caches, kernels)
        with court, Heats(court, run.settings(), MIN_HEATS, MAX_HEATS) as heats, watching(contest.device) as watch:
            run.look_at(court, watch)
            try:
                run.load(heats)
                stages.begin("test")
                run.verify(heats)
                stages.begin("benchmark")
                run.time(heats, watch)
            except KeyboardInterrupt:
                run.stopped_by = "Ctrl-C"
            stages.begin("end")
            run.notes += heats.notes
            run.note_refusals(heats)
            run.note_doubts(court)
    stages.end()
    return run.comparison(stages.taken_ns)


class _Contest:
    """What accumulates during one comparison."""

    def __init__(self, contest: Contest, listen: Listener) -> None:
        self.contest = contest
        self.listen = listen
        self.seed = secrets.randbits(62)
        self.copied = random.Random(self.seed).randrange(len(contest.contenders))
        """Which kernel has the hidden copy; the copy is the last one everywhere."""
        master = secrets.token_bytes(32)
        self.tests, self.cases = cases_of(contest.problem, contest.device, contest.cases, master, secret=True)
        contenders = contest.contenders
        self.all = (*contenders, replace(contenders[self.copied], label=f"{contenders[self.copied].label} (copy)"))
        self.outcomes: list[Outcome] = [Outcome("passed") for _ in self.all]
        self.classes: list[dict[str, TimingClass]] = [{} for _ in self.all]
        """By case: a kernel may wait for the GPU on some only."""
        self.baselines = Baselines()
        self.forms: list[dict[str, Form | None]] = [{} for _ in self.all]
        self.samples: list[dict[str, list[Batch]]] = [{case.name: [] for case in self.cases} for _ in self.all]
        self.evidence: list[dict[str, list[CaseResult]]] = [{case.name: [] for case in self.cases} for _ in self.all]
        """What each heat says of a kernel on a case: doubts are judged over all of them."""
        self.output_bytes: dict[str, int] = {}
        self.notes: tuple[str, ...] = ()
        self.stopped_by = ""
        self.device: Device
        self.software: Software

    def settings(self) -> list[Setting]:
        """What each kernel's contestants are started with, in the order of their seats."""
        return [setting_of(each.submission, self.contest.limits, self.contest.caches) for each in self.all]

    def look_at(self, court: Court, watch: Monitor | Missing) -> None:
        """The machine; a record from another device is refused here."""
        self.device, self.software = machine(court, watch)
        for each in self.contest.contenders:
            if each.record is not None and each.record.device.model != self.device.model:
                raise SubmissionError(
                    f"record {each.record.id} was measured on {each.record.device.model}, this is {self.device.model}; "
                    f"to compare the file here: podium show {each.record.id} --code > FILE"
                )

    # --- the steps -------------------------------------------------------------------------------------------

    def load(self, heats: Heats, further: int | None = None) -> None:
        """The next heat's processes, each with its submission imported; about so many `further` heats are needed."""
        heats.next(further)
        self.baselines.read(heats.court, heats.current, self.cases)
        for index, report in heats.load():
            if isinstance(report, Outcome):
                self._fail(heats, index, report)

    def verify(self, heats: Heats) -> None:
        """Every test case on every kernel: a time is only shown for one that passed."""
        contenders = self._contenders()
        for place, index in enumerate(contenders):
            for case in self.tests:
                self.listen(Progress("test", f"{self.all[index].label}: {case.name}", place, len(contenders)))
                outcome = outlived(case, "test", functools.partial(verify, heats.current[index])).outcome
                if outcome.verdict != "passed":
                    self._fail(heats, index, _on(case, outcome))
                    break

    def time(self, heats: Heats, watch: Monitor | Missing) -> None:
        """Heat after heat, until every pair is as exact as asked."""
        budget = Budget(self.contest.max_seconds)
        while len(self._contenders()) > 1:
            pace = Pace(PRECISION, shared(len(self.cases)), budget.until_ns(heats))
            self._heat(heats, heats.round(self.seed, pace, watch))
            count = heats.number + 1
            if self.stopped_by or len(self._contenders()) < 2:
                return
            if count >= MIN_HEATS:
                marked, _, _ = _marked(self._entries())
                if is_settled(marked[:-1], self.contest.precision):
                    self.stopped_by = "precision"
                elif budget.is_over:
                    self.stopped_by = "time"
                elif count >= MAX_HEATS:
                    self.stopped_by = "heats"
                if self.stopped_by:
                    return
            self.listen(Progress("start further processes"))
            try:
                self.load(heats, budget.further(heats))
            except DeviceError as error:
                if count < MIN_HEATS:
                    raise
                self.stopped_by = "device"
                self.notes += (no_further("heat", count, error),)
                return

    def _heat(self, heats: Heats, heat: Round) -> None:
        for done, case in enumerate(heats.shuffled(self.cases, self.seed)):
            if len(self._contenders()) < 2:
                return
            active = self._active()
            progress = Progress(f"compare, heat {heat.number + 1}", case.name, done, len(self.cases))
            self.listen(progress)

            def tick(blocks: int, progress: Progress = progress) -> None:
                self.listen(replace(progress, batches=blocks))

            pairs = [heats.current[index] for index in active]
            forms = [self.forms[index].get(case.name) for index in active]
            try:
                found = measure(heats.court, pairs, case, heat, self.baselines.of(case, active), forms, tick)
            except NoRoom as too_large:
                self._lack_room(heats, case, str(too_large))
                return
            for index, timed in zip(active, found, strict=True):
                self.forms[index][case.name] = timed.form
                known = self.classes[index].get(case.name)
                self.classes[index][case.name] = joined_class(known, timed.timing_class)
                outcome = timed.result.outcome
                if timed.result.timing is not None:
                    self.samples[index][case.name] += timed.result.timing.batches
                self.evidence[index][case.name].append(timed.result)
                self.output_bytes[case.name] = timed.output_bytes
                if outcome.verdict != "passed":
                    self._fail(heats, index, _on(case, outcome))

    def _lack_room(self, heats: Heats, case: Case, reason: str) -> None:
        """The device has no room for this case: the end, with what the heats before have, if they are enough."""
        if heats.number < MIN_HEATS:
            for index in self._active():
                self._fail(heats, index, _on(case, Outcome("not-run", reason)))
            return
        self.stopped_by = "memory"
        self.notes += (left_out(f"heat {heats.number + 1}", case.name, reason),)
        for samples in self.samples:
            for name, batches in samples.items():
                samples[name] = [batch for batch in batches if batch.process != heats.number]

    def note_refusals(self, heats: Heats) -> None:
        """Say who asked the system for what its sandbox refuses."""
        for seat, each in enumerate(self.contest.contenders):
            names = heats.refused(seat)
            if names:
                asked = ", ".join(names)
                self.notes += (f"{each.label} asked the system for what no kernel needs, and was refused: {asked}",)

    def note_doubts(self, court: Court) -> None:
        """Say whose times its own evidence, or what this device was seen to do at best, makes doubtful."""
        if self.stopped_by == "Ctrl-C":
            return
        found = [
            (index, merge(results))
            for index in self._contenders()
            for results in self.evidence[index].values()
            if results
        ]
        merged, notes = beside_floors(
            [each for _, each in found], self.contest.problem.roofline, court, self.output_bytes
        )
        for (index, _), each in zip(found, merged, strict=True):
            if each.doubts:
                self.notes += (f"{self.all[index].label} on {each.name}: {', '.join(each.doubts)}",)
        self.notes += notes

    def _active(self) -> list[int]:
        return [index for index, outcome in enumerate(self.outcomes) if outcome.verdict == "passed"]

    def _contenders(self) -> list[int]:
        """Who is still in it, without the copy: whose it is decides nothing."""
        return [index for index in self._active() if index < len(self.contest.contenders)]

    def _fail(self, heats: Heats, index: int, outcome: Outcome) -> None:
        """Out of it with its first failure, its copy with it; none of its processes stays beside the others'."""
        heats.retire(index)
        if self.outcomes[index].verdict == "passed":
            self.outcomes[index] = replace(outcome, message=printable(outcome.message))
        if index == self.copied:
            self._fail(heats, len(self.all) - 1, outcome)

    # --- the end ---------------------------------------------------------------------------------------------

    def _entries(self) -> list[Entry]:
        return [
            Entry(
                each.label,
                each.submission.filename,
                each.submission.sha256,
                None if each.record is None else each.record.id,
                self.outcomes[index],
                self._class(index),
                tuple(self._samples(index, case) for case in self.cases),
            )
            for index, each in enumerate(self.all)
        ]

    def _class(self, index: int) -> TimingClass:
        together: TimingClass | None = None
        for found in self.classes[index].values():
            together = joined_class(together, found)
        return together or untimed_class(self.contest.device)

    def _samples(self, index: int, case: Case) -> CaseSamples:
        """What was measured of a kernel before it failed says nothing."""
        outcome = self.outcomes[index]
        timing_class = self.classes[index].get(case.name, untimed_class(self.contest.device))
        batches = self.samples[index][case.name] if outcome.verdict == "passed" else []
        return CaseSamples(case.name, dict(case.spec), outcome, timing_class, tuple(batches))

    def comparison(self, stages_ns: dict[str, int]) -> Comparison:
        """Everything, frozen."""
        entries, share, why = _marked(self._entries())
        *contenders, control = entries
        original = contenders[self.copied]
        control_result = judge_control(original, control)
        if not why and control_result.verdict in ("FASTER", "SLOWER"):
            why = f"the hidden copy of {original.label} was called {control_result.verdict} than itself"
        pairs = judge_pairs(contenders, why)
        complete = self.stopped_by != "Ctrl-C"
        return Comparison(
            id=secrets.token_hex(4),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            problem=ProblemVersion(self.contest.problem.name, self.contest.problem.content_hash),
            device=self.device,
            software=self.software,
            entries=tuple(contenders),
            control=control,
            control_of=original.label,
            standings=standings(contenders, pairs),
            pairs=pairs,
            control_result=control_result,
            stages_ns=stages_ns,
            complete=complete,
            stopped_by=self.stopped_by or "nothing left to compare",
            voided_share=share,
            notes=(
                *dict.fromkeys(self.notes),
                *lost((case.name, case.batches) for entry in entries for case in entry.cases),
                *self._same_content(),
            ),
        )

    def _same_content(self) -> list[str]:
        known: dict[str, str] = {}
        notes = []
        for each in self.contest.contenders:
            first = known.setdefault(each.submission.sha256, each.label)
            if first != each.label:
                notes.append(f"{first} and {each.label} are the same file")
        return notes


def _marked(entries: Sequence[Entry]) -> tuple[list[Entry], float, str]:
    """The entries with the batches of unsteady blocks voided; blocks share their canaries, and so their fate."""
    count = len(entries[0].cases)
    columns = [[batch for entry in entries for batch in entry.cases[case].batches] for case in range(count)]
    marked, share, why = mark(columns)
    remaining = [iter(column) for column in marked]
    found = []
    for entry in entries:
        own = [
            tuple(itertools.islice(each, len(case.batches))) for each, case in zip(remaining, entry.cases, strict=True)
        ]
        cases = tuple(replace(case, batches=batches) for case, batches in zip(entry.cases, own, strict=True))
        found.append(replace(entry, cases=cases))
    return found, share, why


def _on(case: Case, outcome: Outcome) -> Outcome:
    return replace(outcome, message=f"{case.name}: {outcome.message}")


def _check_records(contest: Contest) -> None:
    """Records must be of this version of the problem, and of one device and timing class."""
    records = [each.record for each in contest.contenders if each.record is not None]
    for record in records:
        advice = f"to compare the file itself: podium show {record.id} --code > FILE"
        if record.problem.name != contest.problem.name:
            raise SubmissionError(
                f"record {record.id} is of {record.problem.name}, not {contest.problem.name}; {advice}"
            )
        if record.problem.content_hash != contest.problem.content_hash:
            raise SubmissionError(f"record {record.id} is of another version of {record.problem.name}; {advice}")
        if record.device.model != records[0].device.model:
            both = f"{records[0].device.model} and {record.device.model}"
            raise SubmissionError(
                f"records {records[0].id} and {record.id} are of different devices ({both}); {advice}"
            )
        if record.timing_class != records[0].timing_class:
            both = f"{records[0].timing_class} and {record.timing_class}"
            raise SubmissionError(
                f"records {records[0].id} and {record.id} are of different timing classes ({both}); {advice}"
            )
