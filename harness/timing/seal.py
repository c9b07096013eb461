"""Copying an output to where the oracle reads it, by a kernel of our own.

torch has the driver copy, which takes ways of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from harness.processes.sharing import span_bytes, torch_copy

_BLOCK = 1024
_ALIGNMENT_BYTES = 16
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@triton.jit(do_not_specialize=["source", "target", "count"])
def _copy_kernel(source, target, count, block: tl.constexpr):
    """Copy `count` int32 words between addresses that are multiples of 16 bytes."""
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    words = tl.load(tl.multiple_of(source, 16) + offsets, mask=offsets < count)
    tl.store(tl.multiple_of(target, 16) + offsets, words, mask=offsets < count)


def copy(place: torch.Tensor, output: torch.Tensor) -> None:
    """Enqueue copying `output` to `place`, both of one form: by our kernel, or by torch where that cannot do it."""
    source = _words(output)
    target = _words(place)
    if source is None or target is None:
        torch_copy(place, output)
        return
    count = source.numel()
    _copy_kernel[(triton.cdiv(count, _BLOCK),)](source, target, count, _BLOCK, num_warps=4)


def _words(tensor: torch.Tensor) -> torch.Tensor | None:
    """A plain tensor's memory as int32 [n]; None where it has gaps, an odd size or place, or is more than memory."""
    if type(tensor) not in _PLAIN or tensor.is_conj() or tensor.is_neg():
        return None
    size_bytes = span_bytes(tensor)
    if size_bytes != tensor.numel() * tensor.element_size() or size_bytes == 0 or size_bytes % 4:
        return None
    try:
        if tensor.data_ptr() % _ALIGNMENT_BYTES:
            return None
    except RuntimeError:  # a transform's stand-in for a tensor has no memory
        return None
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.int32)
