"""Can Podium's numbers be believed? Measures Podium itself on this machine's GPU and writes the tables as Markdown.

    python benchmarks/fidelity.py benchmarks/results/NAME.md [--parts rescore,contrast,accuracy,power,tables]
        [--runs 10] [--trials 20] [--problems fp4_gemm,vectoradd] [--device cuda]

rescore    the same file scored N times in fresh `leaderboard` runs: range and sd of the score and of each case, and
           the wall time by stage
contrast   the same file N times through an in-process loop written the common way (event pair, zero-fill flush, no
           gate, mean until its standard error is 0.1 %), each in a fresh process
accuracy   against known truth: a kernel that spins for a set number of the GPU's clock ticks; a copy against the
           memory's measured rate; shipped kernels against CUPTI's (or roctracer's) kernel times, by torch's profiler
power      `compare` on kernels with 0.5 %, 1 % and 2 % more work and on twins: how often is it right?
tables     nothing is measured: the tables of what is there

What was measured is kept beside the Markdown file, as JSON lines: a part that is run again adds to what is there, so
the runs of an expensive table may be spread. Delete the JSON file to begin anew, as after a change of the harness: the
report names each state of it that rows were measured with.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.cases import Case
from harness.contest import Contender, Contest, compare_kernels
from harness.devices.monitor import open_monitor
from harness.doctor import choose_device
from harness.evaluate import Request, evaluate
from harness.problem import Problem, load_problem
from harness.processes.sharing import mapped, tensors
from harness.record import Record
from harness.statistics import by_process, process_means, score, summarise, trimmed_mean
from harness.submission import read_submission
from harness.timing.start import START_NS

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
TARGETS = {
    "mxfp4_moe": ("problems/mxfp4_moe", "submissions/mxfp4_moe/triton_grouped.py", 0.005),
    "mla_decode": ("problems/mla_decode", "submissions/mla_decode/triton_split_kv.py", 0.005),
    "fp4_gemm": ("problems/fp4_gemm", "submissions/fp4_gemm/triton_dot_scaled.py", 0.01),
    "vectoradd": ("benchmarks/problems/vectoradd", "benchmarks/submissions/vectoradd/triton_add.py", 0.01),
    "matmul": ("benchmarks/problems/matmul", "benchmarks/submissions/matmul/torch_matmul.py", 0.01),
}
"""Problem folder, file, and the range of the score that is asked for."""
SPIN = BENCHMARKS / "submissions" / "spin"
SPIN_TICKS = 39_600
"""20 us at 1.98 GHz."""
MORE_WORK = {"triton_spin_005.py": 0.005, "triton_spin_010.py": 0.01, "triton_spin_020.py": 0.02}
POWER_SECONDS = 8.0
"""For the timing, which ends after four heats at the earliest: processes to start come on top, and 20 s are asked for
all of it."""
PROFILED_PROCESSES = 3
"""Fresh processes with the profiler: they have as much luck as others."""
PROFILED_CALLS = 32
PROFILED_PLACES, PROFILED_BYTES = 8, 8 << 30
"""The profiler's calls take turns on copies of the data, as a batch's do: where a tensor lies is luck. So many copies,
and no more than fit into that many bytes."""
SLEEP_TICKS = 600_000
"""0.3 ms, in which a call's kernels are enqueued."""
SLEEP_NAME = "::spin_kernel"
"""What torch calls the kernel that does it."""


class Ledger:
    """What was measured so far, a JSON object a line, beside the Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]

    def add(self, part: str, **row: Any) -> None:
        """One more measurement, kept at once."""
        row = {"part": part, "at": datetime.now(UTC).isoformat(timespec="seconds"), "harness": harness_digest(), **row}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row)[:200], flush=True)

    def of(self, part: str) -> list[dict[str, Any]]:
        """All of one part."""
        return [row for row in self.rows if row["part"] == part]


@functools.cache
def harness_digest() -> str:
    """Which state of the harness measures: eight digits of a hash of its files."""
    found = hashlib.sha256()
    for file in sorted((ROOT / "harness").rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:8]


# --- measuring -----------------------------------------------------------------------------------------------


def run_file(problem: Problem, file: Path, mode: Any, device: str, caches: Path, cases: Any = None) -> Record:
    """One evaluation of a file."""
    return evaluate(Request(problem, read_submission(file, "podium"), mode, device, caches, cases))


def rescore(ledger: Ledger, names: Sequence[str], runs: int, device: str, caches: Path) -> None:
    """(a) and (e): fresh leaderboard runs of the same file, in turns."""
    for _ in range(runs):
        for name in names:
            folder, file, _ = TARGETS[name]
            start = time.perf_counter()
            record = run_file(load_problem(ROOT / folder), ROOT / file, "leaderboard", device, caches)
            wall_s = time.perf_counter() - start
            if record.outcome.verdict != "passed":
                ledger.add("failed", problem=name, message=record.outcome.message)
                continue
            batches = [case.timing.batches for case in record.timed if case.timing]
            whole = score(batches)
            ledger.add(
                "rescore",
                problem=name,
                device=record.device.model,
                torch=record.software.torch,
                triton=record.software.triton,
                driver=record.device.driver,
                score_ns=whole.time_ns,
                half_width=whole.half_width,
                processes=[math.exp(mean) for mean in process_means([by_process(each) for each in batches])],
                cases={
                    shape(case.spec): [summarise(each).time_ns for each in by_process(case.timing.batches)]
                    for case in record.timed
                    if case.timing
                },
                wall_s=wall_s,
                stages_s={name: ns / 1e9 for name, ns in record.stages_ns.items()},
                unsteady=record.unsteady,
                doubts=list(record.doubts),
            )


def shape(spec: dict[str, Any]) -> str:
    """A case without its seed."""
    return " ".join(f"{key}={value}" for key, value in spec.items() if key != "seed")


def contrast(ledger: Ledger, names: Sequence[str], runs: int) -> None:
    """(b): the common in-process loop, a fresh process each."""
    for name in names:
        for _ in range(runs):
            folder, file, _ = TARGETS[name]
            found = in_process("common", ROOT / folder, ROOT / file)
            ledger.add("contrast", problem=name, cases=found)


def in_process(what: str, folder: Path, file: Path) -> dict[str, float]:
    """ns per call by case, from this script run as a child that imports the submission itself."""
    command = [sys.executable, str(Path(__file__)), "--child", what, str(folder), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{what} failed on {file.name}: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def accuracy(ledger: Ledger, names: Sequence[str], device: str, caches: Path) -> None:
    """(c): spins of known length, the memory's rate, CUPTI."""
    monitor = open_monitor(device)
    clock_mhz = monitor.state(()).clock_mhz
    monitor.close()
    spin = load_problem(BENCHMARKS / "problems" / "spin")
    nothing = Case({"ticks": 1, "seed": 1})
    record = run_file(spin, SPIN / "triton_spin.py", "benchmark", device, caches, (nothing, *spin.benchmarks))
    clocks = [b.state.clock_mhz for c in record.timed if c.timing for b in c.timing.batches if b.state]
    clock_mhz = statistics.median(clocks) if clocks and all(clocks) else clock_mhz
    spins = {case.spec["ticks"]: summarise(case.timing.batches) for case in record.timed if case.timing}
    for ticks, found in spins.items():
        ledger.add("spin", ticks=ticks, clock_mhz=clock_mhz, read_ns=found.time_ns, half=found.half_width)
    ledger.add("traced spin", cases=in_process("profile", BENCHMARKS / "problems" / "spin", SPIN / "triton_spin.py"))
    for name in names:
        folder, file, _ = TARGETS[name]
        if not any(row["problem"] == name for row in ledger.of("rescore")):
            rescore(ledger, [name], 1, device, caches)
        for _ in range(PROFILED_PROCESSES):
            found = in_process("profile", ROOT / folder, ROOT / file)
            roof, empty = found.pop("copy_bytes_per_ns"), found.pop("empty_ns")
            ledger.add("profiler", problem=name, cases=found, roof_bytes_ns=roof, empty_ns=empty)


def power(ledger: Ledger, trials: int, device: str, caches: Path) -> None:
    """(d): the kernel against one with 1 % more work; every second trial, also beside its twin, 0.5 % and 2 % more."""
    for trial in range(trials):
        duel(ledger, ["triton_spin.py", "triton_spin_010.py"], trial, device, caches)
        if trial % 2 == 0:
            files = ["triton_spin.py", "triton_spin.py", "triton_spin_005.py", "triton_spin_020.py"]
            duel(ledger, files, trial, device, caches)


def duel(ledger: Ledger, files: Sequence[str], trial: int, device: str, caches: Path) -> None:
    """One comparison of the first file with each of the others."""
    problem = load_problem(BENCHMARKS / "problems" / "spin")
    contenders = tuple(
        Contender(f"{index} {file}", read_submission(SPIN / file, "podium")) for index, file in enumerate(files)
    )
    case = Case({"ticks": SPIN_TICKS, "seed": 1000 + trial})
    start = time.perf_counter()
    found = compare_kernels(Contest(problem, contenders, device, caches, (case,), max_seconds=POWER_SECONDS))
    wall_s = time.perf_counter() - start
    for pair in found.pairs:
        if pair.first == contenders[0].label:
            ledger.add(
                "power",
                more=MORE_WORK.get(pair.second.split()[1], 0.0),
                verdict=pair.overall.verdict,
                ratio=pair.overall.ratio,
                low=pair.overall.low,
                high=pair.overall.high,
                heats=pair.overall.heats,
                wall_s=wall_s,
                stages_s={name: ns / 1e9 for name, ns in found.stages_ns.items()},
                kernels=len(files),
            )
    assert found.control_result is not None
    ledger.add("control", verdict=found.control_result.verdict, ratio=found.control_result.ratio, wall_s=wall_s)


# --- the child: what others do, in the submission's own process ------------------------------------------------


def child(what: str, folder: str, file: str) -> None:
    """Time each benchmark in this process; print ns per call by case as one JSON line."""
    import importlib.util

    import torch

    problem = load_problem(Path(folder))
    with tempfile.TemporaryDirectory() as scratch:
        for entry in problem.oracle_files:
            (Path(scratch) / entry.name).write_bytes(entry.source.read_bytes())
        sys.path.insert(0, scratch)
        reference = importlib.import_module("reference")
        spec = importlib.util.spec_from_file_location("submission", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        zeros = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
        timer: Callable[..., float] = profiled if what == "profile" else common
        found = {}
        for case in problem.benchmarks:
            data = reference.generate_input(**case.spec)
            module.custom_kernel(data)
            torch.cuda.synchronize()
            found[shape(case.spec)] = timer(torch, module.custom_kernel, data, zeros)
            del data
            torch.cuda.empty_cache()
        if what == "profile":
            found["copy_bytes_per_ns"] = copy_rate(torch)
            found["empty_ns"] = empty_kernel(torch, zeros)
    print(json.dumps(found))


def common(torch: Any, kernel: Any, data: Any, zeros: Any) -> float:
    """An event pair around each call, a zero-fill before it, until the mean's standard error is 0.1 % (3 to 200)."""
    times: list[float] = []
    while len(times) < 200:
        zeros.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        kernel(data)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e6)
        if len(times) > 2 and statistics.stdev(times) / math.sqrt(len(times)) < 0.001 * statistics.fmean(times):
            break
    return statistics.fmean(times)


def profiled(torch: Any, kernel: Any, data: Any, zeros: Any) -> float:
    """From the first kernel's start to the last one's end of each call, by the profiler: trimmed mean, cold cache.

    All of a call is enqueued while a kernel that sleeps is running, so that the processor is in nobody's way.
    """
    from torch.profiler import ProfilerActivity, profile

    places = copies(data)
    mark = torch.empty(1 << 20, dtype=torch.int16, device="cuda")
    wide = zeros.view(torch.float32)
    for place in places:
        kernel(place)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for number in range(PROFILED_CALLS):
            torch.cuda._sleep(SLEEP_TICKS)
            torch.amax(wide)
            mark.fill_(1)
            kernel(places[number % len(places)])
            torch.cuda.synchronize()
    on_device = [each for each in trace.events() if each.device_type != torch.autograd.DeviceType.CPU]
    kernels = sorted((each.time_range.start, each.time_range.end, each.name) for each in on_device)
    kernels = [each for each in kernels if "ynchronize" not in each[2] and "Memset" not in each[2]]
    marks = [index for index, each in enumerate(kernels) if "FillFunctor" in each[2] and "short" in each[2]]
    spans = []
    for begin, end in itertools.pairwise([*marks, len(kernels)]):
        own = list(itertools.takewhile(lambda each: SLEEP_NAME not in each[2], kernels[begin + 1 : end]))
        spans.append((max(each[1] for each in own) - own[0][0]) * 1e3 if own else math.nan)
    return trimmed_mean(spans) if spans else math.nan


def copies(data: Any) -> list[Any]:
    """The data and copies of it, all at places of their own."""
    taken = sum(tensor.numel() * tensor.element_size() for tensor in tensors(data))
    count = max(1, min(PROFILED_PLACES, PROFILED_BYTES // max(taken, 1)))
    return [data, *(mapped(data, lambda tensor: tensor.clone()) for _ in range(count - 1))]


def empty_kernel(torch: Any, zeros: Any) -> float:
    """An empty kernel's time by the profiler, ns, as the empty gates have them."""
    from harness.timing.enqueue import _empty_kernel

    return profiled(torch, lambda data: _empty_kernel[(1,)](data, num_warps=4), zeros, zeros)


def copy_rate(torch: Any) -> float:
    """Bytes read and written per ns by a large copy: the memory's measured rate."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    target.copy_(source)
    start.record()
    for _ in range(20):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return 20 * 2 * source.numel() / (start.elapsed_time(end) * 1e6)


# --- tables --------------------------------------------------------------------------------------------------


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def spread(values: Sequence[float]) -> str:
    """(max - min) / median."""
    return f"{100 * (max(values) - min(values)) / statistics.median(values):.2f} %"


def deviation(values: Sequence[float]) -> str:
    """Standard deviation over the mean."""
    return f"{100 * statistics.stdev(values) / statistics.fmean(values):.2f} %" if len(values) > 1 else "–"


def us(ns: float) -> str:
    """ns as us."""
    return f"{ns / 1e3:.3f}"


def rescore_tables(rows: Sequence[dict[str, Any]]) -> str:
    """Per problem: range of the score, then case by case."""
    parts = []
    by_name = {name: [row for row in rows if row["problem"] == name] for name in TARGETS}
    summary = [
        (
            name,
            len(own),
            us(statistics.median(row["score_ns"] for row in own)),
            spread([row["score_ns"] for row in own]),
            f"≤ {100 * TARGETS[name][2]:g} %",
            deviation([row["score_ns"] for row in own]),
            f"±{100 * statistics.median(row['half_width'] for row in own):.2f} %",
            deviation([value for row in own for value in row["processes"]]),
            f"{statistics.median(len(row['processes']) for row in own):g}",
            f"{statistics.median(row['wall_s'] for row in own):.1f} s",
        )
        for name, own in by_name.items()
        if own
    ]
    titles = (
        "file on",
        "runs",
        "score µs",
        "range",
        "bar",
        "sd",
        "95 % as said",
        "sd of processes",
        "processes",
        "wall",
    )
    parts.append("## The same file, scored again in fresh runs\n\n" + table(titles, summary))
    for name, own in by_name.items():
        if not own:
            continue
        lines = []
        for case in own[0]["cases"]:
            runs = [math.exp(statistics.fmean(map(math.log, row["cases"][case]))) for row in own]
            each = [value for row in own for value in row["cases"][case]]
            lines.append((case, us(statistics.median(runs)), spread(runs), deviation(runs), deviation(each)))
        parts.append(f"### {name}\n\n" + table(("case", "µs", "range of runs", "sd", "sd of processes"), lines))
        stages = own[0]["stages_s"]
        medians = {stage: statistics.median(row["stages_s"].get(stage, 0.0) for row in own) for stage in stages}
        parts.append("Wall time by stage: " + ", ".join(f"{stage} {s:.1f} s" for stage, s in medians.items()) + ".\n")
    return "\n".join(parts)


def contrast_table(rows: Sequence[dict[str, Any]]) -> str:
    """Range of the geometric mean through the common loop."""
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        own = [row["cases"] for row in rows if row["problem"] == name]
        scores = [math.exp(statistics.fmean(map(math.log, cases.values()))) for cases in own]
        worst = max(own[0], key=lambda case: max(c[case] for c in own) / min(c[case] for c in own))
        lines.append(
            (
                name,
                len(own),
                us(statistics.median(scores)),
                spread(scores),
                f"{worst}: {spread([c[worst] for c in own])}",
            )
        )
    titles = ("file on", "processes", "geometric mean µs", "range", "worst case")
    return "## For contrast: an event pair in the kernel's own process\n\n" + table(titles, lines)


def spin_table(spins: Sequence[dict[str, Any]], traces: Sequence[dict[str, Any]]) -> str:
    """Readings beside set times and beside the profiler's."""
    clock = spins[0]["clock_mhz"]
    medians = {
        ticks: statistics.median(row["read_ns"] for row in spins if row["ticks"] == ticks)
        for ticks in dict.fromkeys(row["ticks"] for row in spins)
    }
    lines = []
    empty_ns = statistics.median(row["cases"]["empty_ns"] for row in traces) if traces else 0.0
    for ticks in (each for each in sorted(medians) if each > 1):
        known_ns = ticks * 1e3 / clock
        off = medians[ticks] - empty_ns - known_ns
        traced = [row["cases"][f"ticks={ticks}"] for row in traces if f"ticks={ticks}" in row["cases"]]
        line = [us(known_ns), us(medians[ticks]), us(off), is_near(off, known_ns)]
        if traced:
            traced_ns = statistics.median(traced)
            line += [us(traced_ns), us(medians[ticks] - traced_ns), is_near(medians[ticks] - traced_ns, traced_ns)]
        else:
            line += ["–", "–", "–"]
        lines.append(line)
    near = "within max(1 %, 0.3 µs)"
    return (
        "## Against a kernel that spins for a set time\n\n"
        f"Set: ticks over the SM clock that NVML reports ({clock:g} MHz). What an empty kernel takes by the profiler, "
        f"{us(empty_ns)} µs, comes on top; off is what is left. "
        f"With a single tick it reads {us(medians.get(1, math.nan))} µs.\n\n"
        + table(("set µs", "read µs", "off µs", near, "profiler µs", "off µs", near), lines)
    )


def profiler_tables(traces: Sequence[dict[str, Any]], scored: Sequence[dict[str, Any]]) -> str:
    """The readings of all leaderboard runs beside the profiler's kernel times."""
    lines, rates = [], []
    for name in dict.fromkeys(row["problem"] for row in traces):
        own = [row for row in traces if row["problem"] == name]
        read = [row["cases"] for row in scored if row["problem"] == name]
        for case in own[0]["cases"]:
            traced = [row["cases"][case] for row in own]
            times = [value for cases in read for value in cases[case] if value > 0]
            if not times:
                continue  # its runs failed, which the report says
            traced_ns, read_ns = statistics.median(traced), math.exp(statistics.fmean(map(math.log, times)))
            off = read_ns - traced_ns
            low, high = us(min(traced)), us(max(traced))
            lines.append((name, case, us(traced_ns), f"{low} to {high}", us(read_ns), us(off), is_near(off, traced_ns)))
            if name == "vectoradd":
                roof = statistics.median(row["roof_bytes_ns"] for row in own)
                rate = 6 * int(case.split("=")[1]) ** 2 / read_ns
                rates.append((case, f"{rate / 1e3:.2f}", f"{roof / 1e3:.2f}", f"{100 * rate / roof:.0f} %"))
    titles = ("file on", "case", "profiler µs", "its processes", "read µs", "off µs", "within max(1 %, 0.3 µs)")
    empty_ns = statistics.median(row["empty_ns"] for row in traces)
    text = (
        "## Against the profiler's kernel times\n\n"
        "The profiler's: from the first kernel's start to the last one's end, cold cache, copies of one set of inputs "
        f"in turns. An empty kernel takes {us(empty_ns)} µs by it; {us(START_NS)} µs is in readings.\n\n"
        + table(titles, lines)
    )
    if rates:
        text += "\n## Bytes over time, against the memory's measured rate\n\n"
        text += table(("vectoradd", "TB/s", "a large copy, TB/s", "share"), rates)
    return text


def is_near(off_ns: float, known_ns: float) -> str:
    """Whether a reading meets the bar."""
    return "yes" if abs(off_ns) <= max(0.01 * known_ns, 300.0) else "no"


def power_table(rows: Sequence[dict[str, Any]], controls: Sequence[dict[str, Any]]) -> str:
    """How often compare is right, by true difference."""
    lines = []
    for more in sorted({row["more"] for row in rows}):
        own = [row for row in rows if row["more"] == more]
        counts = {
            v: sum(row["verdict"] == v for row in own) for v in ("FASTER", "SLOWER", "TIE", "UNRESOLVED", "INVALID")
        }
        ratios = [100 * (1 / row["ratio"] - 1) for row in own if row["ratio"]]
        estimate = f"{statistics.fmean(ratios):+.2f} % (sd {statistics.stdev(ratios):.2f})" if len(ratios) > 1 else "–"
        walls = [row["wall_s"] for row in own]
        wall = f"{statistics.median(walls):.1f} s, at most {max(walls):.1f}"
        beside = "/".join(f"{count}" for count in sorted({row["kernels"] for row in own}))
        starts = [row["stages_s"]["start"] for row in own if "stages_s" in row]
        start = f"{statistics.median(starts):.1f} s" if starts else "–"
        lines.append((f"{100 * more:g} %", len(own), *counts.values(), estimate, beside, wall, start))
    same = [row["verdict"] for row in controls]
    titles = (
        "more work",
        "trials",
        "FASTER",
        "SLOWER",
        "TIE",
        "UNRESOLVED",
        "INVALID",
        "estimated",
        "kernels",
        "wall",
        "of it start",
    )
    wolf = sum(verdict in ("FASTER", "SLOWER") for verdict in same)
    return (
        "## `compare` on kernels of known difference\n\n"
        "A spin of 20 µs against the same with a little more work, in one comparison of so many kernels and the hidden "
        "copy. FASTER is right; with 0 % (twins) it is wrong, as is SLOWER.\n\n"
        + table(titles, lines)
        + f"\nHidden copies called faster or slower: {wolf} of {len(same)}.\n"
    )


def report(ledger: Ledger) -> str:
    """All tables of what was measured so far."""
    import platform

    scored = ledger.of("rescore")
    machine = scored[0] if scored else {}
    versions = (
        f"{machine.get('device', 'this GPU')}, torch {machine.get('torch', '?')}, Triton {machine.get('triton', '?')}"
    )
    counts = Counter(row.get("harness", "unknown") for row in ledger.rows)
    states = " and ".join(f"{name} ({count} rows)" for name, count in counts.items())
    parts = [
        "# Fidelity: can the numbers be believed?\n",
        f"{ledger.rows[0]['at']} to {ledger.rows[-1]['at']}, {versions}, driver {machine.get('driver')}, "
        f"Python {platform.python_version()}, harness {states}. Made by `python benchmarks/fidelity.py`; raw: "
        f"{ledger.path.name}.\n",
    ]
    parts += [rescore_tables(scored)] if scored else []
    parts += [contrast_table(ledger.of("contrast"))] if ledger.of("contrast") else []
    parts += [spin_table(ledger.of("spin"), ledger.of("traced spin"))] if ledger.of("spin") else []
    parts += [profiler_tables(ledger.of("profiler"), scored)] if ledger.of("profiler") else []
    parts += [power_table(ledger.of("power"), ledger.of("control"))] if ledger.of("power") else []
    failed = [f"- {row['problem']}: {row['message']}" for row in ledger.of("failed")]
    parts += ["## Runs that failed\n\n" + "\n".join(failed) + "\n"] if failed else []
    return "\n".join(parts)


def main() -> None:
    """Run the asked parts, write after each."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--parts", default="rescore,contrast,accuracy,power")
    parser.add_argument("--problems", default=",".join(TARGETS))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)
    ledger = Ledger(options.output.with_suffix(".jsonl"))
    names = options.problems.split(",")
    with tempfile.TemporaryDirectory(prefix="podium-fidelity-") as folder:
        caches = Path(folder) / "compile"
        steps: dict[str, Callable[[], None]] = {
            "rescore": lambda: rescore(ledger, names, options.runs, device, caches),
            "contrast": lambda: contrast(ledger, names, options.runs),
            "accuracy": lambda: accuracy(ledger, names, device, caches),
            "power": lambda: power(ledger, options.trials, device, caches),
        }
        for part in options.parts.split(","):
            if part != "tables":
                steps[part]()
            options.output.write_text(report(ledger), encoding="utf-8")
            print(f"{part}: written to {options.output}", flush=True)


if __name__ == "__main__":
    main()
