"""Speed of light: arithmetic that is only arithmetic, and floors by hand."""

from __future__ import annotations

import pytest

from harness.errors import ProblemError
from harness.roofline import Floor, PeakRates, Roofline, evaluate, floor_for, rates_for

NAMES = {"m": 16, "n": 2112, "k": 7168, "half": 0.5, "causal": True, "regime": "normal"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*m*n", 2 * 16 * 2112),
        ("n*k/2 + 1", 2112 * 3584 + 1),
        ("(m + 3)//2", 9.0),
        ("m % 5", 1.0),
        ("-m + 20", 4.0),
        ("m**2", 256.0),
        ("min(m, 8) + max(m, 8, 99)", 107.0),
        ("ceil(n/256)*256", 2304.0),
        ("half*causal", 0.5),
        ("1e3", 1000.0),
    ],
)
def test_arithmetic_in_the_names_of_a_case(expression: str, value: float) -> None:
    assert evaluate(expression, NAMES) == value


@pytest.mark.parametrize(
    ("expression", "because"),
    [
        ("__import__('os').system('true')", "is not arithmetic"),
        ("m.__class__", "is not arithmetic: Attribute"),
        ("[m for m in (1,)]", "is not arithmetic: ListComp"),
        ("lambda: 1", "is not arithmetic: Lambda"),
        ("'text'", "is not arithmetic: Constant"),
        ("min(m, key=n)", "is not arithmetic: a named argument"),
        ("round(m)", "is not arithmetic: Call"),
        ("9**9999", "an exponent above"),
        ("10.0**4000", "is not arithmetic"),
        ("9" * 480 + "**4096", "is not arithmetic"),
        ("1e999", "is not arithmetic: it is not finite"),
        ("1e999 - 1e999", "is not arithmetic: it is not finite"),
        ("(-8)**0.5", "is not arithmetic"),
        ("min(*m)", "is not arithmetic: Starred"),
        ("m if m else n", "is not arithmetic: IfExp"),
        ("m or n", "is not arithmetic: BoolOp"),
        ("1 << 9", "is not arithmetic: BinOp"),
        ("True", "is not arithmetic: Constant"),
        ("(m := 3)", "is not arithmetic: NamedExpr"),
        ("m/0", "is not arithmetic"),
        ("m +", "is not arithmetic"),
        ("q*2", "'q' is no key of the case"),
        ("regime*2", "'regime' is text"),
        ("m" * 501, "501 characters"),
        ("(" * 300 + "m" + ")" * 100, "is not arithmetic"),
    ],
)
def test_anything_else_is_refused(expression: str, because: str) -> None:
    with pytest.raises(ProblemError, match=because):
        evaluate(expression, NAMES)


def test_the_floor_is_the_larger_of_traffic_and_arithmetic() -> None:
    rates = PeakRates(1e12, {"bf16": 1e15, "fp32": 1e14})
    memory = floor_for(Roofline("1000*m", {"bf16": "m"}), {"m": 1000}, rates)
    assert (memory.time_ns, memory.bound) == (pytest.approx(1000.0), "memory")
    compute = floor_for(Roofline("m", {"bf16": "1e9*m", "fp32": "1e8*m"}), {"m": 1}, rates)
    assert (compute.time_ns, compute.bound) == (pytest.approx(1000 + 1000), "compute")


def test_work_in_a_format_without_a_unit_runs_on_the_next_wider_one() -> None:
    work = Roofline("0", {"fp4": "1e12"})
    assert floor_for(work, {}, PeakRates(1e12, {"fp4": 4e15, "bf16": 1e15})).time_ns == pytest.approx(0.25e6)
    assert floor_for(work, {}, PeakRates(1e12, {"fp8": 2e15, "bf16": 1e15})).time_ns == pytest.approx(0.5e6)
    assert floor_for(work, {}, PeakRates(1e12, {"bf16": 1e15})).time_ns == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("model", "bytes_per_s"),
    [
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("AMD Instinct MI355X", 8e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12),
    ],
)
def test_devices_are_known_by_their_driver_s_names(model: str, bytes_per_s: float) -> None:
    rates = rates_for(model)
    assert rates is not None
    assert rates.bytes_per_s == bytes_per_s


@pytest.mark.parametrize(
    "model",
    [
        "AMD EPYC", "NVIDIA RTX A1000", "NVIDIA GH200 480GB", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100-PCIE-80GB",
        "NVIDIA A100-SXM4-40GB", "NVIDIA H200 MIG 1g.18gb", "",
    ],
)  # fmt: skip
def test_an_unknown_device_or_another_board_of_the_name_has_no_rates(model: str) -> None:
    assert rates_for(model) is None


def test_the_floor_of_a_gemm_on_two_real_devices() -> None:
    gemm = Roofline("2*m*k + n*k/2 + n*k/32 + 2*m*n", {"fp4": "2*m*n*k"})
    spec = {"m": 256, "n": 3072, "k": 1536, "seed": 7856}
    # 786 432 + 2 359 296 + 147 456 + 1 572 864 = 4 866 048 bytes; 2 415 919 104 operations, on an H200 in FP8.
    mi355x, h200 = rates_for("AMD Instinct MI355X"), rates_for("NVIDIA H200")
    assert mi355x is not None and h200 is not None
    assert floor_for(gemm, spec, mi355x) == Floor(pytest.approx(608.256), "memory")
    assert floor_for(gemm, spec, h200) == Floor(pytest.approx(1220.778, abs=1e-3), "compute")
