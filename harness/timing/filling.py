"""The folder of the harness's compiled kernels, filled: by the oracle, before any submission runs."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

from harness.processes.isolation import memory_file
from harness.timing.flush import Flush
from harness.timing.gate import PAGE_BYTES
from harness.timing.rehearsal import rehearsed_queue

TRITON_FOLDER = "TRITON_CACHE_DIR"
"""Triton looks at it whenever it compiles."""


def fill(folder: str, cache_bytes: int) -> None:
    """Compile all kernels of a queue, and keep them in `folder`. On a device that can have no queue: some of them."""
    page = memory_file("podium-rehearsal")
    try:
        os.ftruncate(page, PAGE_BYTES)
        with compiling_into(folder), contextlib.suppress(RuntimeError):  # every contestant will say so
            rehearsed_queue(page, Flush(cache_bytes)).close()
    finally:
        os.close(page)
    gc.collect()


@contextlib.contextmanager
def compiling_into(folder: str) -> Iterator[None]:
    """Have Triton look for compiled kernels in this folder, and keep them there."""
    before = os.environ.get(TRITON_FOLDER)
    os.environ[TRITON_FOLDER] = folder
    try:
        yield
    finally:
        os.environ.pop(TRITON_FOLDER)
        if before is not None:
            os.environ[TRITON_FOLDER] = before
