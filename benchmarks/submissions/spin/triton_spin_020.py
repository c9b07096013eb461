#!POPCORN leaderboard spin
"""One warp that watches the SM's clock until `MORE * ticks` cycles have passed, then adds one.

The clock is read in a loop, so the spin ends up to one reading, some tens of cycles, late.
"""

import torch
import triton
import triton.language as tl

MORE = 1.020
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def custom_kernel(data):
    """float32 x + 1, after the spin. In Triton's interpreter, where there is no clock, at once."""
    x, ticks = data
    if not INTERPRETED.value and (torch.version.hip or not x.is_cuda):
        raise RuntimeError("this kernel reads the clock of an NVIDIA GPU; here is none")
    out = torch.empty_like(x)
    spin_kernel[(1,)](x, out, round(MORE * ticks), x.numel(), num_warps=1)
    return out


@triton.jit
def clock():
    """The SM's cycle counter. Impure: every call reads it anew, where it stands."""
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["ticks"])
def spin_kernel(x_ptr, out_ptr, ticks, N: tl.constexpr):
    """Load, spin, add, store: the loads are under way while the clock runs."""
    offsets = tl.arange(0, N)
    x = tl.load(x_ptr + offsets)
    if not INTERPRETED:
        start = clock()
        now = start
        while now - start < ticks:
            now = clock()
    tl.store(out_ptr + offsets, x + 1)
