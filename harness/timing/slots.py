"""Empty kernels that bring a call's kernels to each slot of the GPU's queue equally often.

How long a kernel takes to start behind an emptied cache depends on its number on the queue, modulo `SLOTS`: by up to
1.2 us on an H200, alike for every fourth kernel (benchmarks/results/2026-12-03-h200-slots.md); why is not documented. A
call of one number of kernels stays in one slot, of another it alternates between two, and where it begins depends on
all that was enqueued before: that is luck which a process keeps.

Here, one empty kernel goes before every fourth call, so that 16 calls bring each kernel to each slot four times,
however many kernels a call has. Gates of fewer calls begin where the one before them ended (`shift`), and every gate
has a multiple of `SLOTS` kernels (`pads_behind`), if its calls are one.
"""

from __future__ import annotations

SLOTS = 4


def pads_before(place: int) -> int:
    """Empty kernels before the call at this place of a gate, from 0."""
    return 1 if place and place % SLOTS == 0 else 0


def pads_behind(calls: int, ahead: int) -> int:
    """Empty kernels behind a gate that has `ahead` of them before it."""
    gate_and_done = 2
    return -(ahead + gate_and_done + sum(map(pads_before, range(calls)))) % SLOTS


def shift(gate: int, calls: int) -> int:
    """Empty kernels ahead of the n-th gate of its kind in a process."""
    return gate * max(1, calls // SLOTS) % SLOTS
