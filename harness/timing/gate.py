"""The gate: one page of memory that referee and contestant share, and the referee's stopwatch on it.

The contestant's GPU queue waits until the release word reaches the batch's generation; the GPU itself
writes the generation to the done word when all of the batch has run. Between the two, the referee looks
twice at its own clock: that difference is the external reading, and nothing in the contestant's process
takes part in it.
"""

from __future__ import annotations

import mmap
import time

PAGE_BYTES = 4096
RELEASE, DONE, EXPIRED = 0, 16, 32
"""Indices of the three int32 words, a cache line apart: written by the referee, by the GPU, and by a gate that
was not opened within its polls."""

_SPIN = 2000
"""Looks at the done word between two looks at the clock's limit."""
_WAKE_EARLY_NS = 2_000_000
"""A sleep may end this much late; before a batch is due by more, sleep, and spin only then."""


class Page:
    """The referee's mapping of the shared page behind a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._mapping = mmap.mmap(descriptor, PAGE_BYTES)
        self._words = memoryview(self._mapping).cast("i")

    def reading_ns(self, generation: int, *, due_ns: float, limit_ns: int) -> int | None:
        """Open the gate for `generation` and wait for the GPU's done-word: nanoseconds between the two.

        `due_ns` is about how long it will take (0 when unknown). None when it took longer than `limit_ns`.
        """
        words, clock = self._words, time.perf_counter_ns
        start = clock()
        words[RELEASE] = generation
        if due_ns > 2 * _WAKE_EARLY_NS:
            time.sleep((due_ns - _WAKE_EARLY_NS) / 1e9)
        while True:
            for _ in range(_SPIN):
                if words[DONE] == generation:
                    return clock() - start
            if clock() - start > limit_ns:
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
