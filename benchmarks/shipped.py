"""Submit every shipped kernel in leaderboard mode on this machine's device and write what came out as Markdown.

    python benchmarks/shipped.py benchmarks/results/NAME.md [--device cuda] [PROBLEM/NAME.py …]

The tables are those that `podium submit` prints; below each are the wall time of the run by stage, and beside the
external time of each case what the contestant's own events claimed.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path

from rich.console import Console, RenderableType

from harness.doctor import choose_device
from harness.evaluate import Request, evaluate
from harness.problem import load_problem
from harness.record import Record
from harness.submission import marked_baseline, read_submission
from leaderboard.ranking import rank
from leaderboard.tables import board_table, case_table, summary_lines

ROOT = Path(__file__).resolve().parents[1]


def text(*parts: RenderableType) -> str:
    """Renderables as plain text, 110 columns, in a Markdown block."""
    console = Console(file=io.StringIO(), width=110, record=True, highlight=False)
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    return "```\n" + "\n".join(lines).strip("\n") + "\n```\n"


def submit(name: str, device: str, caches: Path) -> tuple[Record, float]:
    """One leaderboard run: its record and its wall time in seconds."""
    path = ROOT / "submissions" / name
    submission = marked_baseline(read_submission(path, "podium"), path.parent.name)
    problem = load_problem(ROOT / "problems" / path.parent.name)
    start = time.perf_counter()
    record = evaluate(Request(problem, submission, "leaderboard", device, caches))
    return record, time.perf_counter() - start


def section(name: str, record: Record, wall_s: float) -> str:
    """One kernel's tables and wall times."""
    stages = ", ".join(f"{stage} {ns / 1e9:.1f} s" for stage, ns in record.stages_ns.items() if ns > 5e7)
    batches = sum(len(case.timing.batches) for case in record.timed if case.timing)
    tables = text(case_table(record), *summary_lines(record))
    return f"## {name}\n\n{tables}\nWall time {wall_s:.1f} s ({stages}); {batches} samples.\n"


def main() -> None:
    """Run, print as it goes, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    shipped = sorted(path.relative_to(ROOT / "submissions").as_posix() for path in ROOT.glob("submissions/*/*.py"))
    records, parts = [], []
    with tempfile.TemporaryDirectory() as caches:
        for name in arguments.kernels or shipped:
            record, wall_s = submit(name, device, Path(caches))
            records.append(record)
            parts.append(section(name, record, wall_s))
            print(parts[-1], flush=True)
    device_facts, software = records[0].device, records[0].software
    versions = f"torch {software.torch}, Triton {software.triton}, {software.runtime}, Python {software.python}"
    head = f"# Shipped kernels on {device_facts.model}\n\n{records[0].created}, {versions}.\n"
    boards = "".join(text(board_table(board)) for board in rank(records))
    arguments.output.write_text("\n".join([head, *parts, "## Boards\n", boards]), encoding="utf-8")
    print(boards)


if __name__ == "__main__":
    main()
