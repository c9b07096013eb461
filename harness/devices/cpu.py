"""The processor, for those without a GPU: right or wrong is the same there, times are a class of their own."""

from __future__ import annotations

import os
import platform
from typing import Any


def describe() -> dict[str, Any]:
    """The fields of record.Device for this machine's processor."""
    return {
        "kind": "cpu",
        "model": _model_name(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cache_bytes": _cache_bytes(),
        "units": os.cpu_count(),
        "architecture": platform.machine(),
        "driver": None,
    }


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo") as information:
            for line in information:
                key, _, value = line.partition(":")
                if key.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _cache_bytes() -> int | None:
    try:
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        return None
    return size if size > 0 else None
