"""The shipped problems, end to end: their kernels pass, a wrong one and a dishonest one don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evaluate import Request, evaluate
from harness.problem import load_problem
from harness.record import Mode, Record
from harness.submission import read_submission

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted(path.relative_to(ROOT / "submissions").as_posix() for path in ROOT.glob("submissions/*/*.py"))
WRONG = {
    "fp4_gemm": "return (data[0].float() @ data[1].float().T).bfloat16()",  # nothing quantised
    "mxfp4_moe": "return torch.zeros_like(data[0])",
    "flash_attention_fwd": "return data[2].repeat_interleave(data[0].shape[1] // data[2].shape[1], 1)",  # own values
    "nvfp4_gemm": "return torch.zeros(len(data[0]), len(data[3]), dtype=torch.bfloat16, device=data[0].device)",
    "mla_decode": "return (data[0][..., :512].float() / 24).bfloat16()",  # the closed form: reads no cache
}


def run(problem: str, path: Path, tmp_path: Path, mode: Mode = "test", device: str = "cpu") -> Record:
    request = Request(load_problem(ROOT / "problems" / problem), read_submission(path, "us"), mode, device, tmp_path)
    return evaluate(request)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_kernel_passes_its_small_cases_on_the_cpu(name: str, tmp_path: Path) -> None:
    record = run(name.split("/")[0], ROOT / "submissions" / name, tmp_path)
    assert [(case.name, case.outcome.message) for case in record.cases if case.outcome.verdict != "passed"] == []
    assert {case.judgement.gpumode for case in record.cases if case.judgement} == {"pass"}


@pytest.mark.parametrize("problem", sorted(WRONG))
def test_a_wrong_kernel_is_wrong_on_every_small_case(problem: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"import torch\n\n\ndef custom_kernel(data):\n    {WRONG[problem]}\n")
    record = run(problem, file, tmp_path)
    assert {case.outcome.verdict for case in record.cases} == {"wrong"}


def test_triton_in_the_interpreter_is_a_timing_class_of_its_own(tmp_path: Path) -> None:
    record = run("fp4_gemm", ROOT / "submissions/fp4_gemm/triton_dot_scaled.py", tmp_path, "benchmark")
    assert record.timing_class == "interpreter"
    assert {case.outcome.verdict for case in record.cases} == {"passed"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_kernel_passes_and_is_timed_on_the_gpu(name: str, tmp_path: Path) -> None:
    record = run(name.split("/")[0], ROOT / "submissions" / name, tmp_path, "leaderboard", "cuda")
    assert [(case.name, case.outcome.message) for case in record.cases if case.outcome.verdict != "passed"] == []
    assert record.doubts == ()
    assert len(record.timed) == len(load_problem(ROOT / "problems" / name.split("/")[0]).benchmarks)


@pytest.mark.gpu
@pytest.mark.parametrize("problem", sorted(WRONG))
def test_a_wrong_kernel_is_wrong_on_the_gpu(problem: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"import torch\n\n\ndef custom_kernel(data):\n    {WRONG[problem]}\n")
    record = run(problem, file, tmp_path, "test", "cuda")
    assert {case.outcome.verdict for case in record.cases} == {"wrong"}
