"""Does Podium survive what is submitted to it? Runs kernels that crash, hang, flood, fork and leak, one after another.

    python benchmarks/soak.py [--count 500] [--output benchmarks/results/NAME.md]

After each: no process, descriptor, segment or file may be left. At the end: the referee's memory must not have grown,
and an honest kernel must pass and be recorded. On the CPU device, on the smallest problem there is. Exit status 1
otherwise.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from harness.evaluate import Request, evaluate
from harness.problem import load_problem
from harness.processes.isolation import Limits
from harness.submission import read_submission
from leaderboard.store import open_store

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = ROOT / "benchmarks" / "problems" / "spin"
HONEST = ROOT / "benchmarks" / "submissions" / "spin" / "triton_spin.py"
LIMITS = Limits(load_s=4, compile_s=4, call_s=4, memory_bytes=2 << 30)
MOST_GROWTH_KIB = 4096
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
    "files": f"import tempfile\nfor _ in range(200): tempfile.mkstemp()\n{KERNEL}return 1\n",
    "descriptors": f"import os\n{KERNEL}\n    while True: os.dup(1)\n",
    "shared memory": f"""
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
shared_memory.SharedMemory("podium-soak", create=True, size=1 << 20)
{KERNEL}return 1
""",
    "System V memory": f"""
import ctypes
if ctypes.CDLL(None).shmget(0x50D1, 1 << 20, 0o1600) < 0:
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


def left() -> Iterator[str]:
    """What is there that a run of this process could have left: processes, descriptors, segments, files."""
    own_scratch = f"podium-{os.getpid()}-".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            is_ours = parent == os.getpid() or own_scratch in (process / "environ").read_bytes()
        except (OSError, ValueError):
            continue  # it ended just now
        if is_ours:
            yield f"process {process.name}"
    yield from (f"descriptor {name}" for name in os.listdir("/proc/self/fd"))
    yield from map(str, Path("/dev/shm").glob("*podium*"))
    yield from (f"segment {line.split()[1]}" for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:])
    yield from (str(path) for path in Path(tempfile.gettempdir()).iterdir() if not path.name.startswith("podium-lock-"))


def resident_kib() -> int:
    """This process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10


def main() -> None:
    """Run them, look after each, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        text, is_well = soak(Path(folder), options.count)
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    sys.exit(not is_well)


def soak(folder: Path, count: int) -> tuple[str, bool]:
    """The report, and whether nothing was left, nothing grew and the honest kernel was recorded."""
    problem, file = load_problem(PROBLEM), folder / "kernel.py"
    ends: dict[str, Counter[str]] = {name: Counter() for name in NASTY}
    found: list[str] = []
    memory: list[int] = []
    for number in range(count):
        name = list(NASTY)[number % len(NASTY)]
        file.write_text(NASTY[name])
        before, start = set(left()), time.monotonic()
        record = evaluate(
            Request(problem, read_submission(file, "soak"), "test", "cpu", folder / "caches", limits=LIMITS)
        )
        ends[name][record.outcome.verdict] += 1
        found += [f"{name}: {each}" for each in sorted(set(left()) - before)]
        memory.append(resident_kib())
        print(f"{number + 1:4d} {name}: {record.outcome.verdict} in {time.monotonic() - start:.1f} s", flush=True)
    honest = evaluate(Request(problem, read_submission(HONEST, "soak"), "leaderboard", "cpu", folder / "caches"))
    store = open_store(f"sqlite:///{folder / 'soak.db'}")
    store.add(honest)
    is_recorded = store.get(honest.id).outcome.verdict == "passed"
    store.close()
    tail = memory[len(memory) // 5 :]
    grown = tail[-1] - tail[0]
    rows = [
        (name, ", ".join(f"{verdict} {times}" for verdict, times in counts.items())) for name, counts in ends.items()
    ]
    lines = [
        f"# Soak: {count} submissions that crash, hang, flood, fork or leak\n",
        f"{datetime.now(UTC):%Y-%m-%d}, CPU device, {platform.system()} {platform.release()}, Python "
        f"{platform.python_version()}. Made by `python benchmarks/soak.py`. Applied: "
        f"{', '.join(layer.name for layer in honest.isolation if layer.applied)}.\n",
        f"Left behind: {len(found)}. Referee's memory from a fifth of the way on: {grown:+d} KiB, of {tail[-1]}. "
        f"The honest kernel: {'recorded' if is_recorded else 'not recorded'}.\n",
        "| submission | ends |\n| --- | --- |",
        *(f"| {name} | {how} |" for name, how in rows),
        *(f"\n- left by {each}" for each in found[:50]),
    ]
    return "\n".join(lines) + "\n", not found and grown < MOST_GROWTH_KIB and is_recorded


if __name__ == "__main__":
    main()
