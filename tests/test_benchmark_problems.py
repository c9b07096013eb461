"""The problems that the benchmarks measure with: they judge rightly, and the kernels beside them pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from harness.evaluate import Request, evaluate
from harness.judge import judge
from harness.problem import Problem, load_problem
from harness.record import Record
from harness.submission import read_submission

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
SUBMISSIONS = BENCHMARKS / "submissions"
KERNELS = sorted(path.relative_to(SUBMISSIONS).as_posix() for path in SUBMISSIONS.glob("*/*.py"))
WRONG = {"vectoradd": "data[0] - data[1]", "matmul": "1.01 * (data[0] @ data[1])", "spin": "data[0] + 1.001"}
TRUTH = {
    "vectoradd": lambda a, b: a + b,
    "matmul": lambda a, b: np.einsum("ik,kj->ij", a, b),
    "spin": lambda x, _: x + 1,
}


def load(name: str) -> Problem:
    return load_problem(BENCHMARKS / "problems" / name)


def reference(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_reference", load(name).folder / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, path: Path, caches: Path) -> Record:
    return evaluate(Request(load(name), read_submission(path, "us"), "test", "cpu", caches))


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_the_reference_agrees_with_float64(name: str) -> None:
    module = reference(name)
    for case in load(name).smoke:
        data = module.generate_input(**case.spec)
        truth = TRUTH[name](*(part.double().cpu().numpy() if isinstance(part, torch.Tensor) else part for part in data))
        np.testing.assert_allclose(module.expected(data).cpu().numpy(), truth, rtol=1e-6, atol=1e-6)
        rows = torch.tensor([0, 3, 15], device=data[0].device)
        np.testing.assert_allclose(
            module.expected(data, rows=rows).cpu().numpy(), truth[[0, 3, 15]], rtol=1e-6, atol=1e-6
        )
        assert module.check_implementation(data, module.ref_kernel(data))[0]


def test_a_product_summed_in_float16_is_wrong_at_the_largest_k() -> None:
    module, tolerance = reference("matmul"), load("matmul").tolerance
    assert tolerance is not None
    a, b = (part.cpu() for part in module.generate_input(4, 64, 4096, 1))
    sums = torch.zeros(4, 64, dtype=torch.float16)
    for step in range(4096):
        sums += a[:, step, None] * b[None, step]
    want = {None: module.expected((a, b))}
    assert not judge(sums, want, {None: tolerance.default}).ok
    assert judge(module.ref_kernel((a, b)), want, {None: tolerance.default}).ok


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_passes_its_small_cases_on_the_cpu(kernel: str, tmp_path: Path) -> None:
    cases = run(kernel.split("/")[0], SUBMISSIONS / kernel, tmp_path).cases
    assert {(case.outcome.verdict, case.judgement and case.judgement.gpumode) for case in cases} == {("passed", "pass")}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_wrong_kernel_is_wrong(name: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"def custom_kernel(data):\n    return {WRONG[name]}\n")
    assert {case.outcome.verdict for case in run(name, file, tmp_path).cases} == {"wrong"}


def test_the_slower_spins_differ_by_their_ticks_only() -> None:
    plain = (SUBMISSIONS / "spin/triton_spin.py").read_text()
    for more in ("005", "010", "020"):
        slower = (SUBMISSIONS / f"spin/triton_spin_{more}.py").read_text()
        assert slower == plain.replace("MORE = 1.0\n", f"MORE = 1.{more}\n") != plain
