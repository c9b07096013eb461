"""The judge: which outputs are right, and how the wrong ones are described."""

from __future__ import annotations

import pytest
import torch

from harness.judge import Finding, judge, poison, poisoned, same_bits
from harness.problem import RowLimits

LIMITS = RowLimits(row_relative=0.01, rtol=0.02, atol=0.001)


def look(output: torch.Tensor, reference: torch.Tensor, limits: RowLimits = LIMITS) -> Finding:
    return judge(output, {None: reference}, {None: limits})


def reference() -> torch.Tensor:
    return torch.arange(1.0, 13.0).reshape(3, 4)


def test_the_reference_itself_is_right_with_no_error() -> None:
    found = look(reference(), reference())
    assert (found.ok, found.row_error, found.mismatched) == (True, 0.0, 0.0)


def test_a_row_error_is_the_norm_of_the_error_over_the_norm_of_the_row() -> None:
    output = torch.tensor([[3.0, 4.0], [3.0, 4.05]])
    found = look(output, torch.tensor([[3.0, 4.0], [3.0, 4.0]]), RowLimits(row_relative=0.02, rtol=0.02))
    assert found.ok
    assert found.row_error == pytest.approx(0.05 / 5, rel=1e-5)


def test_zeros_are_wrong_and_the_worst_row_and_element_are_named() -> None:
    output = reference()
    output[2, 1:] = 0.0
    found = look(output, reference())
    assert not found.ok
    assert found.row_error == pytest.approx(((10**2 + 11**2 + 12**2) / (9**2 + 10**2 + 11**2 + 12**2)) ** 0.5)
    assert "row 2 is" in found.message
    assert "element [2, 3] is 0, expected 12" in found.message
    assert "3 of 12 elements (25 %) outside the elementwise limit, row 2, the last 3 columns" in found.message


def test_one_element_far_off_is_wrong_even_when_its_row_is_close() -> None:
    output = torch.full((1, 10_000), 1.0)
    output[0, 17] = 1.5
    found = look(output, torch.ones(1, 10_000))
    assert found.row_error == pytest.approx(0.005)
    assert not found.ok
    assert "element [0, 17] is 1.5, expected 1" in found.message


def test_an_allowed_share_of_mismatched_elements_is_allowed() -> None:
    output = torch.full((1, 10_000), 1.0)
    output[0, 17] = 1.5
    assert look(output, torch.ones(1, 10_000), RowLimits(row_relative=0.01, rtol=0.02, mismatched=0.001)).ok


def test_an_element_limit_may_be_a_multiple_of_the_row_s_rms() -> None:
    want = torch.tensor([[0.0, 2.0, 0.0, 2.0]])  # rms sqrt(2)
    limits = RowLimits(row_relative=1.0, atol_rms=0.1)
    assert look(want + torch.tensor([[0.14, 0, 0, 0]]), want, limits).ok
    assert not look(want + torch.tensor([[0.15, 0, 0, 0]]), want, limits).ok


def test_an_unwritten_tail_is_called_unwritten() -> None:
    output = reference().bfloat16()
    poison(output[1:])
    found = look(output, reference())
    assert not found.ok
    assert found.message == "8 of 12 elements (67 %) never written, the last 2 rows, all columns"


@pytest.mark.parametrize(
    ("wrong", "total", "share"),
    [
        (1022, 1024, "1022 of 1024 elements (99.8 %)"),
        (999_999, 1_000_000, "999999 of 1000000 elements (> 99.9 %)"),
        (1024, 1024, "all 1024 elements"),
        (991, 1000, "991 of 1000 elements (99.1 %)"),
        (2, 3, "2 of 3 elements (67 %)"),
        (20, 1_000_000, "20 of 1000000 elements (0.002 %)"),
        (1, 1_000_000, "1 of 1000000 elements (< 0.001 %)"),
    ],
)
def test_a_share_is_readable_and_only_all_is_all(wrong: int, total: int, share: str) -> None:
    output = torch.ones(total)
    output[:wrong] = float("nan")
    assert look(output, torch.ones(total)).message.startswith(f"{share} NaN where")


def test_the_poison_is_not_an_honest_nan() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        tensor = torch.full((4,), float("nan"), dtype=dtype)
        assert not poisoned(tensor).any()
        poison(tensor)
        assert poisoned(tensor).all()
        assert tensor.isnan().all()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.complex64])
def test_other_types_have_a_poison_too(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, dtype=dtype)
    assert not poisoned(tensor).any()
    poison(tensor)
    assert poisoned(tensor).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_where_the_reference_is_is_wrong(value: float) -> None:
    output = reference()
    output[1, 2] = value
    found = look(output, reference())
    assert not found.ok
    assert "where the reference is finite, row 1, column 2" in found.message
    assert ("NaN" if value != value else "infinite") in found.message


def test_an_infinity_that_the_reference_has_too_is_right() -> None:
    want = torch.tensor([[1.0, float("inf"), 2.0]])
    assert look(want.clone(), want, RowLimits(row_relative=0.01, rtol=0.01)).ok


def test_a_row_of_zeros_is_measured_by_the_largest_row() -> None:
    want = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    output = torch.tensor([[0.04, 0.03], [3.0, 4.0]])
    found = look(output, want, RowLimits(row_relative=0.011, atol=1.0))
    assert found.ok
    assert found.row_error == pytest.approx(0.01)


def test_the_nearest_declared_precision_decides() -> None:
    fine, coarse = torch.ones(2, 8), torch.full((2, 8), 1.1)
    limits = {"bf16": RowLimits(row_relative=0.01, rtol=0.05), "fp4": RowLimits(row_relative=0.01, rtol=0.05)}
    found = judge(torch.full((2, 8), 1.101), {"bf16": fine, "fp4": coarse}, limits)
    assert (found.ok, found.precision) == (True, "fp4")
    between = judge(torch.full((2, 8), 1.04), {"bf16": fine, "fp4": coarse}, limits)
    assert (between.ok, between.precision) == (False, "bf16")


def test_an_outlier_row_may_exceed_the_limits_but_not_its_own() -> None:
    limits = RowLimits(row_relative=0.01, rtol=0.02, outlier_rows=0.01, outlier_row_relative=0.1)
    output = torch.ones(50, 16)
    output[7] *= 1.05
    assert look(output, torch.ones(50, 16), limits).ok
    output[7] *= 1.10
    assert not look(output, torch.ones(50, 16), limits).ok
    output[7:9] = 1.05
    assert not look(output, torch.ones(50, 16), limits).ok


def test_any_number_of_dimensions_is_a_list_of_rows() -> None:
    output = torch.ones(2, 3, 4)
    output[1, 2, 0] = 5.0
    found = look(output, torch.ones(2, 3, 4))
    assert "row [1, 2]" in found.message
    assert "element [1, 2, 0]" in found.message


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize("count", [1, 7, 64, 1000])
def test_same_bits_tells_one_bit_of_one_element(
    dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.judge._COMPARED_AT_ONCE", 16)
    one = (torch.arange(count) % 2).to(dtype)
    other = one.clone()
    assert same_bits(one, other)
    for index in {0, count // 2, count - 1}:
        kept = other[index].clone()
        other[index] = 1 - kept.to(torch.int32) if dtype == torch.bool else kept + 1
        assert not same_bits(one, other)
        other[index] = kept
    assert same_bits(one, other)


def test_same_bits_are_bits_and_not_values() -> None:
    nan = torch.full((4,), float("nan"))
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.zeros(4), -torch.zeros(4))
    assert same_bits(torch.arange(12.0).view(3, 4).t(), torch.arange(12.0).view(3, 4).t())
    assert not same_bits(torch.arange(12.0).view(3, 4).t(), torch.arange(1.0, 13).view(3, 4).t())
