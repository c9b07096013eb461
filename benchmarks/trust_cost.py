"""What does trust cost? Times what a leaderboard run does for that alone, as a share of its wall time.

    python benchmarks/trust_cost.py [--runs 3] [--problems fp4_gemm,…] [--device auto] [--output RESULTS.md]

Not counted is what any honest judge or clock needs, too: fresh contents, judging, batches and the empty ones beside.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

from fidelity import ROOT, TARGETS, table

from harness import wire
from harness.baseline import Baselines
from harness.doctor import choose_device
from harness.evaluate import Request, evaluate
from harness.gates import Gates
from harness.problem import load_problem
from harness.processes.court import Court
from harness.processes.isolation import SANDBOX, Attempts, Report
from harness.processes.sandbox import Settings
from harness.record import Record
from harness.submission import read_submission

LIMIT = 0.15
"""Of the wall time."""
STARTS = 15
BEFORE, EVENTS, ROOF, INTACT, WALLS = (
    "empty gates before it is loaded",
    "gates with events, the second clock",
    "rates of this device, for the floor",
    "inputs as they were dealt",
    "the sandbox, of processes started side by side",
)


@contextlib.contextmanager
def counted(spent_ns: Counter[str]) -> Iterator[None]:
    """Add up what the referee waits for, by feature."""
    read, gate, ask = Baselines.read, Gates.read, Court.ask
    signature = inspect.signature(gate)

    def timed(name: str, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        begin_ns = time.perf_counter_ns()
        try:
            return step(*arguments, **named)
        finally:
            spent_ns[name] += time.perf_counter_ns() - begin_ns

    def reads(*arguments: Any, **named: Any) -> Any:
        return timed(BEFORE, read, *arguments, **named)

    def gates(*arguments: Any, **named: Any) -> Any:
        asked = signature.bind(*arguments, **named)
        asked.apply_defaults()
        if asked.arguments["events"] and not asked.arguments["turn"].by_message:
            return timed(EVENTS, gate, *arguments, **named)
        return gate(*arguments, **named)

    def asks(court: Court, order: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(order, wire.Roof):
            return timed(ROOF, ask, court, order, *arguments, **named)
        report = ask(court, order, *arguments, **named)
        if isinstance(report, wire.Judged):
            spent_ns[INTACT] += report.intact_ns
        return report

    patches = (mock.patch.object(Baselines, "read", reads), mock.patch.object(Gates, "read", gates))
    with patches[0], patches[1], mock.patch.object(Court, "ask", asks):
        yield


def one_run(name: str, device: str, caches: Path) -> tuple[Record, int, Counter[str]]:
    """A fresh leaderboard run: its record, its wall time in ns, and what was spent by feature."""
    folder, file, _ = TARGETS[name]
    spent_ns: Counter[str] = Counter()
    begin_ns = time.perf_counter_ns()
    with counted(spent_ns):
        submission = read_submission(ROOT / file, "podium")
        record = evaluate(Request(load_problem(ROOT / folder), submission, "leaderboard", device, caches))
    return record, time.perf_counter_ns() - begin_ns, spent_ns


def sandbox_ns() -> int:
    """What the walls add to the start of a process: the difference of medians."""
    medians = []
    for layers in ((), SANDBOX):
        taken = []
        for _ in range(STARTS):
            report, attempts = Report(), Attempts()
            asked = Settings(
                report.descriptor, ("/tmp",), ("/dev/null",), layers=layers, attempts=attempts.descriptor
            )  # fmt: skip
            begin_ns = time.perf_counter_ns()
            command = [sys.executable, "-S", "-m", "harness.processes.sandbox", asked.to_json(), "/bin/true"]
            subprocess.run(command, cwd=ROOT, pass_fds=(report.descriptor, attempts.descriptor), check=True)
            taken.append(time.perf_counter_ns() - begin_ns)
            report.close()
            attempts.close()
        medians.append(statistics.median(taken))
    # The interpreter that sets the sandbox up is one more than without: its start is the walls' cost, too.
    return round(medians[1] - medians[0] + _interpreter_ns())


def _interpreter_ns() -> float:
    taken = []
    for _ in range(STARTS):
        begin_ns = time.perf_counter_ns()
        subprocess.run([sys.executable, "-S", "-m", "harness.processes.landlock"], cwd=ROOT, check=True)
        taken.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(taken)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--problems", default=",".join(TARGETS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    device, walls_ns = choose_device(asked.device), sandbox_ns()
    rows, records, worst = [], [], 0.0
    with tempfile.TemporaryDirectory(prefix="podium-cost-") as folder:
        os.chmod(folder, 0o711)
        for name in asked.problems.split(","):
            for number in range(asked.runs + 1):
                record, wall_ns, spent_ns = one_run(name, device, Path(folder))
                records.append(record)
                if record.outcome.verdict != "passed":
                    sys.exit(f"{name}: {record.outcome.verdict}: {record.outcome.message}")
                spent_ns[WALLS] = walls_ns
                share = sum(spent_ns.values()) / wall_ns
                worst = max(worst, share if number else 0.0)  # the first run compiles
                parts = [f"{spent_ns[part] / 1e9:.2f}" for part in (WALLS, BEFORE, EVENTS, INTACT, ROOF)]
                kind = str(number) if number else "cold"
                rows.append([name, kind, f"{wall_ns / 1e9:.1f}", *parts, f"{share:.1%}"])
                print("  ".join(rows[-1]), flush=True)
    titles = ["problem", "run", "wall s", WALLS, BEFORE, EVENTS, INTACT, ROOF, "of the wall"]
    machine, software = records[0].device, records[0].software
    text = "\n".join(
        [
            "# What trust costs",
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, {machine.model}, torch {software.torch}, Triton {software.triton}, Podium "
            f"{software.podium}. Seconds of whole `leaderboard` runs, warm but for the first.",
            "",
            table(titles, rows),
            "",
            f"Most: {worst:.1%} (asked: at most {LIMIT:.0%}).",
            "",
        ]
    )
    print(text)
    if asked.output:
        asked.output.write_text(text)
    sys.exit(worst > LIMIT)


if __name__ == "__main__":
    main()
