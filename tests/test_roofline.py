"""Speed of light: arithmetic that is only arithmetic, and floors by hand."""

from __future__ import annotations

import pytest

from harness.errors import ProblemError
from harness.roofline import PeakRates, Roofline, evaluate, floor_for, rates_for

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
        ("AMD Instinct MI355X", 8e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12),
    ],
)
def test_devices_are_known_by_their_driver_s_names(model: str, bytes_per_s: float) -> None:
    rates = rates_for(model)
    assert rates is not None
    assert rates.bytes_per_s == bytes_per_s


def test_an_unknown_device_has_no_rates() -> None:
    assert rates_for("AMD EPYC") is None
