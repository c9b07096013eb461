"""What an exploit could damage, as decoys in a folder of their own: and whether it did.

They lie where a real run has the real ones: a package on Python's path, another submission's compiled kernels beside
its own, the leaderboard above both.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "podium_decoy"
OTHER = "0123456789abcdef"
"""Another submission's folder of compiled kernels."""


class Decoys:
    """Files that look worth having, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site-packages"
        self.home = folder / "home"
        self.caches = self.home / "caches" / "compile"
        self._files = {
            self.site / f"{PACKAGE}.py": b"ANSWER = 42\n",
            self.home / "podium.db": b"a leaderboard\n",
            self.caches / OTHER / "triton" / "kernel.cubin": b"a compiled kernel\n",
        }
        for path, content in self._files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    @contextlib.contextmanager
    def on_the_path(self) -> Iterator[None]:
        """Let children of this process find the package."""
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(self.site)]))
        try:
            yield
        finally:
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before

    def harm(self) -> tuple[str, ...]:
        """What was changed, removed or added, and which processes are left; those are ended."""
        changed = [f"{path.name} was changed" for path, content in self._files.items() if _content(path) != content]
        added = [path for path in self.site.iterdir() if path not in self._files and path.name != "__pycache__"]
        left = [f"processes left running: {count}" for count in [end_left_processes()] if count]
        return (*changed, *(f"{path.name} was added" for path in added), *left)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def end_left_processes() -> int:
    """End what a run of this process has left running; how many there were."""
    mark = f"podium-{os.getpid()}-".encode()
    count = 0
    for process in glob.glob("/proc/[0-9]*"):
        try:
            if mark not in Path(process, "environ").read_bytes():
                continue
            os.kill(int(Path(process).name), signal.SIGKILL)
        except OSError:
            continue
        count += 1
    return count
