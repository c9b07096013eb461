"""Where a run is, for whoever watches it, and how long each of its stages took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a run is: shown, never stored."""

    stage: str
    case: str = ""
    done: int = 0
    total: int = 0
    batches: int = 0


Listener = Callable[[Progress], None]


class Stages:
    """Wall time by stage; the listener hears of each one as it begins."""

    def __init__(self, listen: Listener) -> None:
        self.taken_ns: dict[str, int] = {}
        self._listen = listen
        self._name = ""
        self._since_ns = 0

    def begin(self, name: str) -> None:
        """The stage before ends here, and this one begins."""
        self.end()
        self._name = name
        self._listen(Progress(name))

    def end(self) -> None:
        """The last stage ends here."""
        now = time.perf_counter_ns()
        if self._name:
            self.taken_ns[self._name] = self.taken_ns.get(self._name, 0) + now - self._since_ns
        self._name, self._since_ns = "", now
