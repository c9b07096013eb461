"""What the vendor's management library says of the GPU while a run is going, for the referee, which loads no torch."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.record import DeviceState

_NVML_THROTTLE = (
    (0x04, "power cap"),
    (0x20 | 0x40, "thermal"),
    (0x08, "hardware slowdown"),
    (0x80, "power brake"),
    (0x10, "other GPU in sync group"),
)
"""Bits of nvmlClocksEventReasons (nvml.h); idle (0x01) and display clocks (0x100) slow nothing of ours down."""

_NVML_SET_CLOCKS = 0x02
"""nvmlClocksEventReasonApplicationsClocksSetting, which is UserDefinedClocks too."""

_AMD_THROTTLE = (
    (("ppt_residency_acc",), "power cap"),
    (("socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc"), "thermal"),
    (("prochot_residency_acc",), "hardware slowdown"),
)
"""Counters of amdsmi_get_gpu_metrics_info that grow while the reason holds."""

_AMD_UNKNOWN = {0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF}
"""What older versions of amdsmi give where newer ones give "N/A"."""


class Monitor(Protocol):
    """One GPU, asked from outside. Nothing here raises for what a driver refuses: that field is None or empty."""

    def power_limit_mw(self) -> int | None:
        """The limit in force, in mW."""

    def state(self, own_pids: Collection[int]) -> DeviceState:
        """The GPU now, within a handful of calls. `own_pids`: our processes that use the GPU, exactly."""

    def close(self) -> None:
        """Let the library go."""


@dataclass(frozen=True)
class Missing:
    """The Monitor of a machine that has none."""

    reason: str
    """For a person: why there is none."""

    def power_limit_mw(self) -> int | None:
        """None."""
        return None

    def state(self, own_pids: Collection[int]) -> DeviceState:
        """Nothing known."""
        return DeviceState(None, None, None, None)

    def close(self) -> None:
        """Nothing to do."""


def open_monitor(device: str) -> Monitor | Missing:
    """The monitor of the GPU that torch calls `device` (cpu, cuda, cuda:N) in a process with our environment.

    NVML is asked first, amdsmi where NVML does not start.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return Missing("no GPU in use")
    nvml = _load_nvml()
    if not isinstance(nvml, Missing):
        return _open_nvml(nvml, int(number or 0))
    amdsmi = _load_amdsmi()
    if not isinstance(amdsmi, Missing):
        return _open_amdsmi(amdsmi, int(number or 0))
    return Missing(f"{nvml.reason}; {amdsmi.reason}")


def count_others(lists: Sequence[Sequence[int]], own_pids: Collection[int]) -> int:
    """Processes on the GPU beyond our own, from the library's lists of pids (a process may stand in several).

    A container may be shown the host's pids, which are not those we know, or zeros, or nothing. So pids are
    trusted when any of ours is among them: then those that are not ours are counted. When none is, only the
    counts are compared: whatever exceeds the number of our own processes is somebody else. A 0 hides a
    different process each time in one list.
    """
    known = {pid for pids in lists for pid in pids if pid}
    hidden = max((sum(pid == 0 for pid in pids) for pids in lists), default=0)
    ours = known.intersection(own_pids)
    return max(0, len(known) + hidden - (len(ours) or len(set(own_pids))))


def _visible(name: str) -> list[str] | None:
    """The entries of a variable like CUDA_VISIBLE_DEVICES, as far as they are valid; None when it is not set."""
    value = os.environ.get(name)
    if value is None:
        return None
    entries: list[str] = []
    for entry in value.split(","):
        word = entry.strip()
        if not (word.isdecimal() or word.startswith(("GPU-", "MIG-"))):
            break  # both vendors ignore what follows an invalid entry
        entries.append(word)
    return entries


def _load_nvml() -> Any:
    """The module pynvml, initialised, or why not."""
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return Missing("nvidia-ml-py is not installed")
    try:
        library.nvmlInit()
    except library.NVMLError as refusal:
        return Missing(f"NVML does not start: {refusal}")
    return library


def _open_nvml(library: Any, ordinal: int) -> Monitor | Missing:
    try:
        handle = _nvml_handle(library, ordinal)
    except library.NVMLError as refusal:
        handle = Missing(f"NVML does not show cuda:{ordinal}: {refusal}")
    monitor = NvmlMonitor(library, handle)
    if isinstance(handle, Missing):
        monitor.close()
        return handle
    return monitor


def _nvml_handle(library: Any, ordinal: int) -> Any:
    """NVML's handle of `cuda:<ordinal>`, or why there is none."""
    entries = _visible("CUDA_VISIBLE_DEVICES")
    if entries is not None and ordinal >= len(entries):
        return Missing(f"CUDA_VISIBLE_DEVICES hides cuda:{ordinal}")
    entry = str(ordinal) if entries is None else entries[ordinal]
    if entry.startswith("MIG-"):
        return Missing(f"cuda:{ordinal} is a MIG slice: NVML speaks of whole GPUs")
    handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
    if entry.startswith("GPU-"):  # CUDA takes any beginning that only one GPU has
        matching = [handle for handle in handles if library.nvmlDeviceGetUUID(handle).startswith(entry)]
        return matching[0] if len(matching) == 1 else Missing(f"NVML shows {len(matching)} GPUs {entry}")
    if int(entry) >= len(handles):
        return Missing(f"NVML shows no GPU {entry}")
    # NVML counts by PCI bus, CUDA by speed unless told otherwise: the same among equals only.
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len(set(map(library.nvmlDeviceGetName, handles))) > 1:
        return Missing("GPUs of several models are numbered alike only with CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return handles[int(entry)]


class NvmlMonitor:
    """Monitor of an NVIDIA GPU. NVML averages power over up to a second on some architectures."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, name)(self._handle, *arguments)
        except (self._library.NVMLError, AttributeError):  # refused, or not in this version of the library
            return None

    def power_limit_mw(self) -> int | None:
        """The enforced limit, in mW."""
        limit: int | None = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return limit

    def state(self, own_pids: Collection[int]) -> DeviceState:
        """Seven calls, nine when clocks may be set by a user."""
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        lists = [[process.pid for process in self._ask(name) or ()] for name in names]
        return DeviceState(
            clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_MEM),
            power_mw=self._ask("nvmlDeviceGetPowerUsage"),
            temperature_c=self._ask("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU),
            throttle=self._throttle(),
            others=count_others(lists, own_pids),
        )

    def _throttle(self) -> tuple[str, ...]:
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        reasons = [words for mask, words in _NVML_THROTTLE if bits & mask]
        if bits & _NVML_SET_CLOCKS and self._is_set_by_user():
            reasons.append("clocks set by user")
        return tuple(reasons)

    def _is_set_by_user(self) -> bool:
        """One bit stands for the factory's application clocks and a user's: only the latter differ from the default."""
        clock = self._library.NVML_CLOCK_GRAPHICS
        current = self._ask("nvmlDeviceGetApplicationsClock", clock)
        default = self._ask("nvmlDeviceGetDefaultApplicationsClock", clock)
        return current is not None and default is not None and current != default

    def close(self) -> None:
        """Shut NVML down."""
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError:
            pass  # it is gone already


def _load_amdsmi() -> Any:
    """The module amdsmi, initialised, or why not."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that its library is missing, then fails on it
            library: Any = importlib.import_module("amdsmi")
    except ImportError:
        return Missing("amdsmi is not installed")
    except (OSError, KeyError, AttributeError):
        return Missing("amdsmi does not find its library")
    try:
        library.amdsmi_init()
    except library.AmdSmiException as refusal:
        return Missing(f"amdsmi does not start: {refusal}")
    return library


def _open_amdsmi(library: Any, ordinal: int) -> Monitor | Missing:
    try:
        handle = _amd_handle(library, ordinal)
    except library.AmdSmiException as refusal:
        handle = Missing(f"amdsmi does not show cuda:{ordinal}: {refusal}")
    monitor = AmdMonitor(library, handle)
    if isinstance(handle, Missing):
        monitor.close()
        return handle
    return monitor


def _amd_handle(library: Any, ordinal: int) -> Any:
    """The handle of amdsmi for `cuda:<ordinal>` of a ROCm torch, or why there is none.

    ROCR_VISIBLE_DEVICES chooses among the machine's GPUs, HIP_VISIBLE_DEVICES (or else CUDA_VISIBLE_DEVICES)
    among those left.
    """
    left = _in_hip_order(library)
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"
    for name in ("ROCR_VISIBLE_DEVICES", hip):
        entries = _visible(name)
        if entries is None:
            continue
        chosen = []
        for entry in entries:
            matching = [each for i, each in enumerate(left) if entry in (str(i), each[1])]
            if len(matching) != 1:
                break
            chosen += matching
        left = chosen
    if ordinal >= len(left):
        return Missing(f"amdsmi shows no GPU for cuda:{ordinal} among the visible ones")
    return left[ordinal][0]


def _in_hip_order(library: Any) -> list[tuple[Any, str | None]]:
    """Handles and HIP's UUIDs (None before ROCm 6.4), in HIP's order if known: amdsmi's own may be another."""
    handles = library.amdsmi_get_processor_handles()
    try:
        facts = [library.amdsmi_get_gpu_enumeration_info(handle) for handle in handles]
    except (library.AmdSmiException, AttributeError):
        return [(handle, None) for handle in handles]
    pairs = list(zip(handles, facts, strict=True))
    if all(isinstance(fact["hip_id"], int) for fact in facts):
        pairs.sort(key=lambda pair: pair[1]["hip_id"])
    return [(handle, fact["hip_uuid"]) for handle, fact in pairs]


class AmdMonitor:
    """Monitor of an AMD GPU. Throttling is what the counters gained since the last `state`, none in the first.

    amdsmi_get_violation_status would say the same, but it sleeps for 100 ms between two readings.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._before: Mapping[str, Any] = {}

    def _ask(self, name: str) -> Any:
        try:
            return getattr(self._library, name)(self._handle)
        except (self._library.AmdSmiException, AttributeError):  # refused, or not in this version of the library
            return None
        except UnicodeDecodeError:  # a process may choose a name that amdsmi cannot read
            return None

    def power_limit_mw(self) -> int | None:
        """The power cap, in mW; amdsmi has µW."""
        limit = _first_number((self._ask("amdsmi_get_power_cap_info") or {}).get("power_cap"))
        return None if limit is None else limit // 1000

    def state(self, own_pids: Collection[int]) -> DeviceState:
        """Two calls."""
        metrics = self._ask("amdsmi_get_gpu_metrics_info") or {}
        pids = [process["pid"] for process in self._ask("amdsmi_get_gpu_process_list") or ()]
        power_w = _first_number(metrics.get("current_socket_power"), metrics.get("average_socket_power"))
        return DeviceState(
            clock_mhz=_first_number(metrics.get("current_gfxclk"), *metrics.get("current_gfxclks", ())),
            memory_clock_mhz=_first_number(metrics.get("current_uclk")),
            power_mw=None if power_w is None else power_w * 1000,
            temperature_c=_first_number(metrics.get("temperature_hotspot"), metrics.get("temperature_edge")),
            throttle=self._throttle(metrics),
            others=count_others([pids], own_pids),
        )

    def _throttle(self, metrics: Mapping[str, Any]) -> tuple[str, ...]:
        before, self._before = self._before, metrics
        return tuple(
            words for names, words in _AMD_THROTTLE if any(_has_grown(before, metrics, name) for name in names)
        )

    def close(self) -> None:
        """Shut amdsmi down."""
        try:
            self._library.amdsmi_shut_down()
        except self._library.AmdSmiException:
            pass  # it is gone already


def _first_number(*values: Any) -> int | None:
    return next((value for value in values if isinstance(value, int) and value not in _AMD_UNKNOWN), None)


def _has_grown(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    earlier, later = _first_number(before.get(name)), _first_number(now.get(name))
    return earlier is not None and later is not None and later > earlier
