"""AMD GPUs, through torch's cuda-shaped API."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.devices.driver import IpcDriver, Names, loaded_library

_NAMES = Names("hipMalloc", "hipFree", "hipIpcGetMemHandle", "hipIpcOpenMemHandle", "hipIpcCloseMemHandle", 2)

LAST_LEVEL_CACHE_BYTES = {"gfx942": 256 << 20, "gfx950": 256 << 20, "gfx1100": 96 << 20, "gfx1201": 64 << 20}
"""Infinity Cache by architecture: torch reports the 4 MB L2 in front of it. (AMD CDNA 3, CDNA 4 and RDNA 3
white papers; RDNA 4 product data.)"""


def driver() -> IpcDriver:
    """The HIP runtime that torch has loaded."""
    return IpcDriver(ctypes.CDLL(loaded_library("libamdhip64")), _NAMES)


def describe() -> dict[str, Any]:
    """The fields of record.Device for torch's current HIP device."""
    import torch

    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    architecture = facts.gcnArchName.split(":")[0]
    return {
        "kind": "rocm",
        "model": facts.name,
        "memory_bytes": facts.total_memory,
        "cache_bytes": LAST_LEVEL_CACHE_BYTES.get(architecture, facts.L2_cache_size),
        "units": facts.multi_processor_count,
        "architecture": architecture,
        "driver": None,
    }
