"""A queue of which every kernel has run once: compiled, or loaded from where it was."""

from __future__ import annotations

from harness.timing.enqueue import Queue
from harness.timing.flush import Flush


def rehearsed_queue(page_descriptor: int, flush: Flush) -> Queue:
    """A queue on the gate's page. RuntimeError where the driver will not map that; OSError where what has to be
    compiled cannot be kept."""
    flush()
    queue = Queue(page_descriptor, flush)
    try:
        queue.rehearse()
    except OSError:
        queue.close()
        raise
    return queue
