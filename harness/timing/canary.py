"""The referee's own kernels, timed beside the submissions': if these move, the device did, whoever is in the way.

A memory-bound one reads a buffer larger than any cache, a compute-bound one multiplies two matrices. Both are torch's,
and run in the oracle, between two batches, on its own events: no submission comes near them.
"""

from __future__ import annotations

import torch

_SIZE = 1024
_AHEAD = 8
"""Products before the first event: while they run, the rest is enqueued."""


class Canaries:
    """A memory-bound and a compute-bound kernel of some 50 to 150 us each. `cache_bytes`: the last-level cache."""

    def __init__(self, cache_bytes: int) -> None:
        self._read = torch.zeros(8 * cache_bytes // 4, dtype=torch.float32, device="cuda")
        self._largest = torch.zeros((), dtype=torch.float32, device="cuda")
        self._left = torch.full((_SIZE, _SIZE), 0.5, dtype=torch.float32, device="cuda")
        self._product = torch.empty_like(self._left)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        self()

    def __call__(self) -> tuple[float, float]:
        """Run both: (memory-bound, compute-bound), each in ns by the device's events. Waits for the device."""
        for _ in range(_AHEAD):
            self._multiply()
        first, middle, last = self._events
        first.record()
        torch.amax(self._read, dim=0, out=self._largest)
        middle.record()
        self._multiply()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(middle) * 1e6, middle.elapsed_time(last) * 1e6

    def _multiply(self) -> None:
        torch.mm(self._left, self._left, out=self._product)
