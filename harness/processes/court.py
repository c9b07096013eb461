"""The oracle of one run, and what outlives every contestant: the scratch folder, the seats' memory, the warden."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import wire
from harness.cases import Case
from harness.errors import DeviceError, PodiumError, ProblemError
from harness.problem import Problem
from harness.processes.isolation import (
    Report,
    User,
    environment,
    hand_over,
    launch,
    make_scratch,
    memory_file,
    other_user,
    sweep_scratch,
)
from harness.processes.kernels import NAME, kernels_for
from harness.processes.peer import Peer, PeerEnded, end, pipes, shut, signal_name
from harness.processes.privacy import hide, is_hidden, show
from harness.processes.sandbox import Settings
from harness.processes.warden import Warden
from harness.record import Device
from harness.wire import read_dataclass

START_S = 180.0
"""An interpreter that imports torch and makes a device context, on a cold disk."""
ORACLE_S = 600.0
"""Any one order of the oracle: its code is trusted, but a reference may still be slow."""


class NoRoom(Exception):
    """The device has too little memory for a case."""


class Court:
    """The oracle and the place where it sits. Use it as a context: nothing is left when it ends, however it ends.

    Before it there are `seats`, one for each submission. Who sits there shares memory with the oracle and with
    earlier and later processes of the same submission, and with nobody else.
    """

    def __init__(
        self, problem: Problem, device: str, seats: int = 1, caches: Path | None = None, kernels: Path | None = None
    ) -> None:
        """`caches`: where contestants will keep what they compile; without, they keep the referee's user.

        `kernels`: where the harness's own compiled kernels are kept; without, they end with the run.
        """
        self.problem = problem
        self.caches = caches
        self._kept_kernels = kernels
        self.user: User | None = None
        """Whom oracle and contestants become, where that is not the referee's user."""
        self.user_missing = "a run without a sandbox"
        """Why not, where there is none."""
        self.device_name = device
        """cpu, cuda or cuda:N."""
        self.seats = seats
        self.memory_fds: tuple[int, ...] = ()
        """The memory file of each seat: its arena, on the CPU."""
        self.forgone = ""
        """Why contestants are started without namespaces and Landlock after all; nothing where they are not."""
        self.is_filling = False
        """Whether the oracle compiles the harness's own kernels first."""
        self.in_reach = ""
        """What to do about it, where a contestant was started that can signal the oracle."""
        self._oracle: Peer | None = None
        self._device: Device | None = None
        self._folders = 0
        self._held = contextlib.ExitStack()
        """What is to be undone at the end, the last first."""

    def __enter__(self) -> Court:
        try:
            self._enter()
        except OSError as error:
            self.__exit__(None, None, None)
            raise not_set_up(error) from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _enter(self) -> None:
        sweep_scratch()
        if not is_hidden() and hide():  # the seeds and the clock are in here
            self._held.callback(show)
        self.warden = Warden()
        self._held.callback(self.warden.close)
        self.scratch = make_scratch()
        self._held.callback(shutil.rmtree, self.scratch, ignore_errors=True)
        self.warden.remove(self.scratch)
        self._choose_user()
        self.kernels = kernels_for(self.device_name, self._kept_kernels or self.scratch / NAME)
        self.kernels.make()
        self.is_filling = self.kind != "cpu" and not self.kernels.is_filled
        if self.is_filling:
            self.kernels.begin_filling(self.user)
        for _ in range(self.seats):
            descriptor = memory_file("podium-arena")
            self._held.callback(shut, (descriptor,))
            self.memory_fds += (descriptor,)
        folder = self.lay("oracle", {entry.name: entry.source for entry in self.problem.oracle_files})
        if self.user is not None:
            hand_over(folder, self.user)
        report = Report()
        self._held.callback(report.close)
        settings = None if self.user is None else Settings(report.descriptor, user=self.user, layers=())
        self._oracle = self.launch(
            "oracle", [], folder, folder, folder, self.memory_fds, wire.ORACLE_REPORTS, settings=settings
        )
        report.begun()
        self._held.callback(self.dismiss, self._oracle)
        judging = {
            "precisions": list(self.problem.precisions),
            "shared_inputs": list(self.problem.shared_inputs),
            "tolerance": _limits(self.problem),
        }
        kind: Any = self.kind
        self.tell(wire.Open(str(folder), kind, judging, str(self.kernels.folder / "triton") if self.is_filling else ""))

    def _choose_user(self) -> None:
        """As root, become somebody else if that one can do all that is needed."""
        if self.caches is None:
            return
        self.caches.mkdir(parents=True, exist_ok=True)
        self.scratch.chmod(0o711)
        found = other_user([self.caches, self.scratch])
        if isinstance(found, str):
            self.user_missing = found
        else:
            self.user = found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
        self._oracle = None

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        return self.device_name.partition(":")[0]

    @property
    def pid(self) -> int:
        """The oracle's process."""
        assert self._oracle is not None
        return self._oracle.process.pid

    # --- processes -------------------------------------------------------------------------------------

    def lay(self, role: str, files: Mapping[str, Path]) -> Path:
        """A process's own folder in the scratch folder, with these files in it under these names."""
        self._folders += 1
        folder = self.scratch / f"{role}-{self._folders}"
        folder.mkdir()
        for flat, source in files.items():
            shutil.copyfile(source, folder / flat)
        return folder

    def launch(
        self,
        role: str,
        leading: list[str],
        folder: Path,
        caches: Path,
        kernels: Path,
        shared: tuple[int, ...],
        reports: tuple[type, ...],
        memory: int | None = None,
        settings: Settings | None = None,
    ) -> Peer:
        """Start `harness.processes.ROLE` in a folder, with these descriptors; nothing is left of it if that fails.

        With settings, in the sandbox.
        """
        said: tuple[int, ...] = () if settings is None else (settings.report,)
        if settings is not None and settings.attempts is not None:
            said += (settings.attempts,)
        child_orders, orders, reports_fd, child_reports = pipes()
        with contextlib.ExitStack() as undo:
            undo.callback(shut, (orders, reports_fd))
            try:
                process = launch(
                    f"harness.processes.{role}",
                    [*leading, *map(str, (child_orders, child_reports, *shared))],
                    descriptors=(child_orders, child_reports, *shared, *said),
                    variables=environment(self.device_name, folder, caches, kernels),
                    folder=folder,
                    settings=settings,
                )
            finally:
                shut((child_orders, child_reports))
            undo.callback(end, process)
            self.warden.watch(process.pid)
            undo.callback(self.warden.forget, process.pid)
            peer = Peer(process, orders, reports_fd, reports, memory)
            undo.pop_all()
        return peer

    def dismiss(self, peer: Peer) -> None:
        """End a process that `launch` started."""
        peer.close()
        self.warden.forget(peer.process.pid)

    # --- the oracle ------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device as the oracle sees it; the first look waits for the oracle."""
        self.await_device()
        assert self._device is not None
        return self._device

    def await_device(self) -> None:
        """Wait until the oracle has its device. DeviceError if there is none."""
        if self._device is None:
            opened = self.hear(wire.Opened, timeout_s=START_S)
            self._device = read_dataclass(Device, opened.device, "device")
            self.software: dict[str, Any] = opened.software
            self.probe: str = opened.probe
            if self.is_filling:
                self.kernels.end_filling()
                self.is_filling = False

    def ask(self, order: Any, answer: type, *, timeout_s: float = ORACLE_S) -> Any:
        """The oracle's answer. What goes wrong there is the problem's or the machine's, never a submission's."""
        return self._trusted(lambda peer: peer.ask(order, answer, timeout_s=timeout_s))

    def tell(self, order: Any) -> None:
        """Send an order whose answer is fetched later by `hear`."""
        self._trusted(lambda peer: peer.send(order))

    def hear(self, answer: type, *, timeout_s: float = ORACLE_S) -> Any:
        """The answer to what `tell` sent."""
        return self._trusted(lambda peer: peer.receive(answer, timeout_s=timeout_s))

    def _trusted(self, step: Callable[[Peer], Any]) -> Any:
        assert self._oracle is not None
        name = self.problem.name
        try:
            report = step(self._oracle)
        except PeerEnded as ended:
            raise DeviceError(self._lost(ended)) from None
        if isinstance(report, wire.Trouble):
            if report.cause == "device":
                raise DeviceError("torch sees no GPU here: use --device cpu, or see `podium doctor`")
            if report.cause == "memory":
                raise NoRoom(f"this case does not fit into the device's memory ({report.message})")
            raise ProblemError(f"problem {name} failed in its own code at {report.stage!r}: {report.message}")
        return report

    def _lost(self, ended: PeerEnded) -> str:
        """How the oracle ended, who may have done it, and what to do, in a line."""
        assert self._oracle is not None
        name, code = self.problem.name, self._oracle.process.poll()
        if ended.verdict != "crashed" or code is None or code >= 0:
            last = self._oracle.output.strip().splitlines()[-1:]
            return (
                f"the oracle of {name} gives no more answers: {': '.join([ended.message, *last])}; nothing was recorded"
            )
        killed = (
            f"the oracle of {name}, which judges, was killed by signal {-code} ({signal_name(-code)}), "
            "and nothing was recorded"
        )
        if self.in_reach:
            return (
                f"{killed}: the submission may have done that, since it can reach other processes here; {self.in_reach}"
            )
        memory = "; the system does it where memory runs out" if code == -signal.SIGKILL else ""
        return f"{killed}: run this again (from the sandbox no submission can send it a signal{memory})"

    @contextlib.contextmanager
    def staged(self, case: Case, max_sets: int, seats: Sequence[int]) -> Iterator[wire.Staged]:
        """A case's data and an arena for each of these seats, freed at the end.

        NoRoom when the device has too little memory for all of them.
        """
        try:
            yield self.ask(wire.Stage(dict(case.spec), max_sets, tuple(seats)), wire.Staged)
        except PeerEnded:
            self.ask(wire.Strike(), wire.Struck)
            raise
        except (NoRoom, PodiumError) as error:
            if isinstance(error, NoRoom):
                self.ask(wire.Strike(), wire.Struck)
            raise type(error)(case.without_seed(str(error))) from error  # the reference's own words
        self.ask(wire.Strike(), wire.Struck)


def not_set_up(error: OSError) -> DeviceError:
    """What to tell the user when the system refuses a folder, a file or a process."""
    where = f" ({error.filename})" if error.filename else ""
    return DeviceError(
        f"a run could not be set up: {error.strerror}{where}; TMPDIR and PODIUM_HOME can name other places"
    )


def _limits(problem: Problem) -> dict[str, Any] | None:
    if problem.tolerance is None:
        return None
    names = problem.precisions or ("",)
    return {name: asdict(problem.tolerance.for_precision(name or None)) for name in names}
