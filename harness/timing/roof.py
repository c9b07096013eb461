"""How fast this very device can be: memory and products, each by the fastest of a few ways, in the oracle.

Data sheets tell what a model could do at best; a cap on power or a slice of a device is not in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from harness.timing.flush import Flush

_BYTES = 1 << 30
"""Read and copied: far more than any cache holds."""
_SIZES = {"bf16": 8192, "fp8": 8192, "fp32": 4096}
"""Side of the square matrices, by kind: some ms."""
_REPEATS, _BEST_OF = 3, 3


def memory_bytes_per_s(cache_bytes: int) -> float:
    """Bytes per s, the better of reading and of copying."""
    source = torch.zeros(max(_BYTES, 8 * cache_bytes) // 4, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    flush = Flush(0)
    size_bytes = source.numel() * 4
    read_ns = _best_ns(lambda: flush.read(source))
    copy_ns = _best_ns(lambda: target.copy_(source))
    return float(max(size_bytes / read_ns, 2 * size_bytes / copy_ns) * 1e9)


def operations_per_s(kinds: Sequence[str]) -> dict[str, float]:
    """Operations per s (a multiplication and an addition are two) of a large product, for kinds that torch has."""
    found = {}
    for kind in kinds:
        if kind in _SIZES:
            size = _SIZES[kind]
            with _fast_float32():
                times = [_best_ns(product) for product in _products(kind, size)]
            if times:
                found[kind] = 2.0 * size**3 / min(times) * 1e9
    return found


@contextlib.contextmanager
def _fast_float32() -> Iterator[None]:
    """float32 products on matrix units, as a submission may have them; references are computed without."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _products(kind: str, size: int) -> list[Callable[[], object]]:
    """Ways to multiply two matrices of that kind, each run once; none where this device or torch cannot."""
    if kind == "fp8":
        return [way for way in (_product_fp8(size, fast) for fast in (False, True)) if way is not None]
    left = torch.full((size, size), 0.5, dtype=torch.bfloat16 if kind == "bf16" else torch.float32, device="cuda")
    product = torch.mm(left, left)
    return [lambda: torch.mm(left, left, out=product)]


def _product_fp8(size: int, fast: bool) -> Callable[[], object] | None:
    left = torch.full((size, size), 0.5, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")

    def product() -> object:
        return torch._scaled_mm(left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    try:
        product()
    except (RuntimeError, TypeError, AttributeError):  # no public name for it, and not on every device
        return None
    return product


def _best_ns(step: Callable[[], object]) -> float:
    """The shortest mean of a few in a row, by the device's events, after a first one."""
    step()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times: list[float] = []
    for _ in range(_BEST_OF):
        start.record()
        for _ in range(_REPEATS):
            step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e6 / _REPEATS)
    return min(times)
