"""Emptying the cache between calls, by reading: written lines would be written back on the timed kernel's time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 8192


@triton.jit(do_not_specialize=["count"])
def _read_kernel(source, sink, count, block: tl.constexpr):
    """Read `count` zeros; the store never happens, and the compiler cannot know."""
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    total = tl.sum(tl.load(source + offsets, mask=offsets < count, other=0))
    if total != 0:
        tl.store(sink, total)


class Flush:
    """Twice the last-level cache (`cache_bytes`) of zeros on the device, to be read."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._zeros = torch.zeros(2 * cache_bytes // 4, dtype=torch.int32, device="cuda")
        self._sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def __call__(self) -> None:
        """Enqueue the reading."""
        self.read(self._zeros)

    def read(self, zeros: torch.Tensor) -> None:
        """Enqueue reading a tensor of zeros, int32 [n]."""
        count = zeros.numel()
        _read_kernel[(triton.cdiv(count, _BLOCK),)](zeros, self._sink, count, _BLOCK)

    def touch(self, zeros: torch.Tensor) -> None:
        """Enqueue reading zeros, int32 [n], into the cache, if they take no more than a quarter of it."""
        if 0 < zeros.numel() * 4 <= self._cache_bytes // 4:
            self.read(zeros)
