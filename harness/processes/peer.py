"""The referee's end of a child process: its orders, its reports, its prints, its death.

What a child does is a value: `receive` returns a message or raises `PeerEnded`, which says how the child
went. Prints are drained all the time that the referee waits, and only their end is kept, so that neither a
flood nor a full pipe can stop the run.
"""

from __future__ import annotations

import functools
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import wire
from harness.record import Verdict

KEPT_OUTPUT_BYTES = 16 << 10
_CHUNK = 1 << 16
_TICK_S = 0.1
_CONTROLS = re.compile(r"[^\t\n\x20-\x7e\xa0-\U0010ffff]")


class PeerEnded(Exception):
    """A child that will say nothing more, or nothing that can be understood."""

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict: Verdict = verdict
        self.message = message


def printable(text: str) -> str:
    """Text of a child without what could move a terminal's cursor or colour it."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))


class Peer:
    """One child process. `reports` is the vocabulary it may speak."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        orders_fd: int,
        reports_fd: int,
        reports: tuple[type, ...],
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.process = process
        self._orders_fd = orders_fd
        self._reports_fd = reports_fd
        self._reports = reports
        self._memory_limit_bytes = memory_limit_bytes
        self._memory_due = 0.0
        self.init: int | None = None
        """The first process inside its namespaces: all that is in them ends with it."""
        self._pending = b""
        self._output = b""
        self.output_bytes = 0
        assert process.stdout is not None
        self._selector = selectors.DefaultSelector()
        for descriptor, drain in ((reports_fd, self._read_report), (process.stdout.fileno(), self._read_output)):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, drain)
        os.set_blocking(orders_fd, False)

    # --- speaking --------------------------------------------------------------------------------------

    def ask(self, order: Any, *answers: type, timeout_s: float) -> Any:
        """Send an order and wait for one of these answers; `Failed` and `Trouble` are always answers."""
        self.send(order, timeout_s=timeout_s)
        return self.receive(*answers, timeout_s=timeout_s)

    def send(self, order: Any, *, timeout_s: float = 10.0) -> None:
        """Send an order; PeerEnded when the child is gone or does not read."""
        left = wire.encode(order)
        deadline = time.monotonic() + timeout_s
        while left:
            try:
                left = left[os.write(self._orders_fd, left) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PeerEnded("timed-out", "it stopped reading its orders") from None
                self._turn(0.01)
            except BrokenPipeError:
                raise self._death() from None

    def receive(self, *kinds: type, timeout_s: float) -> Any:
        """The next report, one of `kinds` (Failed and Trouble always are); PeerEnded otherwise."""
        deadline = time.monotonic() + timeout_s
        allowed = (*kinds, wire.Failed, wire.Trouble)
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                return self._decode(line, allowed)
            if len(self._pending) > wire.MAX_LINE_BYTES:
                raise PeerEnded("protocol-violation", "it sent a line without end")
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerEnded("timed-out", f"nothing came back within {timeout_s:g} s")
            if not self._turn(min(left, _TICK_S)):
                raise self._death()
            self._watch_memory()

    def _decode(self, line: bytes, allowed: tuple[type, ...]) -> Any:
        try:
            return wire.decode(line, tuple(kind for kind in self._reports if kind in allowed))
        except wire.WireError as error:
            raise PeerEnded("protocol-violation", f"it wrote on the harness's own pipe: {error}") from None

    # --- listening -------------------------------------------------------------------------------------

    def _turn(self, timeout_s: float) -> bool:
        """Read what is there to be read, waiting up to `timeout_s`; False when the reports have ended."""
        open_reports = True
        for key, _ in self._selector.select(timeout_s):
            drain: Callable[[int], bool] = key.data
            if not drain(key.fd):
                self._selector.unregister(key.fd)
                open_reports = open_reports and key.fd != self._reports_fd
        return open_reports and self._reports_fd in self._selector.get_map()

    def _read_report(self, descriptor: int) -> bool:
        chunk = os.read(descriptor, _CHUNK)
        self._pending += chunk
        return bool(chunk)

    def _read_output(self, descriptor: int) -> bool:
        chunk = os.read(descriptor, _CHUNK)
        self.output_bytes += len(chunk)
        self._output = (self._output + chunk)[-KEPT_OUTPUT_BYTES:]
        return bool(chunk)

    @property
    def output(self) -> str:
        """The end of what the child printed, safe to show."""
        text = printable(self._output.decode(errors="replace"))
        cut = self.output_bytes - len(self._output)
        return f"[{cut} bytes before this were dropped]\n{text}" if cut > 0 else text

    @property
    def printed(self) -> bool:
        """Whether it printed anything but blanks."""
        return bool(self._output.strip())

    def _watch_memory(self) -> None:
        if self._memory_limit_bytes is None:
            return
        now = time.monotonic()
        if now < self._memory_due:
            return
        self._memory_due = now + _TICK_S
        if used_bytes(self.pids, self._memory_limit_bytes) > self._memory_limit_bytes:
            self.kill()
            limit = self._memory_limit_bytes / (1 << 30)
            raise PeerEnded("out-of-memory", f"it used more than {limit:.1f} GiB of the host's memory")

    @property
    def pids(self) -> tuple[int, ...]:
        """The process and all that it started, as far as the system tells."""
        return (self.process.pid, *descendants(self.process.pid))

    # --- ending ----------------------------------------------------------------------------------------

    def _death(self) -> PeerEnded:
        """How a child that closed its reports ended."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return PeerEnded("protocol-violation", "it closed the harness's own pipe")
        self._turn(0)
        if code < 0:
            name = signal_name(-code)
            hint = {"SIGSEGV": ": it touched memory that is not its own", "SIGKILL": ": most likely out of memory"}
            return PeerEnded("crashed", f"the process was ended by {name}{hint.get(name, '')}")
        return PeerEnded("crashed", f"the process ended itself with exit status {code}")

    def signal_end(self) -> None:
        """Tell the child and all that it started to end, without waiting for it."""
        _signal_end(self.process, self.init)

    def kill(self) -> None:
        """End the child and all that it started, now; safe to call again."""
        _kill(self.process, self.init)

    def close(self) -> None:
        """End the child and close every descriptor."""
        self.kill()
        self._turn(0)
        self._selector.close()
        for descriptor in (self._orders_fd, self._reports_fd):
            os.close(descriptor)
        assert self.process.stdout is not None
        self.process.stdout.close()


def signal_name(number: int) -> str:
    """As SIGKILL; a signal without a name is its number."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _signal_end(process: subprocess.Popen[bytes], init: int | None = None) -> None:
    """Its process group; or the init of its namespaces, whose parent then waits until all in them are gone."""
    try:
        if init is not None and process.poll() is None:
            os.kill(init, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _kill(process: subprocess.Popen[bytes], init: int | None = None) -> None:
    _signal_end(process, init)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        return  # the kernel is still tearing down its device context; it has been told


def descendants(pid: int) -> list[int]:
    """The processes that one started, and theirs; none where the system does not tell."""
    found = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(each) for each in listing.read_text().split()]
        except OSError:
            continue  # it ended just now
        for child in children:
            found += [child, *descendants(child)]
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a child that no Peer holds yet, and close its prints."""
    _kill(process)
    assert process.stdout is not None
    process.stdout.close()


def used_bytes(pids: Sequence[int], enough: int) -> int:
    """Memory of a process and all that it started; above `enough`, without counting shared pages more than once."""
    unmapped = unmapped_bytes(pids)
    resident = sum(map(resident_bytes, pids)) + unmapped
    if resident <= enough or len(pids) == 1:
        return resident
    return sum(map(proportional_bytes, pids)) + unmapped


def unmapped_bytes(pids: Sequence[int]) -> int:
    """Unnamed files in memory (memfd) that processes hold open, beyond what is resident of shared memory in them."""
    sizes: dict[int, int] = {}
    for pid in pids:
        for found in _open_files(pid):
            if found.st_dev == _memory_device():
                sizes[found.st_ino] = found.st_blocks * 512
    held = sum(sizes.values())
    return max(0, held - sum(map(_shared_bytes, pids))) if held else 0


def _open_files(pid: int) -> Iterator[os.stat_result]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return  # it has ended, or the system does not tell
    for name in names:
        try:
            yield os.stat(f"{folder}/{name}")
        except OSError:
            continue  # it was closed just now


@functools.cache
def _memory_device() -> int | None:
    """Where the system keeps unnamed files in memory, if it has any."""
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create("podium-look")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def _shared_bytes(pid: int) -> int:
    """Shared memory that is resident in a process; 0 where the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def proportional_bytes(pid: int) -> int:
    """A process's memory with its share of shared pages; all of its resident memory where the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return resident_bytes(pid)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def pipes() -> tuple[int, int, int, int]:
    """(child reads orders, referee writes orders, referee reads reports, child writes reports)."""
    child_orders, orders = os.pipe()
    try:
        reports, child_reports = os.pipe()
    except OSError:
        shut((child_orders, orders))
        raise
    return child_orders, orders, reports, child_reports


def shut(descriptors: Sequence[int]) -> None:
    """Close descriptors that a child has inherited."""
    for descriptor in descriptors:
        os.close(descriptor)
