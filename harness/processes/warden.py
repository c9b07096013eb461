"""The warden: outlives a referee that is killed, and then ends what the referee had started.

It waits on a pipe from the referee. Lines name process groups to end (`+PGID`), groups that have ended
(`-PGID`) and folders to remove (`/path`). End of file means that the referee is gone, however it went.

    python -m harness.processes.warden < PIPE
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Warden:
    """The referee's handle on its warden process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # without a warden the run is as good; only a kill would leave something behind

    def watch(self, group: int) -> None:
        """End this process group if the referee dies."""
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """The group has ended: its number may come to belong to somebody else."""
        self._tell(f"-{group}")

    def remove(self, folder: Path) -> None:
        """Remove this folder in the end."""
        self._tell(str(folder))

    def close(self) -> None:
        """Let the warden end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.wait()


def serve() -> None:
    """Remember until end of file, then clean up."""
    groups: set[int] = set()
    folders: list[str] = []
    for raw in sys.stdin.buffer:
        line = raw.decode(errors="replace").rstrip("\n")
        if line.startswith("+"):
            groups.add(int(line[1:]))
        elif line.startswith("-"):
            groups.discard(int(line[1:]))
        elif line.startswith("/"):
            folders.append(line)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    serve()
