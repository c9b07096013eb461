"""What a device is: its name, cache, driver and the few calls that torch does not offer, one file per vendor."""

from __future__ import annotations

import functools
from typing import Any, Protocol

DEFAULT_CACHE_BYTES = 1 << 25
"""What to flush where a device does not tell the size of its last-level cache."""


class GpuDriver(Protocol):
    """Device memory that another process can open. Sizes in bytes; RuntimeError with the driver's code on failure."""

    def allocate(self, size_bytes: int) -> int:
        """An allocation of its own; MemoryError when there is no room."""

    def free(self, pointer: int) -> None:
        """Free what `allocate` gave."""

    def export(self, pointer: int) -> bytes:
        """The handle with which another process opens the allocation."""

    def open(self, handle: bytes) -> int:
        """The pointer of another process's allocation, in this one."""

    def close(self, pointer: int) -> None:
        """Undo `open`."""


@functools.cache
def gpu_driver() -> GpuDriver:
    """The driver calls of this machine's GPU vendor. Needs an initialised torch device."""
    import torch

    if torch.version.hip:
        from harness.devices import rocm

        return rocm.driver()
    from harness.devices import cuda

    return cuda.driver()


def describe_device(kind: str) -> dict[str, Any]:
    """The fields of record.Device for the device that torch sees as current."""
    if kind == "cpu":
        from harness.devices import cpu

        return cpu.describe()
    import torch

    if torch.version.hip:
        from harness.devices import rocm

        return rocm.describe()
    from harness.devices import cuda

    return cuda.describe()
