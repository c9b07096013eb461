"""What a submission launches, for people who wonder: a remark by its own process, on which nothing depends."""

from __future__ import annotations

import secrets

from harness import wire
from harness.cases import Case
from harness.errors import PodiumError
from harness.processes.court import NoRoom
from harness.processes.pair import Pair
from harness.processes.peer import PeerEnded, printable
from harness.record import Kernel

START_S = 60.0
"""A profiler's first use takes some seconds."""


def list_kernels(pair: Pair, case: Case) -> tuple[Kernel, ...] | str:
    """Those of one call on a case's own contents, in order of first launch; why they cannot be told otherwise."""
    limits = pair.setting.limits
    try:
        with pair.staged(case, 1):
            pair.court.ask(wire.Renew((0,), secrets.randbits(62), keep_first=True), wire.Renewed)
            pair.court.ask(wire.Deal(pair.seat), wire.Dealt)
            # What a first call compiles and sets up is none of its launches.
            for order, answer in ((wire.Call(0), wire.Called), (wire.Inventory(0), wire.Inventoried)):
                report = pair.contestant(order, answer, timeout_s=limits.compile_s + START_S)
                if isinstance(report, wire.Failed):
                    return printable(report.message)
    except (PeerEnded, NoRoom, PodiumError) as ended:
        return printable(str(ended))
    counted = list(zip(report.names, report.launches, strict=False))[: wire.MOST_KERNELS]  # its own word
    return tuple(Kernel(_line(name), max(1, count)) for name, count in counted)


def _line(name: str) -> str:
    """A name as one line of bounded length."""
    return " ".join(printable(name[: wire.MAX_NAME]).split())
