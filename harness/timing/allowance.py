"""A time that every flush is given, whatever it takes: how long the memory takes is no part of a call's time.

Reading the cache's size twice takes tens of microseconds, some tenths of one more or less from call to call, and more
where the call before it left written lines behind, which it has to drive out. A kernel behind the flush waits for the
rest of the time on the GPU's own clock, so that neither is seen in a reading.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language import core

if torch.version.hip:
    from triton.language.extra.hip import memrealtime

    @core.extern
    def _ticks(_semantic=None):
        """The clock, waited for: on gfx9, Triton's own (3.6 to 3.9) waits for vector memory, which it is not."""
        if _semantic.builder.options.arch.startswith(("gfx11", "gfx12")):
            return memrealtime(_semantic=_semantic)
        asm = "s_memrealtime $0\n\ts_waitcnt lgkmcnt(0)"
        return core.inline_asm_elementwise(asm, "=r", [], dtype=core.int64, is_pure=False, pack=1, _semantic=_semantic)

    _TICKS_PER_NS = 0.1
    """s_memrealtime counts at 100 MHz."""
else:
    from triton.language.extra.cuda import globaltimer as _ticks  # type: ignore[no-redef]

    _TICKS_PER_NS = 1.0
    """%globaltimer counts nanoseconds, in steps of some tens."""

_MOST_LOOKS = 10_000_000
"""Looks at the clock before a wait gives up, a second or so: where it began is written in memory that a kernel may
overwrite."""


@triton.jit
def _begin_kernel(begun):
    tl.store(begun, _ticks())


@triton.jit(do_not_specialize=["ticks", "looks"])
def _wait_kernel(begun, ticks, looks):
    start = tl.load(begun)
    look = 0
    while (_ticks() - start < ticks) & (look < looks):
        look += 1


class Allowance:
    """One queue's: `begin()`, whatever may take its time, `wait(ns)`."""

    def __init__(self) -> None:
        self._begun = torch.zeros(1, dtype=torch.int64, device="cuda")

    def begin(self) -> None:
        """Enqueue looking at the GPU's clock."""
        _begin_kernel[(1,)](self._begun, num_warps=1)

    def wait(self, allowed_ns: float) -> None:
        """Enqueue waiting until `allowed_ns` have gone by since; nothing happens if they have."""
        _wait_kernel[(1,)](self._begun, round(allowed_ns * _TICKS_PER_NS), _MOST_LOOKS, num_warps=1)
