"""NVIDIA GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.devices.driver import IpcDriver, Names

_NAMES = Names("cuMemAlloc_v2", "cuMemFree_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", 2)


def driver() -> IpcDriver:
    """The CUDA driver API (libcuda), on torch's primary context, which must be current."""
    return IpcDriver(ctypes.CDLL("libcuda.so.1"), _NAMES)


def describe() -> dict[str, Any]:
    """The fields of record.Device for torch's current CUDA device."""
    import torch

    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "kind": "cuda",
        "model": facts.name,
        "memory_bytes": facts.total_memory,
        "cache_bytes": facts.L2_cache_size,
        "units": facts.multi_processor_count,
        "architecture": f"sm_{facts.major}{facts.minor}",
        "driver": _driver_version(),
    }


def _driver_version() -> str | None:
    try:
        with open("/proc/driver/nvidia/version") as version:
            words = version.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)
