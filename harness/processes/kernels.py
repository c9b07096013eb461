"""The harness's own compiled kernels, in a folder that no submission can write.

A submission may write what it compiles itself, and all its processes find it there. What the harness runs beside it, in
the same processes, must not come from there: an empty kernel exchanged by one process would be read, as slow as it was
made, before the next one loads the submission.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path

from harness.processes.isolation import User, hand_over, prune_caches, visible_devices

NAME = "harness"
"""Among the folders of submissions' compiled kernels."""
KEPT = 4
"""States of the harness and its libraries, and devices, of which the kernels are kept."""
HARNESS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Kernels:
    """The kernels that this state of the harness runs on one device."""

    folder: Path

    @property
    def is_filled(self) -> bool:
        """Whether they are all there. Where one is not after all, a process compiles it for itself."""
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self.folder / "filled"

    def make(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.utime(self.folder)
        prune_caches(self.folder.parent, KEPT)

    def begin_filling(self, user: User | None) -> None:
        """Let the oracle fill it as this user (None: the referee's own), before any submission runs."""
        if user is not None:
            hand_over(self.folder, user)

    def end_filling(self) -> None:
        """They are all there: for everybody to read, and for the referee's user alone to write."""
        hand_over(self.folder, (os.getuid(), os.getgid()))
        for path in (self.folder.parent, self.folder, *self.folder.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        self._mark.touch()


def kernels_for(device: str, folder: Path) -> Kernels:
    """Those for a device (cpu, cuda, cuda:N), kept in `folder`."""
    known = hashlib.sha256()
    for file in sorted(HARNESS.rglob("*.py")):
        known.update(file.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("torch", "triton") if _is_here(name)]
    known.update(repr((device, sorted(visible_devices(device).items()), versions)).encode())
    return Kernels(folder / known.hexdigest()[:16])


def _is_here(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
