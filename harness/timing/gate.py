"""The gate: one page of memory that referee and contestant share, and the referee's stopwatch on it.

The contestant's GPU queue waits until the release word reaches the batch's generation; the GPU itself
writes the generation to the done word when all of the batch has run. Between the two, the referee looks
twice at its own clock: that difference is the external reading, and nothing in the contestant's process
takes part in it.
"""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass

PAGE_BYTES = 4096
RELEASE, DONE, EXPIRED = 0, 16, 32
"""Indices of the three int32 words, a cache line apart: written by the referee, by the GPU, and by a gate that
was not opened within its polls."""

_WAKE_EARLY_NS = 2_000_000
"""A sleep may end this much late; before a batch is due by more, sleep, and spin only then."""


@dataclass(frozen=True)
class Reading:
    """What the referee's clock said of one batch."""

    ns: int
    """From release to done."""
    unseen_ns: int
    """How much of that may not be the batch's: while the gate opened and before done was seen, the referee was not
    looking for so long. Some tenths of a microsecond; more where the system had other plans with its core."""


class Page:
    """The referee's mapping of the shared page behind a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._mapping = mmap.mmap(descriptor, PAGE_BYTES)
        self._words = memoryview(self._mapping).cast("i")

    def read(self, generation: int, *, due_ns: float, limit_ns: int) -> Reading | None:
        """Open the gate for `generation` and wait for the GPU's done-word.

        `due_ns` is about how long it will take (0 when unknown). None when it took longer than `limit_ns`.
        """
        words, clock = self._words, time.perf_counter_ns
        start = clock()
        words[RELEASE] = generation
        opened = seen = clock()
        if due_ns > 2 * _WAKE_EARLY_NS:
            time.sleep((due_ns - _WAKE_EARLY_NS) / 1e9)
        while seen - start <= limit_ns:
            is_done = words[DONE] == generation
            now = clock()
            if is_done:
                return Reading(now - start, opened - start + now - seen)
            seen = now
        return None

    def open(self, generation: int) -> None:
        """Let a batch go without reading a clock."""
        self._words[RELEASE] = generation

    def gave_up(self, generation: int) -> bool:
        """Whether the GPU stopped waiting at this generation's gate before it was opened."""
        return bool(self._words[EXPIRED] == generation)

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._mapping.close()
