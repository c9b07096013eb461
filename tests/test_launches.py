"""What a submission launched, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from records import case, record, spec, timing

from harness.record import CaseResult, Kernel
from leaderboard.launches import launch_sentences

GEMM = Kernel("gemm_kernel", 1)
FILL = Kernel("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", 2)


def launched(m: int, *kernels: Kernel) -> CaseResult:
    return replace(case(spec(m), timing(9000.0)), kernels=kernels)


def test_what_all_cases_launch_is_said_once() -> None:
    found = launch_sentences(record("3f9a01bc", [launched(16, GEMM, FILL), launched(64, GEMM, FILL)]))
    assert found == [f"every case launches gemm_kernel, {FILL.name} ×2"]


def test_cases_that_launch_others_are_told_apart() -> None:
    found = launch_sentences(record("3f9a01bc", [launched(16, GEMM), launched(32, GEMM), launched(64, FILL)]))
    assert found == [
        "m=16 n=2112 k=7168 and m=32 n=2112 k=7168: gemm_kernel",
        f"m=64 n=2112 k=7168: {FILL.name} ×2",
    ]


@pytest.mark.parametrize(
    "name",
    ["aten::mm", FILL.name, "sm90_xmma_gemm_bf16", "nvjet_tst_128x8", "Cijk_Alik_Bljk", "void cutlass::Kernel2<x>"],
)
def test_that_nothing_is_the_submission_s_own_is_a_remark(name: str) -> None:
    assert launch_sentences(record("3f9a01bc", [launched(16, Kernel(name, 1))]))[-1] == (
        "all of it comes with torch or the vendor's libraries"
    )
    assert len(launch_sentences(record("3f9a01bc", [launched(16, Kernel(name, 1), GEMM)]))) == 1


def test_a_long_list_is_cut() -> None:
    many = [Kernel(f"kernel_{number}", 1) for number in range(9)]
    (found,) = launch_sentences(record("3f9a01bc", [launched(16, *many)]))
    assert found.endswith("kernel_5 and 3 more")


def test_nothing_is_said_where_it_was_not_asked_for() -> None:
    assert launch_sentences(record("3f9a01bc", [launched(16)])) == []
