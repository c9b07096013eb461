"""What the start of a kernel takes, whatever it does: the empty gates have an empty kernel in each call's place.

How long a kernel takes to start differs from process to process by more than most things do (H200: two kinds of
process, 0.15 to 0.2 us apart for each kernel on the queue). The call's own first start is in the gates with calls, the
empty kernel's in the gates beside them, so their difference does not have it; what is added again is the same for
every process of a device model.
"""

from __future__ import annotations

import re

START_NS: dict[str, float] = {"H200": 1000.0}
"""An empty kernel's time by the vendor's own trace (CUPTI), cold cache: `benchmarks/fidelity.py`, part accuracy."""
TYPICAL_START_NS = 1000.0
"""Where it was not measured: all times of such a device are wrong by the same small constant."""


def start_ns(model: str) -> float:
    """What an empty kernel takes on a device, by the name that its driver gives; a typical value for unknown ones."""
    known = (time_ns for name, time_ns in START_NS.items() if re.search(rf"\b{name}\b", model))
    return next(known, TYPICAL_START_NS)
