"""What this machine can give: device, compilers, clocks, isolation, and what to do about what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness import wire
from harness.devices.monitor import Missing, open_monitor
from harness.errors import PodiumError
from harness.gates import POLLS
from harness.problem import Problem
from harness.processes.court import Court
from harness.processes.isolation import Limits
from harness.processes.kernels import NAME
from harness.processes.pair import Pair, Setting, wall_ns
from harness.timing.gate import Reading

CALLS = 24
BATCHES = 10


@dataclass(frozen=True)
class Check:
    """One thing looked at: `good`, `lesser` (Podium works, with less) or `missing`."""

    name: str
    state: Literal["good", "lesser", "missing"]
    found: str
    advice: str = ""


def examine(device: str, problem: Problem, caches: Path, home: Path) -> tuple[Check, ...]:
    """Look at everything; nothing here raises for what a machine does not have."""
    checks = [*_software(), _home(home), _compiler()]
    try:
        with (
            Court(problem, device, caches=caches, kernels=caches / NAME) as court,
            Pair(court, Setting("", Limits(), caches / "doctor")) as pair,
        ):
            pair.prepare()
            checks += [_device(pair), _clock(pair), _monitor(device), *_isolation(pair)]
    except PodiumError as error:
        checks.append(Check("device", "missing", str(error), "see the message; `--device cpu` always works"))
    return tuple(checks)


def choose_device(asked: str) -> str:
    """`auto` is the first GPU if there is one: seen by its device node, without loading torch."""
    if asked != "auto":
        return asked
    hidden = any(os.environ.get(name) == "" for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    nodes = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return "cuda" if not hidden and any(Path(node).exists() for node in nodes) else "cpu"


def _software() -> list[Check]:
    checks = [Check("python", "good", f"{platform.python_version()} ({sys.executable})")]
    for name, advice in (("torch", "pip install 'torch>=2.11'"), ("triton", "pip install 'triton>=3.6'")):
        try:
            checks.append(Check(name, "good", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            state: Literal["missing", "lesser"] = "missing" if name == "torch" else "lesser"
            checks.append(Check(name, state, "not installed", advice))
    return checks


def _home(home: Path) -> Check:
    place = next((folder for folder in (home, *home.parents) if folder.exists()), Path("/"))
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return Check("records", "missing", f"{home} cannot be written", "set PODIUM_HOME to a folder of yours")
    return Check("records", "good" if free > 1 << 30 else "lesser", f"{home} ({free >> 30} GiB free)")


def _compiler() -> Check:
    tools = [tool for tool in ("nvcc", "hipcc", "ninja", "c++") if shutil.which(tool)]
    wanted = "c++" in tools and "ninja" in tools and ("nvcc" in tools or "hipcc" in tools)
    advice = "" if wanted else "only needed for inline CUDA/HIP: install the toolkit, a C++ compiler and ninja"
    return Check("compilers", "good" if wanted else "lesser", ", ".join(tools) or "none", advice)


def _device(pair: Pair) -> Check:
    device = pair.court.device
    cache = f", {device.cache_bytes >> 20} MiB cache" if device.cache_bytes else ""
    memory = f", {device.memory_bytes >> 30} GiB" if device.memory_bytes else ""
    found = f"{device.model} ({device.architecture}, {device.units} units{memory}{cache})"
    if device.kind != "cpu":
        return Check("device", "good", found + (f", driver {device.driver}" if device.driver else ""))
    advice = "no GPU in use: kernels are verified on small cases, Triton by its interpreter, times are not GPU times"
    return Check("device", "lesser", found, advice)


def _clock(pair: Pair) -> Check:
    """Read empty batches: what the clock costs and how still it stands."""
    readings = [_empty_batch(pair) for _ in range(BATCHES)][2:]
    middle, spread = statistics.median(readings), statistics.pstdev(readings)
    text = f"{CALLS} empty calls {middle / 1e3:.0f} µs, spread {spread / 1e3:.1f} µs"
    if not pair.gated:
        advice = pair.notes[0] if pair.notes else "a GPU's gate is far finer"
        return Check("clock", "lesser", f"messages between processes; {text}", advice)
    return Check("clock", "good", f"gate on the GPU, read from another process; {text}")


def _empty_batch(pair: Pair) -> int:
    generation = pair.next_generation()
    by_message = not pair.gated
    pair.contestant(
        wire.Arm(generation, tuple(range(CALLS)), True, by_message, by_message, POLLS), wire.Armed, timeout_s=60
    )
    if by_message:
        start = wall_ns()
        pair.contestant(wire.Release(generation), wire.Done, timeout_s=60)
        reading = Reading(wall_ns() - start, 0)
    else:
        reading = pair.page.read(generation, due_ns=0, limit_ns=10**10) or Reading(0, 0)
    pair.hear_contestant(wire.Claims, timeout_s=60)
    return reading.ns


def _monitor(device: str) -> Check:
    """Does the vendor's library tell clocks, power and other processes?"""
    monitor = open_monitor(device)
    try:
        if isinstance(monitor, Missing):
            advice = "" if device == "cpu" else "pip install nvidia-ml-py (NVIDIA) or amdsmi (AMD)"
            return Check("monitor", "lesser", monitor.reason, advice)
        state, limit = monitor.state(()), monitor.power_limit_mw()
        parts = [f"{state.clock_mhz} MHz"] if state.clock_mhz else []
        parts += [f"{state.temperature_c} °C"] if state.temperature_c else []
        parts += [f"power cap {limit / 1e3:.0f} W"] if limit else []
        parts += [f"slowed down: {', '.join(state.throttle)}"] if state.throttle else []
        return Check("monitor", "good", ", ".join(parts) or "the library says nothing of this device")
    finally:
        monitor.close()


def _isolation(pair: Pair) -> list[Check]:
    checks = [
        Check(layer.name, "good" if layer.applied else "lesser", layer.detail or "applied") for layer in pair.isolation
    ]
    memory = hasattr(os, "memfd_create")
    found = "unnamed memory files" if memory else f"unnamed files in {tempfile.gettempdir()}"
    return [*checks, Check("shared buffers", "good" if memory else "lesser", found)]
