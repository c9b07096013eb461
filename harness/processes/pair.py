"""One contestant as the referee holds it, before the oracle that judges it: started, asked, replaced, ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import wire
from harness.cases import Case
from harness.errors import DeviceError
from harness.processes.court import START_S, Court, NoRoom, not_set_up
from harness.processes.isolation import (
    SANDBOX,
    Attempts,
    Limits,
    Report,
    hand_over,
    keeps_signals,
    layers,
    memory_file,
    prune_caches,
    settings,
)
from harness.processes.kernels import NAME
from harness.processes.peer import Peer, PeerEnded, printable, shut
from harness.record import Layer, Outcome
from harness.timing.gate import PAGE_BYTES, Page


@dataclass(frozen=True)
class Setting:
    """What a contestant is started with."""

    source: str
    limits: Limits
    caches: Path
    """Compile caches of this submission, shared by all its processes."""


class Pair:
    """A contestant process and the court that it stands before. Use it as a context: it ends with it.

    Entering starts the interpreter and returns at once; `prepare` waits for it. Several may be started side by side.
    """

    def __init__(self, court: Court, setting: Setting, seat: int = 0) -> None:
        self.court = court
        self.setting = setting
        self.seat = seat
        """Its submission's place before the court: it sees the arena of that place and no other."""
        self.isolation: tuple[Layer, ...] = ()
        self.gated = False
        """Whether the contestant's device can wait for the referee's word."""
        self.notes: tuple[str, ...] = ()
        """What this machine could not give."""
        self.generation = 0
        self.outputs: list[str] = []
        self._contestant: Peer | None = None
        self._report: Report | None = None
        self._attempts: Attempts | None = None
        self._refused: tuple[str, ...] = ()
        self._may_be_its = False
        """Whether anything of the submission ran in the current process."""
        self._page_fd: int | None = None
        self._open_page: Page | None = None
        self.is_prepared = False
        """Whether it holds the device."""
        self._preparing = False
        self._in_sandbox = True
        self._loaded: wire.Loaded | Outcome | None = None

    def __enter__(self) -> Pair:
        try:
            self._page_fd = memory_file("podium-gate")
            os.ftruncate(self._page_fd, PAGE_BYTES)
            self.page = self._open_page = Page(self._page_fd)
            self._launch()
        except OSError as error:
            self.__exit__(None, None, None)
            raise not_set_up(error) from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; a second time, after an interrupt in the middle of the first, ends what is left."""
        if self._contestant is not None:
            self.drop()
        page, self._open_page = self._open_page, None
        if page is not None:
            page.close()
        descriptor, self._page_fd = self._page_fd, None
        if descriptor is not None:
            shut((descriptor,))

    # --- starting --------------------------------------------------------------------------------------

    def _launch(self) -> None:
        assert self._page_fd is not None
        setting = self.setting
        files = {entry.name: entry.source for entry in self.court.problem.contestant_files}
        self._folder = self.court.lay("contestant", files)
        (self._folder / "submission.py").write_text(setting.source, encoding="utf-8")
        setting.caches.mkdir(parents=True, exist_ok=True)
        os.utime(setting.caches)
        prune_caches(setting.caches.parent, spare=NAME)
        user = self.court.user
        if user is not None:
            hand_over(self._folder, user)
            hand_over(setting.caches, user)
        shared = (self._page_fd, self.court.memory_fds[self.seat])
        limits = setting.limits
        self._in_sandbox = limits.isolation != "none" and not self.court.forgone
        report, attempts = Report(), Attempts()
        writable = (self._folder, setting.caches)
        taken = settings(limits, report.descriptor, writable, user, self._in_sandbox, attempts.descriptor)
        try:
            self._contestant = self.court.launch(
                "contestant",
                [self.court.kind],
                self._folder,
                setting.caches,
                self.court.kernels.folder,
                shared,
                wire.CONTESTANT_REPORTS,
                limits.host_memory_bytes,
                taken,
            )
        except BaseException:
            report.close()
            attempts.close()
            raise
        report.begun()
        attempts.begun()
        self._report, self._attempts, self._may_be_its = report, attempts, False

    def _hear_sandbox(self) -> None:
        """What the sandbox said before the contestant's program began: its init, and what could be applied."""
        assert self._contestant is not None and self._report is not None
        limits = self.setting.limits
        self._contestant.init, found = self._report.read()
        if self.court.forgone and not self._in_sandbox:
            found += [(name, False, self.court.forgone) for name in SANDBOX]
        if self.court.user is None and os.getuid() == 0:
            found.append(("own user", False, self.court.user_missing))
        self.isolation = layers(limits, self._contestant.process.pid, found)
        if limits.isolation == "none":
            self.court.in_reach = "`--isolation auto` keeps it from them"
        elif not keeps_signals(self.isolation):
            self.court.in_reach = "`podium doctor` lists the missing layers"
        missing = [f"{layer.name} ({layer.detail})" for layer in self.isolation if not layer.applied]
        if limits.isolation == "strict" and missing:
            raise DeviceError(
                f"this machine does not give {', '.join(missing)}: use --isolation auto, or see `podium doctor`"
            )

    def begin_prepare(self) -> None:
        """Wait for the interpreter and let it make its device context: several may do so at once, the oracle too.

        What the harness itself runs on the device is compiled by then.
        """
        if self.court.is_filling:
            self.court.await_device()
        trouble = self._begun()
        if trouble and self._starts_without_sandbox(trouble):
            trouble = self._begun()
        if trouble:
            self.court.await_device()  # if there is none, that is what to say
            raise DeviceError(f"a contestant process could not start: {trouble}")
        self._preparing = self.is_prepared = True

    def _begun(self) -> str:
        """Wait for the interpreter; why it did not start, or nothing."""
        assert self._contestant is not None
        try:
            self._contestant.receive(wire.Started, timeout_s=START_S)
            self._hear_sandbox()
            self._contestant.send(wire.Prepare())
        except PeerEnded as ended:
            return f"{ended.message}\n{self.output}".strip()
        return ""

    def prepare(self) -> None:
        """Wait for the contestant's device. Our code only: failing here is the machine's fault."""
        if not self._preparing:
            self.begin_prepare()
        self._preparing = False
        self.court.await_device()
        trouble = self._prepared()
        if trouble and self._starts_without_sandbox(trouble):
            self.begin_prepare()
            self._preparing = False
            trouble = self._prepared()
        if trouble:
            raise DeviceError(f"a contestant process could not use the device: {trouble}")

    @property
    def _may_forgo(self) -> bool:
        return self.setting.limits.isolation == "auto" and self._in_sandbox

    def _starts_without_sandbox(self, trouble: str) -> bool:
        """Where it may be the sandbox's fault, and that is not insisted on, this process and the next do without."""
        if not self._may_forgo:
            return False
        self.court.forgone = f"the device could not be used inside: {trouble}"
        self.drop()
        try:
            self._launch()
        except OSError as error:
            raise not_set_up(error) from error
        return True

    def _prepared(self) -> str:
        """Wait for the device, the harness's own kernels and a look at shared memory; what failed, or nothing."""
        try:
            report = self.hear_contestant(wire.Prepared, timeout_s=START_S)
            if isinstance(report, wire.Failed):
                return str(report.message)
            self.gated = report.gated
            if report.missing and self._may_forgo:
                return str(report.missing)
            if report.missing:
                note = f"no gate on this device, calls are timed one by one: {printable(report.missing)}"
                self.notes = tuple(dict.fromkeys((*self.notes, note)))
            if self.court.probe:
                probed = self.contestant(wire.Probe(self.court.probe), wire.Probed, timeout_s=START_S)
                if isinstance(probed, wire.Failed):
                    return f"memory of another process could not be opened: {probed.message}"
        except PeerEnded as ended:
            return f"{ended.message}\n{self.output}".strip()
        return ""

    def load(self) -> wire.Loaded | Outcome:
        """Import the submission: what it defines, or how it failed, which ends the process."""
        limits = self.setting.limits
        if self._contestant is None:  # it ended before there was anything of the submission's in it
            self._start_again()
        assert self._attempts is not None
        self._attempts.read()  # what was refused so far was not the submission's doing
        self._may_be_its = True
        try:
            report = self.contestant(wire.Load("submission.py"), wire.Loaded, timeout_s=limits.load_s)
        except PeerEnded as ended:
            verdict = "load-failed" if ended.verdict == "crashed" else ended.verdict
            report = Outcome(verdict, f"while it was imported: {ended.message}", "load")
        if isinstance(report, wire.Failed):
            report = Outcome(report.verdict, report.message, "load")
        if isinstance(report, Outcome):
            self.drop()
        self._loaded = report
        return self._loaded

    @property
    def is_loaded(self) -> bool:
        """Whether the submission was imported here."""
        return isinstance(self._loaded, wire.Loaded)

    @property
    def interprets(self) -> bool:
        """Whether the submission runs in Triton's interpreter."""
        return isinstance(self._loaded, wire.Loaded) and self._loaded.interprets

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        return self.court.kind

    @property
    def pid(self) -> int | None:
        """The contestant's process, None while there is none."""
        return None if self._contestant is None else self._contestant.process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The same and all that it started."""
        return () if self._contestant is None else self._contestant.pids

    # --- asking ----------------------------------------------------------------------------------------

    def contestant(self, order: Any, *answers: type, timeout_s: float) -> Any:
        """The contestant's answer, which may be `Failed`; PeerEnded when it is gone."""
        self.tell_contestant(order)
        return self.hear_contestant(*answers, timeout_s=timeout_s)

    def tell_contestant(self, order: Any) -> None:
        """Send an order whose answer is fetched later by `hear_contestant`."""
        assert self._contestant is not None
        self._contestant.send(order)

    def hear_contestant(self, *answers: type, timeout_s: float) -> Any:
        """The next report of the contestant."""
        assert self._contestant is not None
        return self._contestant.receive(*answers, timeout_s=timeout_s)

    def next_generation(self) -> int:
        """A number for a batch, larger than all before it."""
        self.generation += 1
        return self.generation

    # --- replacing -------------------------------------------------------------------------------------

    def _start_again(self) -> None:
        try:
            self._launch()
        except OSError as error:
            raise not_set_up(error) from error
        self.prepare()

    def _restart(self) -> None:
        """A fresh process for the cases that remain, after one that ended; with the submission if that one had it."""
        self._start_again()
        if self._loaded is None:
            return
        report = self.load()
        if isinstance(report, Outcome):
            raise PeerEnded(report.verdict, f"started again after an earlier case ended it: {report.message}")

    def signal_end(self) -> None:
        """Tell the contestant to end; `__exit__` waits for that. Several told together end together."""
        if self._contestant is not None:
            self._contestant.signal_end()

    def drop(self) -> None:
        """End the contestant; the next case starts another."""
        assert self._contestant is not None
        contestant, self._contestant = self._contestant, None
        self.court.dismiss(contestant)
        if self._report is not None:
            self._report.close()
        if self._attempts is not None:
            self._refused = self.refused
            self._attempts.close()
            self._attempts = None
        shutil.rmtree(self._folder, ignore_errors=True)
        if contestant.printed:
            self.outputs.append(contestant.output)

    @property
    def refused(self) -> tuple[str, ...]:
        """System calls that the submission asked for and was refused, each once, in the order of its first attempts."""
        if self._attempts is not None and self._may_be_its:
            self._refused = tuple(dict.fromkeys((*self._refused, *self._attempts.read())))
        return self._refused

    @property
    def output(self) -> str:
        """What the submission printed, the end of it, in each of its last three processes."""
        current = [self._contestant.output] if self._contestant is not None and self._contestant.printed else []
        return "\n".join((*self.outputs, *current)[-3:])

    # --- cases -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def attached(self, staged: wire.Staged) -> Iterator[None]:
        """The case before this contestant: its own seat's arena.

        PeerEnded, from here or from inside, ends the contestant: the next case gets a fresh one.
        """
        try:
            if self._contestant is None:
                self._restart()
            handle = staged.handles[self.seat]
            assert handle is not None
            order = wire.Map(staged.layout, handle, staged.size_bytes)
            report = self.contestant(order, wire.Mapped, timeout_s=START_S)
            if isinstance(report, wire.Failed):
                raise PeerEnded(report.verdict, report.message)
            yield
        except PeerEnded:
            if self._contestant is not None:
                self.drop()
            raise
        except NoRoom:
            self._unmap()
            raise
        if self._contestant is not None:
            self._unmap()

    def _unmap(self) -> None:
        """Take the buffers away. A context that a bad access has ruined shows here: such a process is dropped."""
        try:
            seconds = START_S if self._loaded is None else self.setting.limits.call_s
            report = self.contestant(wire.Unmap(), wire.Unmapped, timeout_s=seconds)
        except PeerEnded:
            report = None
        if not isinstance(report, wire.Unmapped):
            self.drop()

    @contextlib.contextmanager
    def staged(self, case: Case, max_sets: int) -> Iterator[int]:
        """A case before the court and this contestant alone: the number of input sets that there is room for."""
        with self.court.staged(case, max_sets, (self.seat,)) as staged, self.attached(staged):
            yield staged.sets


def wall_ns() -> int:
    """The referee's clock."""
    return time.perf_counter_ns()
