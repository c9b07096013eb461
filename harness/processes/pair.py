"""The oracle and the contestant of one run, as the referee holds them: started, asked, replaced, ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import wire
from harness.cases import Case
from harness.errors import DeviceError, ProblemError
from harness.problem import Problem
from harness.processes.isolation import (
    Limits,
    confine,
    environment,
    launch,
    make_scratch,
    memory_file,
    prune_caches,
    sweep_scratch,
)
from harness.processes.peer import Peer, PeerEnded, pipes, printable, shut
from harness.processes.warden import Warden
from harness.record import Device, Layer, Outcome
from harness.timing.gate import PAGE_BYTES, Page
from harness.wire import read_dataclass

START_S = 180.0
"""An interpreter that imports torch and makes a device context, on a cold disk."""
ORACLE_S = 600.0
"""Any one order of the oracle: its code is trusted, but a reference may still be slow."""


@dataclass(frozen=True)
class Setting:
    """What both processes of a run are started with."""

    problem: Problem
    source: str
    device: str
    """cpu, cuda or cuda:N."""
    limits: Limits
    caches: Path
    """Compile caches of this submission."""

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        return self.device.partition(":")[0]


class Pair:
    """Both processes of a run. Use it as a context: nothing is left when it ends, however it ends."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.isolation: tuple[Layer, ...] = ()
        self.gated = False
        """Whether the contestant's device can wait for the referee's word."""
        self.notes: tuple[str, ...] = ()
        """What this machine could not give."""
        self.generation = 0
        self.outputs: list[str] = []
        self._contestant: Peer | None = None
        self._oracle: Peer | None = None
        self._loaded: wire.Loaded | Outcome | None = None

    def __enter__(self) -> Pair:
        try:
            return self._enter()
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise DeviceError(
                f"a run could not be set up: {error.strerror}{where}; TMPDIR and PODIUM_HOME can name other places"
            ) from error

    def _enter(self) -> Pair:
        sweep_scratch()
        self.scratch = make_scratch()
        self._warden = Warden()
        self._warden.remove(self.scratch)
        self._page_fd = memory_file("podium-gate")
        self._memory_fd = memory_file("podium-arena")
        os.ftruncate(self._page_fd, PAGE_BYTES)
        self.page = Page(self._page_fd)
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in (self._contestant, self._oracle):
            if peer is not None:
                peer.close()
                self._warden.forget(peer.process.pid)
        self._contestant = self._oracle = None
        self.page.close()
        shut((self._page_fd, self._memory_fd))
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._warden.close()

    # --- starting --------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Both interpreters side by side; then the device, as the oracle sees it."""
        setting = self.setting
        folder = self._lay("oracle", {entry.name: entry.source for entry in setting.problem.oracle_files})
        self._oracle = self._launch("oracle", folder, (self._memory_fd,), wire.ORACLE_REPORTS, None)
        self._contestant = self._launch_contestant()
        judging = {
            "precisions": list(setting.problem.precisions),
            "shared_inputs": list(setting.problem.shared_inputs),
            "tolerance": _limits(setting.problem),
        }
        kind: Any = setting.kind
        opened = self.oracle(wire.Open(str(folder), kind, judging), wire.Opened, timeout_s=START_S)
        self.device = read_dataclass(Device, opened.device, "device")
        self.software = opened.software

    def _lay(self, name: str, files: dict[str, Path]) -> Path:
        folder = self.scratch / name
        folder.mkdir()
        for flat, source in files.items():
            shutil.copyfile(source, folder / flat)
        return folder

    def _launch(
        self, role: str, folder: Path, shared: tuple[int, ...], reports: tuple[type, ...], memory: int | None
    ) -> Peer:
        child_orders, orders, reports_fd, child_reports = pipes()
        leading = (self.setting.kind,) if role == "contestant" else ()
        variables = environment(self.setting.device, folder, self.setting.caches if leading else folder)
        process = launch(
            f"harness.processes.{role}",
            [*leading, *map(str, (child_orders, child_reports, *shared))],
            descriptors=(child_orders, child_reports, *shared),
            variables=variables,
            folder=folder,
        )
        shut((child_orders, child_reports))
        self._warden.watch(process.pid)
        return Peer(process, orders, reports_fd, reports, memory)

    def _launch_contestant(self) -> Peer:
        setting = self.setting
        shutil.rmtree(self.scratch / "contestant", ignore_errors=True)
        folder = self._lay("contestant", {entry.name: entry.source for entry in setting.problem.contestant_files})
        (folder / "submission.py").write_text(setting.source, encoding="utf-8")
        setting.caches.mkdir(parents=True, exist_ok=True)
        os.utime(setting.caches)
        prune_caches(setting.caches.parent)
        shared = (self._page_fd, self._memory_fd)
        limit = setting.limits.host_memory_bytes
        peer = self._launch("contestant", folder, shared, wire.CONTESTANT_REPORTS, limit)
        self.isolation = confine(peer.process, setting.limits)
        return peer

    # --- asking ----------------------------------------------------------------------------------------

    def oracle(self, order: Any, answer: type, *, timeout_s: float = ORACLE_S) -> Any:
        """The oracle's answer. What goes wrong there is the problem's or the machine's, never the submission's."""
        return self._trusted(lambda peer: peer.ask(order, answer, timeout_s=timeout_s))

    def tell_oracle(self, order: Any) -> None:
        """Send an order whose answer is fetched later by `hear_oracle`."""
        self._trusted(lambda peer: peer.send(order))

    def hear_oracle(self, answer: type) -> Any:
        """The answer to what `tell_oracle` sent."""
        return self._trusted(lambda peer: peer.receive(answer, timeout_s=ORACLE_S))

    def _trusted(self, step: Callable[[Peer], Any]) -> Any:
        assert self._oracle is not None
        name = self.setting.problem.name
        try:
            report = step(self._oracle)
        except PeerEnded as ended:
            last = self._oracle.output.strip().splitlines()[-1:]
            raise DeviceError(f"the oracle of {name} ended: {ended.message} {' '.join(last)}".strip()) from None
        if isinstance(report, wire.Trouble):
            if report.cause == "device":
                raise DeviceError("torch sees no GPU here: use --device cpu, or see `podium doctor`")
            if report.cause == "memory":
                raise NoRoom(f"this case does not fit into the device's memory ({report.message})")
            raise ProblemError(f"problem {name} failed in its own code at {report.stage!r}: {report.message}")
        return report

    def contestant(self, order: Any, *answers: type, timeout_s: float) -> Any:
        """The contestant's answer, which may be `Failed`; PeerEnded when it is gone, after which it is replaced."""
        assert self._contestant is not None
        return self._contestant.ask(order, *answers, timeout_s=timeout_s)

    def hear_contestant(self, *answers: type, timeout_s: float) -> Any:
        """The next report of the contestant."""
        assert self._contestant is not None
        return self._contestant.receive(*answers, timeout_s=timeout_s)

    # --- the submission --------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Wait for the contestant's interpreter and its device. Our code only: failing here is the machine's fault."""
        try:
            assert self._contestant is not None
            self._contestant.receive(wire.Started, timeout_s=START_S)
            order = wire.Prepare(self.device.cache_bytes or 1 << 25)
            report = self.contestant(order, wire.Prepared, timeout_s=START_S)
        except PeerEnded as ended:
            raise DeviceError(f"a contestant process could not start: {ended.message}\n{self.output}") from None
        if isinstance(report, wire.Failed):
            raise DeviceError(f"a contestant process could not use the device: {report.message}")
        self.gated = report.gated
        if report.missing:
            note = f"no gate on this device, calls are timed one by one: {printable(report.missing)}"
            self.notes = tuple(dict.fromkeys((*self.notes, note)))

    def load(self) -> wire.Loaded | Outcome:
        """Import the submission: what it defines, or how it failed."""
        limits = self.setting.limits
        try:
            report = self.contestant(wire.Load("submission.py"), wire.Loaded, timeout_s=limits.load_s)
        except PeerEnded as ended:
            verdict = "load-failed" if ended.verdict == "crashed" else ended.verdict
            report = Outcome(verdict, f"while it was imported: {ended.message}", "load")
        if isinstance(report, wire.Failed):
            report = Outcome(report.verdict, report.message, "load")
        self._loaded = report
        return self._loaded

    @property
    def interprets(self) -> bool:
        """Whether the submission runs in Triton's interpreter."""
        return isinstance(self._loaded, wire.Loaded) and self._loaded.interprets

    def _restart(self) -> None:
        """A fresh process for the cases that remain, after one that ended."""
        self._contestant = self._launch_contestant()
        self.prepare()
        report = self.load()
        if isinstance(report, Outcome):
            raise PeerEnded(report.verdict, f"started again after an earlier case ended it: {report.message}")

    def _drop(self) -> None:
        """End the contestant; the next case starts another."""
        assert self._contestant is not None
        self._contestant.close()
        self._warden.forget(self._contestant.process.pid)
        self._keep_output()
        self._contestant = None

    def _keep_output(self) -> None:
        if self._contestant is not None and self._contestant.printed:
            self.outputs.append(self._contestant.output)

    @property
    def output(self) -> str:
        """What the submission printed, the end of it, in each of its last three processes."""
        current = [self._contestant.output] if self._contestant is not None and self._contestant.printed else []
        return "\n".join((*self.outputs, *current)[-3:])

    # --- cases -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def staged(self, case: Case, max_sets: int) -> Iterator[int]:
        """A case's buffers before both processes; gives the number of input sets that there is room for.

        PeerEnded, from here or from inside, ends the contestant: the next case gets a fresh one.
        """
        try:
            if self._contestant is None:
                self._restart()
            staged = self.oracle(wire.Stage(dict(case.spec), max_sets), wire.Staged)
            order = wire.Map(staged.layout, staged.handle, staged.size_bytes)
            report = self.contestant(order, wire.Mapped, timeout_s=START_S)
            if isinstance(report, wire.Failed):
                raise PeerEnded(report.verdict, report.message)
            yield int(staged.sets)
        except PeerEnded:
            if self._contestant is not None:
                self._drop()
            self.oracle(wire.Strike(), wire.Struck)
            raise
        except NoRoom:
            self._unmap()
            self.oracle(wire.Strike(), wire.Struck)
            raise
        self._unmap()
        self.oracle(wire.Strike(), wire.Struck)

    def _unmap(self) -> None:
        """Take the buffers away. A context that a bad access has ruined shows here: such a process is dropped."""
        try:
            report = self.contestant(wire.Unmap(), wire.Unmapped, timeout_s=self.setting.limits.call_s)
        except PeerEnded:
            report = None
        if not isinstance(report, wire.Unmapped):
            self._drop()

    def next_generation(self) -> int:
        """A number for a batch, larger than all before it."""
        self.generation += 1
        return self.generation


class NoRoom(Exception):
    """The device has too little memory for a case."""


def _limits(problem: Problem) -> dict[str, Any] | None:
    if problem.tolerance is None:
        return None
    names = problem.precisions or ("",)
    return {name: asdict(problem.tolerance.for_precision(name or None)) for name in names}


def wall_ns() -> int:
    """The referee's clock."""
    return time.perf_counter_ns()
