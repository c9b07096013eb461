"""Emptying the cache between calls, by reading: written lines would be written back on the timed kernel's time.

Lines that a kernel asked to be kept longest give way to such as are asked for alike, and to no others. Once these have
driven out all there was, reading them once more makes them ordinary, so that they give way to the next kernel's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 8192
_POLICIES = ("evict_last", "")
"""How the zeros are read, one time after the other."""


@triton.jit(do_not_specialize=["count"])
def _read_kernel(source, sink, count, block: tl.constexpr, policy: tl.constexpr):
    """Read `count` zeros; the store never happens, and the compiler cannot know."""
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    total = tl.sum(tl.load(source + offsets, mask=offsets < count, other=0, eviction_policy=policy))
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
        for policy in _POLICIES:
            self.read(self._zeros, policy)

    def read(self, zeros: torch.Tensor, policy: str = "") -> None:
        """Enqueue reading a tensor of zeros, int32 [n], with this hint of how long to keep it in the cache."""
        count = zeros.numel()
        _read_kernel[(triton.cdiv(count, _BLOCK),)](zeros, self._sink, count, _BLOCK, policy)

    def touch(self, zeros: torch.Tensor) -> None:
        """Enqueue reading zeros, int32 [n], into the cache, if they take no more than a quarter of it."""
        if 0 < zeros.numel() * 4 <= self._cache_bytes // 4:
            self.read(zeros)
