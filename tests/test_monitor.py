"""What the GPU says of itself: exact values from scripted NVML and amdsmi, and nothing that a refusal can break."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.devices.monitor import Missing, count_others, open_monitor
from harness.record import DeviceState

ROOT = Path(__file__).resolve().parents[1]
NOTHING = DeviceState(None, None, None, None)
NVML_STATE = DeviceState(1980, 3201, 612_345, 61, ("power cap",), 1)
AMD_STATE = DeviceState(2100, 1900, 750_000, 71, (), 1)


class NVMLError(Exception):
    pass


class AmdSmiException(Exception):
    pass


class Nvml:
    """pynvml with GPUs named a, b, ...; `refused` are the calls that raise, `answers` what others give."""

    NVMLError = NVMLError
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 1, 2, 0

    def __init__(self) -> None:
        self.gpus = [("GPU-aa11", "H200"), ("GPU-aa22", "H200"), ("GPU-bb33", "H200")]
        self.refused: set[str] = set()
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[tuple[Any, ...], Any] = {
            ("nvmlInit",): None,
            ("nvmlShutdown",): None,
            ("nvmlDeviceGetEnforcedPowerLimit",): 700_000,
            ("nvmlDeviceGetClockInfo", 1): 1980,
            ("nvmlDeviceGetClockInfo", 2): 3201,
            ("nvmlDeviceGetPowerUsage",): 612_345,
            ("nvmlDeviceGetTemperature", 0): 61,
            ("nvmlDeviceGetCurrentClocksThrottleReasons",): 0x04,
            ("nvmlDeviceGetApplicationsClock", 0): 1980,
            ("nvmlDeviceGetDefaultApplicationsClock", 0): 1980,
            ("nvmlDeviceGetComputeRunningProcesses",): [SimpleNamespace(pid=pid) for pid in (10, 11, 99)],
            ("nvmlDeviceGetGraphicsRunningProcesses",): [SimpleNamespace(pid=99)],
        }

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return self.gpus[handle][0]

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.gpus[handle][1]

    def __getattr__(self, name: str) -> Any:
        if not any(key[0] == name for key in self.answers):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            if name in self.refused or "everything" in self.refused:
                raise NVMLError("Not Supported")
            return self.answers[(name, *arguments[1:])]

        return call

    def asked(self) -> set[int]:
        return {call[1] for call in self.calls if len(call) > 1}


class Amd:
    """amdsmi with GPUs named by their handles, in an order of its own."""

    AmdSmiException = AmdSmiException

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.asked: list[Any] = []
        self.facts = {
            "x": {"hip_id": 2, "hip_uuid": "GPU-22"},
            "y": {"hip_id": 0, "hip_uuid": "GPU-00"},
            "z": {"hip_id": 1, "hip_uuid": "GPU-11"},
        }
        self.metrics: dict[str, Any] = {
            "current_gfxclk": "N/A",
            "current_gfxclks": ["N/A", 2100, 2090],
            "current_uclk": 1900,
            "current_socket_power": 750,
            "average_socket_power": "N/A",
            "temperature_hotspot": 71,
            "temperature_edge": 0xFFFF,
            "ppt_residency_acc": 100,
            "socket_thm_residency_acc": 200,
            "vr_thm_residency_acc": "N/A",
            "hbm_thm_residency_acc": 300,
            "prochot_residency_acc": 400,
        }

    def answer(self, name: str, value: Any, handle: Any = None) -> Any:
        self.asked.append(handle)
        if name in self.refused or "everything" in self.refused:
            raise AmdSmiException("not supported")
        return value

    def amdsmi_init(self) -> None:
        self.answer("init", None)

    def amdsmi_shut_down(self) -> None:
        self.answer("shut_down", None)

    def amdsmi_get_processor_handles(self) -> list[str]:
        return self.answer("handles", list(self.facts))

    def amdsmi_get_gpu_enumeration_info(self, handle: str) -> dict[str, Any]:
        return self.answer("enumeration", self.facts[handle], handle)

    def amdsmi_get_gpu_metrics_info(self, handle: str) -> dict[str, Any]:
        return self.answer("metrics", dict(self.metrics), handle)

    def amdsmi_get_power_cap_info(self, handle: str) -> dict[str, Any]:
        return self.answer("power_cap", {"power_cap": 1_400_000_000}, handle)

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
        return self.answer("processes", [{"pid": 10}, {"pid": 99}], handle)


@pytest.fixture(autouse=True)
def _no_library_and_every_gpu_visible(monkeypatch):
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nvml(monkeypatch):
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


@pytest.fixture
def amd(monkeypatch):
    library = Amd()
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    return library


def test_nvml_s_values_are_told_as_they_are(nvml):
    monitor = open_monitor("cuda")
    assert monitor.power_limit_mw() == 700_000
    assert monitor.state([10, 11]) == NVML_STATE
    assert nvml.asked() == {0}


def test_a_state_is_seven_calls(nvml):
    monitor = open_monitor("cuda")
    nvml.calls.clear()
    monitor.state([10])
    assert len(nvml.calls) == 7


@pytest.mark.parametrize(
    ("refused", "changed"),
    [
        ("nvmlDeviceGetClockInfo", {"clock_mhz": None, "memory_clock_mhz": None}),
        ("nvmlDeviceGetPowerUsage", {"power_mw": None}),
        ("nvmlDeviceGetTemperature", {"temperature_c": None}),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"throttle": ()}),
        ("nvmlDeviceGetComputeRunningProcesses", {"others": 0}),
        ("nvmlDeviceGetGraphicsRunningProcesses", {}),
        ("nvmlDeviceGetEnforcedPowerLimit", {}),
    ],
)
def test_what_nvml_refuses_is_missing_alone(nvml, refused, changed):
    nvml.refused = {refused}
    monitor = open_monitor("cuda:1")
    assert monitor.state([10, 11]) == replace(NVML_STATE, **changed)
    assert monitor.power_limit_mw() == (None if "PowerLimit" in refused else 700_000)


def test_a_call_that_this_pynvml_does_not_have_is_a_refusal(nvml):
    del nvml.answers[("nvmlDeviceGetCurrentClocksThrottleReasons",)]
    assert open_monitor("cuda").state([10, 11]) == replace(NVML_STATE, throttle=())


def test_a_library_that_dies_later_leaves_nothing_known(nvml):
    monitor = open_monitor("cuda")
    nvml.refused = {"everything"}
    assert monitor.state([10]) == NOTHING
    assert monitor.power_limit_mw() is None
    monitor.close()


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x00, ()),
        (0x01, ()),
        (0x02, ()),
        (0x04, ("power cap",)),
        (0x08, ("hardware slowdown",)),
        (0x10, ("other GPU in sync group",)),
        (0x20, ("thermal",)),
        (0x40, ("thermal",)),
        (0x80, ("power brake",)),
        (0x100, ()),
        (0x1FF, ("power cap", "thermal", "hardware slowdown", "power brake", "other GPU in sync group")),
    ],
)
def test_bits_become_the_words_of_what_slows_down(nvml, bits, reasons):
    nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons",] = bits
    assert open_monitor("cuda").state([]).throttle == reasons


def test_clocks_that_differ_from_the_default_were_set_by_a_user(nvml):
    nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons",] = 0x02
    nvml.answers["nvmlDeviceGetApplicationsClock", 0] = 1500
    monitor = open_monitor("cuda")
    assert monitor.state([]).throttle == ("clocks set by user",)
    nvml.refused = {"nvmlDeviceGetDefaultApplicationsClock"}
    assert monitor.state([]).throttle == ()


@pytest.mark.parametrize(
    ("lists", "own", "others"),
    [
        ([[10, 11], []], [10, 11], 0),
        ([[10, 11, 99], [99, 98]], [10, 11], 2),
        ([[10, 99], []], [10, 11], 1),  # trusted: 11 has not opened the GPU yet
        ([[70010, 70011], []], [10, 11], 0),  # the host's pids
        ([[70010, 70011, 70099], [70099]], [10, 11], 1),
        ([[70010], []], [10, 11], 0),
        ([[0, 0], [0]], [10, 11], 0),
        ([[0, 0, 0], []], [10, 11], 1),
        ([[10, 0], []], [10], 1),
        ([[], []], [10, 11], 0),
        ([[99], []], [], 1),
    ],
)
def test_others_are_counted_by_pid_where_ours_is_seen_and_by_number_where_not(lists, own, others):
    assert count_others(lists, own) == others


@pytest.mark.parametrize(
    ("visible", "device", "handle"),
    [
        (None, "cuda", 0),
        (None, "cuda:2", 2),
        ("2,0", "cuda", 2),
        ("2, 0", "cuda:1", 0),
        ("GPU-bb33", "cuda:0", 2),
        ("GPU-b", "cuda:0", 2),
        ("1,GPU-aa11", "cuda:1", 0),
        ("1,-1,2", "cuda:0", 1),
    ],
)
def test_the_gpu_is_the_one_that_cuda_shows_under_that_number(nvml, monkeypatch, visible, device, handle):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_monitor(device).state([10, 11]) == NVML_STATE
    assert nvml.asked() == {handle}


@pytest.mark.parametrize(
    ("visible", "device", "reason"),
    [
        (None, "cuda:3", "NVML shows no GPU 3"),
        ("", "cuda", "CUDA_VISIBLE_DEVICES hides cuda:0"),
        ("1", "cuda:1", "CUDA_VISIBLE_DEVICES hides cuda:1"),
        ("1,-1,2", "cuda:1", "CUDA_VISIBLE_DEVICES hides cuda:1"),
        ("7", "cuda", "NVML shows no GPU 7"),
        ("GPU-aa", "cuda", "NVML shows 2 GPUs GPU-aa"),
        ("GPU-cc", "cuda", "NVML shows 0 GPUs GPU-cc"),
        ("MIG-1234", "cuda", "cuda:0 is a MIG slice: NVML speaks of whole GPUs"),
    ],
)
def test_a_gpu_that_nvml_cannot_tell_is_missing_with_the_reason(nvml, monkeypatch, visible, device, reason):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_monitor(device) == Missing(reason)
    assert nvml.calls == [("nvmlInit",), ("nvmlShutdown",)]


def test_numbers_of_unlike_gpus_mean_the_same_only_in_pci_order(nvml, monkeypatch):
    nvml.gpus[1] = ("GPU-aa22", "T4")
    assert open_monitor("cuda") == Missing(
        "GPUs of several models are numbered alike only with CUDA_DEVICE_ORDER=PCI_BUS_ID"
    )
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert open_monitor("cuda:1").power_limit_mw() == 700_000
    assert nvml.asked() == {1}


def test_a_handle_that_nvml_refuses_is_missing_too(nvml, monkeypatch):
    def refuse(_: int) -> int:
        raise NVMLError("Insufficient Permissions")

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByIndex", refuse)
    assert open_monitor("cuda") == Missing("NVML does not show cuda:0: Insufficient Permissions")


def test_without_a_gpu_in_use_no_library_is_asked(nvml):
    assert open_monitor("cpu") == Missing("no GPU in use")
    assert nvml.calls == []


def test_what_is_missing_knows_nothing_and_raises_nothing():
    monitor = open_monitor("cuda")
    assert monitor == Missing("nvidia-ml-py is not installed; amdsmi is not installed")
    assert monitor.power_limit_mw() is None
    assert monitor.state([10]) == NOTHING
    monitor.close()


def test_libraries_that_do_not_start_are_missing(nvml, amd):
    nvml.refused = {"nvmlInit"}
    amd.refused = {"init"}
    assert open_monitor("cuda") == Missing("NVML does not start: Not Supported; amdsmi does not start: not supported")


def test_an_amdsmi_without_its_library_says_nothing_on_our_output(monkeypatch, tmp_path, capsys):
    (tmp_path / "amdsmi.py").write_text("print('Unable to find libamd_smi.so'); {}['libamd_smi.so']")
    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_monitor("cuda") == Missing("nvidia-ml-py is not installed; amdsmi does not find its library")
    assert capsys.readouterr() == ("", "")


def test_amdsmi_s_values_come_in_our_units(amd):
    monitor = open_monitor("cuda")
    assert monitor.power_limit_mw() == 1_400_000
    assert monitor.state([10, 11]) == AMD_STATE


def test_amdsmi_is_asked_where_nvml_does_not_start(nvml, amd):
    nvml.refused = {"nvmlInit"}
    assert open_monitor("cuda").state([10, 11]) == AMD_STATE


@pytest.mark.parametrize(
    ("refused", "state", "limit_mw"),
    [
        ("metrics", replace(NOTHING, others=1), 1_400_000),
        ("processes", replace(AMD_STATE, others=0), 1_400_000),
        ("power_cap", AMD_STATE, None),
        ("everything", NOTHING, None),
    ],
)
def test_what_amdsmi_refuses_is_missing_alone(amd, refused, state, limit_mw):
    monitor = open_monitor("cuda")
    amd.refused = {refused}
    assert monitor.state([10]) == state
    assert monitor.power_limit_mw() == limit_mw
    monitor.close()


@pytest.mark.parametrize("unknown", ["N/A", 0xFFFF])
def test_a_value_that_amdsmi_does_not_have_is_none(amd, unknown):
    amd.metrics = dict.fromkeys(amd.metrics, unknown) | {"current_gfxclks": [unknown] * 8}
    assert open_monitor("cuda").state([10, 99]) == NOTHING


def test_a_process_name_that_amdsmi_cannot_read_is_a_refusal(amd, monkeypatch):
    monkeypatch.setattr(amd, "amdsmi_get_gpu_process_list", lambda _: b"\xff".decode())
    assert open_monitor("cuda").state([10]) == replace(AMD_STATE, others=0)


@pytest.mark.parametrize(
    ("counters", "reasons"),
    [
        ({"ppt_residency_acc": 101}, ("power cap",)),
        ({"socket_thm_residency_acc": 201, "hbm_thm_residency_acc": 301}, ("thermal",)),
        ({"prochot_residency_acc": 401}, ("hardware slowdown",)),
        ({"vr_thm_residency_acc": 5}, ()),  # not known before
        ({}, ()),
    ],
)
def test_an_amd_gpu_was_slowed_down_where_a_counter_grew_since_the_last_state(amd, counters, reasons):
    monitor = open_monitor("cuda")
    assert monitor.state([]).throttle == ()
    amd.metrics |= counters
    assert monitor.state([]).throttle == reasons
    assert monitor.state([]).throttle == ()


@pytest.mark.parametrize(
    ("variables", "device", "handle"),
    [
        ({}, "cuda", "y"),
        ({}, "cuda:2", "x"),
        ({"HIP_VISIBLE_DEVICES": "2,1"}, "cuda:1", "z"),
        ({"HIP_VISIBLE_DEVICES": "GPU-11"}, "cuda", "z"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "cuda", "z"),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, "cuda", "x"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-22,GPU-00", "HIP_VISIBLE_DEVICES": "1"}, "cuda", "y"),
    ],
)
def test_the_gpu_is_the_one_that_hip_shows_under_that_number(amd, monkeypatch, variables, device, handle):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monitor = open_monitor(device)
    amd.asked.clear()
    monitor.power_limit_mw()
    assert amd.asked == [handle]


def test_without_hip_s_numbers_amdsmi_s_order_stands(amd):
    amd.refused = {"enumeration"}
    monitor = open_monitor("cuda:1")
    amd.asked.clear()
    monitor.power_limit_mw()
    assert amd.asked == ["y"]


@pytest.mark.parametrize(("visible", "device"), [("5", "cuda"), ("MIG-1", "cuda"), ("", "cuda"), ("0", "cuda:1")])
def test_a_gpu_that_amdsmi_cannot_tell_is_missing(amd, monkeypatch, visible, device):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", visible)
    number = device.partition(":")[2] or "0"
    assert open_monitor(device) == Missing(f"amdsmi shows no GPU for cuda:{number} among the visible ones")


def test_the_monitor_loads_no_torch_and_no_library_before_it_is_opened():
    code = (
        "import sys, harness.devices.monitor as m; m.open_monitor('cpu')\n"
        "print(*[n for n in ('torch', 'pynvml', 'amdsmi') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []
