"""Notices saves of one file, however an editor makes them: in steps, by renaming another file over it, or in place."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.submission import MAX_BYTES

POLL_S = 0.2

Stamp = tuple[int, ...]


def changes(path: Path, wait: Callable[[float], object] = time.sleep) -> Iterator[None]:
    """Once for the content that is there (at once) and once for each new content, without end.

    New is what has another hash than the content before and has been still for one poll. A file that is not there
    is waited for; one that cannot be read counts as a content of its own, so that its reader can say why.
    `wait` takes seconds.
    """
    before, settled = _stamp(path), None
    known = ""
    while True:
        now = _stamp(path)
        if now is not None and now == before and now != settled:
            content = _fingerprint(path)
            if content is not None and _stamp(path) == now:  # else it was written while it was read: look again
                settled = now
                if content != known:
                    known = content
                    yield
        before = now
        wait(POLL_S)


def _stamp(path: Path) -> Stamp | None:
    """What changes with every write, rename and chmod; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _fingerprint(path: Path) -> str | None:
    """The content's hash, or why it cannot be read; None when the file has just gone."""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(MAX_BYTES + 1)).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
