"""Does Podium survive what is submitted to it? Runs kernels that crash, hang, flood, fork and leak, one after another.

    python benchmarks/soak.py [--count 500] [--isolation none] [--output benchmarks/results/NAME.md]

After each: no process, descriptor, segment or file may be left (see leftovers.py for what counts). At the end: the
referee's memory must not have grown, and an honest kernel must pass and be recorded. On the CPU device, on the smallest
problem there is. Exit status 1 otherwise. `--isolation none` shows what the count finds where nothing is held back.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from leftovers import Place, machine, settle_in

from harness.evaluate import Request, evaluate
from harness.problem import load_problem
from harness.processes.isolation import Isolation, Limits
from harness.record import Record
from harness.submission import read_submission
from leaderboard.store import open_store

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = ROOT / "benchmarks" / "problems" / "spin"
HONEST = ROOT / "benchmarks" / "submissions" / "spin" / "triton_spin.py"
DEADLINE_S, MEMORY_BYTES = 4, 2 << 30
MOST_GROWTH_KIB = 2048
KERNEL = "def custom_kernel(data):\n    "
NASTY = {
    "abort at import": "import os\nos.abort()\n",
    "bad address": f"import ctypes\n{KERNEL}ctypes.string_at(0)\n",
    "exit with success": f"import os\n{KERNEL}os._exit(0)\n",
    "exception": f"{KERNEL}raise ValueError('\\x1b[31mno' * 1000)\n",
    "hang at import": "while True: pass\n",
    "hang in a call": f"{KERNEL}while True: pass\n",
    "deaf sleep": f"""
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))
{KERNEL}time.sleep(1e6)
""",
    "flood of prints": """
import os
for _ in range(2000):
    os.write(1, b"x" * 65536)
raise SystemExit(3)
""",
    "flood of reports": """
import os
for descriptor in range(3, 30):
    try:
        os.write(descriptor, b"{}" * 100000 + b"\\n")
    except OSError:
        pass
""",
    "daemons": """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
raise SystemExit(0)
""",
    "children that hold the pipes": """
import os, time
for _ in range(20):
    if os.fork() == 0:
        time.sleep(600)
os._exit(1)
""",
    "threads": f"""
import threading, time
for _ in range(200):
    threading.Thread(target=time.sleep, args=(600,)).start()
{KERNEL}return None
""",
    "memory without end": f"kept = []\n{KERNEL}\n    while True: kept.append(b'x' * (1 << 26))\n",
    "files in memory without end": f"""
import os
{KERNEL}
    while True:
        with open(os.dup(os.memfd_create("soak")), "wb") as file: file.write(bytes(1 << 26))
""",
    "files": f"import tempfile\nfor _ in range(200): tempfile.mkstemp()\n{KERNEL}return 1\n",
    "descriptors": f"import os\n{KERNEL}\n    while True: os.dup(1)\n",
    "shared memory": f"""
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
shared_memory.SharedMemory(create=True, size=1 << 20)
{KERNEL}return 1
""",
    "System V memory": f"""
import ctypes
if ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) < 0:
    raise OSError("none")
{KERNEL}return 1
""",
    "sockets": f"""
import socket
held = [socket.socket(socket.AF_UNIX) for _ in range(100)]
held[0].bind("here")
{KERNEL}return 1
""",
    "signal to the init": f"""
import os, signal
{KERNEL}
    if (os.getpid(), os.getppid()) == (2, 1):
        os.kill(1, signal.SIGKILL)
    return 1
""",
    "wrong": f"import torch\n{KERNEL}return torch.zeros(3)\n",
}


@dataclass(frozen=True)
class Run:
    """One submission's."""

    name: str
    verdict: str
    seconds: float
    left: tuple[str, ...]
    memory_kib: int
    """The referee's resident memory after it."""


def resident_kib() -> int:
    """This process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10


def main() -> None:
    """Run them, look after each, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--isolation", choices=["auto", "none"], default="auto")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    place = settle_in()
    runs = soak(place, options.count, options.isolation)
    honest, is_recorded = submit_honest(place, options.isolation)
    text = report(place, runs, honest, is_recorded)
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    is_well = is_recorded and growth_kib(runs) < MOST_GROWTH_KIB and not any(run.left for run in runs)
    sys.exit(not is_well)


def soak(place: Place, count: int, isolation: Isolation) -> list[Run]:
    """So many of them, in turns, each a file that was not there before."""
    problem, file = load_problem(PROBLEM), place.folder / "kernel.py"
    limits = Limits(DEADLINE_S, DEADLINE_S, DEADLINE_S, MEMORY_BYTES, isolation)
    runs: list[Run] = []
    for number in range(count):
        name = list(NASTY)[number % len(NASTY)]
        file.write_text(f"{NASTY[name]}# {number}\n")
        before, start = place.found(), time.monotonic()
        record = evaluate(Request(problem, read_submission(file, "soak"), "test", "cpu", place.caches, limits=limits))
        seconds = time.monotonic() - start
        left = tuple(place.left_since(before))
        runs.append(Run(name, record.outcome.verdict, seconds, left, resident_kib()))
        print(f"{number + 1:4d} {name}: {record.outcome.verdict} in {seconds:.1f} s", *left, flush=True)
    return runs


def submit_honest(place: Place, isolation: Isolation) -> tuple[Record, bool]:
    """The record of one more, an honest one, and whether it passed and can be read back."""
    request = Request(
        load_problem(PROBLEM), read_submission(HONEST, "soak"), "leaderboard", "cpu", place.caches,
        limits=Limits(isolation=isolation),
    )  # fmt: skip
    honest = evaluate(request)
    store = open_store(f"sqlite:///{place.folder / 'soak.db'}")
    store.add(honest)
    is_recorded = store.get(honest.id) == honest and honest.outcome.verdict == "passed"
    store.close()
    return honest, is_recorded


def fifths_kib(runs: Sequence[Run]) -> list[float]:
    """The referee's memory, the mean of each fifth of the runs."""
    edges = [len(runs) * index // 5 for index in range(6)]
    return [
        statistics.fmean(run.memory_kib for run in runs[low:high] or runs) for low, high in itertools.pairwise(edges)
    ]


def growth_kib(runs: Sequence[Run]) -> float:
    """From the second fifth to the last: in the first, what is used the first time is loaded."""
    return fifths_kib(runs)[-1] - fifths_kib(runs)[1]


def report(place: Place, runs: Sequence[Run], honest: Record, is_recorded: bool) -> str:
    """All of it, in Markdown."""
    left = [f"{run.name}: {re.sub('[0-9]+', 'N', each)}" for run in runs for each in run.left]
    fifths = ", ".join(f"{each:,.0f}" for each in fifths_kib(runs))
    software = honest.software
    view = "in namespaces of its own" if place.is_alone else "on the machine, those of this program and its users"
    lines = [
        f"# Soak: {len(runs)} submissions that crash, hang, flood, fork or leak\n",
        f"{datetime.now(UTC):%Y-%m-%d}, CPU device ({machine(honest.device.model)}), Podium {software.podium}, Python "
        f"{software.python}, torch {software.torch}, Triton {software.triton}. Made by `python benchmarks/soak.py`: "
        f"one process is the referee of all, deadlines are {DEADLINE_S} s, memory is {MEMORY_BYTES >> 30} GiB. "
        f"Around each submission: {', '.join(layer.name for layer in honest.isolation if layer.applied)}.\n",
        f"- **Left behind: {len(left)}** processes, descriptors, segments or files, looked for {view} after each.",
        f"- **The referee's memory: {growth_kib(runs):+.0f} KiB** from the second fifth to the last. Means of each "
        f"fifth in KiB: {fifths}.",
        f"- **Number {len(runs) + 1}, honest: {'recorded' if is_recorded else 'not recorded'}** "
        f"({honest.outcome.verdict}).",
        f"- Compile caches kept: those of {len(list(place.caches.iterdir()))} submissions.\n",
        "| submission | runs | ends | median s | longest s |\n| --- | --- | --- | --- | --- |",
        *(_row(name, [run for run in runs if run.name == name]) for name in NASTY),
        *(f"\n{times} × left by {each}" for each, times in Counter(left).items()),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, runs: Sequence[Run]) -> str:
    verdicts = ", ".join(dict.fromkeys(run.verdict for run in runs))
    seconds = [run.seconds for run in runs] or [0.0]
    return f"| {name} | {len(runs)} | {verdicts} | {statistics.median(seconds):.1f} | {max(seconds):.1f} |"


if __name__ == "__main__":
    main()
