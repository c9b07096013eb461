"""What runs leave behind: of all processes, descriptors, segments and files, those that are this program's.

`settle_in` starts the program again inside namespaces, by the sandbox that submissions run in: every process, System V
object and file in /dev/shm that is to be seen from there is its own, so that other work on the machine neither fakes a
leak nor hides one. Where the system gives none, processes count that descend from it or name its folder in their
environment, and segments of its users.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from harness.processes.isolation import NOBODY
from harness.processes.sandbox import Settings

ROOT = Path(__file__).resolve().parents[1]
SETTLED_S = 10.0
"""What was told to end may take so long to be gone."""
_FOLDER, _SAID = "PODIUM_LEFTOVERS_FOLDER", "PODIUM_LEFTOVERS_SAID"
_CACHE = re.compile(r"[0-9a-f]{16}")
"""A submission's folder of compiled kernels, which is meant to stay."""


@dataclass(frozen=True)
class Place:
    """Where this program and all that it starts may leave something."""

    folder: Path
    """Its own, removed in the end."""
    layers: frozenset[str]
    """What the sandbox could apply to it."""

    @property
    def temporary(self) -> Path:
        """The folder for temporary files of all its processes."""
        return self.folder / "tmp"

    @property
    def caches(self) -> Path:
        """The folder for compile caches."""
        return self.folder / "caches"

    @property
    def is_alone(self) -> bool:
        """Whether all that is to be seen of the machine is its own."""
        return self.layers >= {"namespaces", "own /proc", "own /dev/shm"}

    def found(self) -> frozenset[str]:
        """All that is there now, each in a few words."""
        return frozenset((*self._processes(), *_descriptors(), *self._objects(), *self._files()))

    def left_since(self, before: Set[str]) -> list[str]:
        """What is there and was not, after a while in which what is about to end may do so. Processes are ended."""
        deadline = time.monotonic() + SETTLED_S
        while (left := self.found() - before) and time.monotonic() < deadline:
            time.sleep(0.05)
        for each in left:
            if each.startswith("process "):
                _end(int(each.split()[1]))
        return sorted(left)

    def _processes(self) -> Iterator[str]:
        table = _process_table()
        for pid, (name, _) in table.items():
            if pid not in (1, os.getpid()) and (self.is_alone or self._is_ours(pid, table)):
                yield f"process {pid} ({name})"

    def _is_ours(self, pid: int, table: Mapping[int, tuple[str, int]]) -> bool:
        parent = pid
        while parent in table:
            parent = table[parent][1]
            if parent == os.getpid():
                return True
        try:
            return os.fsencode(self.folder) in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False  # it has ended, or is another user's

    def _objects(self) -> Iterator[str]:
        """System V memory, semaphores and queues, and what lies in /dev/shm."""
        users = {os.getuid(), NOBODY} if os.getuid() == 0 else {os.getuid()}
        for kind in ("shm", "sem", "msg"):
            head, *rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()]
            for row in rows:
                if self.is_alone or int(row[head.index("uid")]) in users:
                    yield f"System V {kind} {row[1]}"
        for path in Path("/dev/shm").iterdir():
            try:
                if self.is_alone or path.lstat().st_uid in users:
                    yield str(path)
            except FileNotFoundError:
                continue

    def _files(self) -> Iterator[str]:
        """Temporary files but for locks, and what is in the compile caches and no submission's."""
        yield from (str(path) for path in self.temporary.iterdir() if not path.name.startswith("podium-lock-"))
        if self.caches.exists():
            yield from (str(path) for path in self.caches.iterdir() if not _CACHE.fullmatch(path.name))


def settle_in() -> Place:
    """A place to go on in. The process that asks first waits for the one that goes on there, and ends as it does."""
    if _FOLDER not in os.environ:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        with tempfile.TemporaryDirectory(prefix="podium-leftovers-") as folder:
            status = _go_on(Path(folder))
        sys.exit(status if status >= 0 else 128 - status)
    place = Place(Path(os.environ.pop(_FOLDER)), _read_layers(int(os.environ.pop(_SAID))))
    os.environ["TMPDIR"] = tempfile.tempdir = str(place.temporary)
    return place


def _go_on(folder: Path) -> int:
    """Run this program again, in a folder and as far as can be in namespaces: how it ended."""
    folder.chmod(0o755)  # submissions may be run as somebody else
    (folder / "tmp").mkdir()
    said, report = os.pipe()
    asked = Settings(report, layers=("namespaces",))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    program = [sys.executable, *sys.orig_argv[1:]]
    with subprocess.Popen(
        [sys.executable, "-S", "-m", "harness.processes.sandbox", asked.to_json(), *program],
        pass_fds=(said, report),
        env={**os.environ, "PYTHONPATH": path, _FOLDER: str(folder), _SAID: str(said)},
    ) as inside:
        try:
            os.close(said)
            os.close(report)
            return inside.wait()
        finally:
            inside.kill()


def _read_layers(said: int) -> frozenset[str]:
    with os.fdopen(said) as lines:
        found = [json.loads(line) for line in lines.read().splitlines()]
    return frozenset(name for each in found if isinstance(each, list) for name, applied, _ in each if applied)


def _process_table() -> dict[int, tuple[str, int]]:
    """Name and parent of every process, ended ones that nobody has collected among them."""
    table = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (process / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it ended just now
        table[int(process.name)] = (head.partition("(")[2], int(tail.split()[1]))
    return table


def _descriptors() -> Iterator[str]:
    """This process's own, and what they lead to."""
    for name in os.listdir("/proc/self/fd"):
        try:
            yield f"descriptor {name} of {os.readlink(f'/proc/self/fd/{name}')}"
        except FileNotFoundError:
            continue  # the one that the list was read by


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def machine(model: str) -> str:
    """The machine in a few words: its processor, system and cores."""
    release = re.match(r"\d+\.\d+", platform.release())
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {platform.system()} {release[0] if release else platform.release()}, {cores} cores"
