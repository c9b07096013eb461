"""Margins: how far outputs are from the limits, and that each problem's limits tell wrong kernels from right ones."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.errors import DeviceError, ProblemError
from harness.judge import judge
from harness.margins import WANTED, Distance, Margin, Trial, distance_of, try_out
from harness.problem import RowLimits, load_problem
from harness.validate import opened, validate, validated_cases
from leaderboard.margins import factor, label, least_sure, margin_summary, summary

ROOT = Path(__file__).resolve().parents[1]
DOUBLING = ROOT / "tests" / "problems" / "doubling"
SHIPPED = ("fp4_gemm", "mxfp4_moe", "mla_decode", "flash_attention_fwd", "nvfp4_gemm")
MUTANTS = '''
def half(data):
    """Forgets to double.

    And more that nobody reads."""
    return data[0] + data[1]


def right_for_three_rows(data):
    """Is right when there are three rows."""
    return 2 * data[0] + data[1] * (len(data[0]) == 3)


def exact(data, precision):
    """Doubles and adds."""
    return 2 * data[0] + data[1]


def only_small(data):
    """Has nothing to do where there are many rows."""
    return None if len(data[0]) > 4 else data[0] + data[0] + data[1]


WRONG = [half, right_for_three_rows]
HONEST = [exact, only_small]
'''


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On one thread: these tensors are small."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def doubling(tmp_path: Path) -> Path:
    """The test problem with variants."""
    folder = tmp_path / "doubling"
    shutil.copytree(DOUBLING, folder)
    (folder / "mutants.py").write_text(MUTANTS)
    return folder


# --- distances -----------------------------------------------------------------------------------------------


def test_a_row_s_distance_is_its_error_over_its_limit() -> None:
    want = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    output = torch.tensor([[3.0, 4.0], [6.0, 8.5]])
    found = distance_of(output, want, RowLimits(row_relative=0.02, rtol=1.0))
    assert found.row == pytest.approx(0.5 / 10 / 0.02)
    assert found.element == pytest.approx(0.5 / 8)
    assert (found.outlier, found.worst, found.measure) == (0.0, found.row, "row")


def test_an_element_s_distance_is_its_error_over_what_it_may_be_off() -> None:
    want = torch.tensor([[3.0, 4.0]])  # rms sqrt(12.5)
    limits = RowLimits(row_relative=1.0, rtol=0.01, atol=0.02, atol_rms=0.1)
    found = distance_of(torch.tensor([[3.0, 4.6]]), want, limits)
    assert found.element == pytest.approx(0.6 / (0.01 * 4 + 0.02 + 0.1 * 12.5**0.5))
    assert found.measure == "element"


def test_the_allowed_share_of_elements_does_not_count() -> None:
    want, output = torch.ones(1, 10), torch.ones(1, 10)
    output[0, :3] += torch.tensor([0.5, 0.4, 0.3])
    limits = RowLimits(row_relative=1.0, atol=0.1, mismatched=0.2)
    assert distance_of(output, want, limits).element == pytest.approx(3.0)
    assert distance_of(output, want, RowLimits(row_relative=1.0, atol=0.1)).element == pytest.approx(5.0)


def test_an_excused_row_has_a_limit_of_its_own() -> None:
    want, output = torch.ones(4, 16), torch.ones(4, 16)
    output[1] *= 1.05
    output[2] *= 1.004
    limits = RowLimits(row_relative=0.01, rtol=0.02, outlier_rows=0.25, outlier_row_relative=0.1)
    found = distance_of(output, want, limits)
    assert found.outlier == pytest.approx(0.5, rel=1e-4)
    assert found.row == pytest.approx(0.4, rel=1e-4)
    assert found.element == pytest.approx(0.2, rel=1e-4)
    assert found.measure == "outlier"


def test_what_is_not_finite_is_infinitely_far() -> None:
    want = torch.ones(2, 4)
    output = want.clone()
    output[1, 2] = math.nan
    assert distance_of(output, want, RowLimits(row_relative=1.0, atol=1.0)).worst == math.inf


def test_where_nothing_may_be_off_no_error_is_no_distance_and_any_error_an_infinite_one() -> None:
    want = torch.tensor([[0.0, 1.0]])
    limits = RowLimits(row_relative=1.0)
    assert distance_of(want.clone(), want, limits) == Distance(0.0, 0.0)
    assert distance_of(torch.tensor([[0.1, 1.0]]), want, limits).element == math.inf


@pytest.mark.parametrize(
    "limits",
    [
        RowLimits(row_relative=0.02, rtol=0.05, atol_rms=0.05),
        RowLimits(row_relative=0.02, rtol=0.02, atol=0.01, mismatched=0.05),
        RowLimits(row_relative=0.015, rtol=0.06, mismatched=0.01, outlier_rows=0.1, outlier_row_relative=0.03),
    ],
)
def test_a_distance_is_at_most_one_exactly_where_the_judge_accepts(limits: RowLimits) -> None:
    generator = torch.Generator().manual_seed(1)
    verdicts = set()
    for size in torch.linspace(0.002, 0.06, 60):
        want = torch.randn(12, 40, generator=generator)
        output = want * (1 + size * torch.rand(12, 1, generator=generator) * torch.randn(12, 40, generator=generator))
        ok = judge(output, {None: want}, {None: limits}).ok
        assert (distance_of(output, want, limits).worst <= 1) == ok
        verdicts.add(ok)
    assert verdicts == {True, False}


def test_an_output_is_measured_against_the_precision_it_is_nearest_to() -> None:
    references = {"fine": torch.ones(2, 8), "coarse": torch.full((2, 8), 1.1)}
    limits = {"fine": RowLimits(row_relative=0.01, atol=1.0), "coarse": RowLimits(row_relative=0.1, atol=1.0)}
    found = try_out("n=1", torch.full((2, 8), 1.05), references, limits, published=True)
    assert (found.ok, found.precision, found.measure, found.published) == (True, "coarse", "row", True)
    assert found.distance == pytest.approx(0.05 / 1.1 / 0.1, rel=1e-5)


# --- margins -------------------------------------------------------------------------------------------------


def margin(honest: bool, *distances: float, precision: str | None = None) -> Margin:
    trials = tuple(Trial(f"n={i}", value <= 1, value, "row", None) for i, value in enumerate(distances))
    return Margin("variant", "Does it.", honest, precision, trials)


def test_a_wrong_variant_must_fail_somewhere_and_its_margin_is_where_it_shows_most() -> None:
    found = margin(False, 0.5, 1.8, 1.2)
    assert (found.as_it_should, found.factor, found.near, found.deciding.case) == (True, 1.8, False, "n=1")
    assert margin(False, 0.5, 1.4).near
    assert not margin(False, 0.5, 0.9).as_it_should


def test_an_honest_variant_must_pass_everywhere_and_its_margin_is_where_it_has_least_room() -> None:
    found = margin(True, 0.1, 0.5)
    assert (found.as_it_should, found.factor, found.near, found.deciding.case) == (True, 2.0, False, "n=1")
    assert margin(True, 0.1, 0.8).near
    assert margin(True, 0.0).factor == math.inf
    assert not margin(True, 0.1, 1.1).as_it_should


def test_of_several_precisions_the_misjudged_one_is_shown_else_the_nearest() -> None:
    sure, near, wrong = (margin(True, *each) for each in ((0.1,), (0.9,), (0.1, 2.0)))
    assert least_sure([sure, near]) is near
    assert least_sure([near, wrong, sure]) is wrong


def test_the_summary_names_what_is_misjudged_and_what_is_near() -> None:
    lines = [str(line) for line in summary([margin(False, 0.9, precision="fp8"), margin(True, 0.8)])]
    assert lines == ["passes, and should not: variant [fp8]", "nearer than 1.5x: variant, 1.25x"]
    lines = [str(line) for line in summary([margin(False, 9.0), margin(True, 0.5), margin(True, 0.1)])]
    assert lines == ["all 1 wrong variants fail, all 2 right ones pass"]


def test_a_case_is_told_by_what_others_have_not_and_without_its_secret_seed() -> None:
    cases = ["m=1 n=2 seed=3", f"m=1 n=2 seed={1 << 40} regime=heavy"]
    assert [label(case, cases) for case in cases] == ["seed=3", "regime=heavy"]
    assert [factor(value) for value in (1.499, 23.4, math.inf)] == ["1.50x", "23x", "∞"]


# --- variants ------------------------------------------------------------------------------------------------


def test_variants_run_on_the_small_cases_and_have_a_name_and_a_sentence(doubling: Path, on_the_cpu: None) -> None:
    margins = validate(load_problem(doubling), "cpu")
    assert [(each.name, each.sentence, each.honest, each.as_it_should) for each in margins] == [
        ("half", "Forgets to double.", False, True),
        ("right for three rows", "Is right when there are three rows.", False, True),
        ("exact", "Doubles and adds.", True, True),
        ("only small", "Has nothing to do where there are many rows.", True, True),
    ]
    assert [[trial.ok for trial in each.trials] for each in margins[1:]] == [
        [False, True, False],
        [True] * 3,
        [True] * 2,
    ]
    assert [[trial.published for trial in each.trials] for each in margins[:1]] == [[False] * 3]


def test_a_problem_s_modules_are_forgotten_afterwards(doubling: Path) -> None:
    before = {name: sys.modules.get(name) for name in ("reference", "task", "mutants")}
    place, path = os.getcwd(), list(sys.path)
    with opened(load_problem(doubling)) as (reference, mutants):
        folder = Path(reference.module.__file__ or "").parent
        assert mutants.half.__name__ == "half"
        assert folder.is_dir()
    assert {name: sys.modules.get(name) for name in before} == before
    assert (os.getcwd(), sys.path) == (place, path)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ("WRONG = []\nHONEST = []", "has no list WRONG: put there the functions"),
        ("def f(data):\n    return data[0]\nWRONG = [f]", "in WRONG should be a function with a docstring"),
        (
            'def f(data):\n    """Is flat."""\n    return data[0].double()\nWRONG = HONEST = [f]',
            "mutants.py: 'f' returned torch.float64 (4, 32) on cpu: expected torch.float32 (4, 32) on cpu",
        ),
    ],
)
def test_a_mistake_in_mutants_py_is_told_in_a_line(
    doubling: Path, on_the_cpu: None, variants: str, message: str
) -> None:
    (doubling / "mutants.py").write_text(variants)
    with pytest.raises(ProblemError) as told:
        validate(load_problem(doubling), "cpu")
    assert message in str(told.value)


def test_a_problem_without_variants_or_limits_says_what_is_missing(doubling: Path) -> None:
    (doubling / "mutants.py").unlink()
    with pytest.raises(ProblemError, match=r"has no mutants\.py: add one that lists variants under WRONG and HONEST"):
        validate(load_problem(doubling), "cpu")
    task = (doubling / "task.yml").read_text()
    (doubling / "task.yml").write_text("".join(line for line in task.splitlines(True) if "tolerance" not in line))
    with pytest.raises(ProblemError, match=r"add `tolerance` to its task\.yml"):
        validate(load_problem(doubling), "cpu")


def test_inputs_on_another_device_are_a_mistake(doubling: Path, on_the_cpu: None) -> None:
    with pytest.raises(DeviceError, match="the inputs were made on cpu, not on cuda"):
        validate(load_problem(doubling), "cuda")


# --- the shipped problems ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_every_regime_is_among_the_cases_on_either_device(name: str) -> None:
    problem = load_problem(ROOT / "problems" / name)
    for device, own in (("cpu", problem.smoke), ("cuda:1", problem.tests)):
        cases = validated_cases(problem, device)
        assert cases[: len(own)] == own
        assert {case.spec.get("regime", problem.regimes[0]) for case in cases} == set(problem.regimes)
        assert cases == validated_cases(problem, device)


def told(readme: str) -> dict[str, float]:
    """The margins in a README's tables, by what the variant does."""
    rows = [line.strip("| \n").split(" | ") for line in readme.splitlines() if line.startswith("| ")]
    margins = {cells[0]: cells[1] for cells in rows if len(cells) in (4, 5) and (cells[1] + " ")[-2] in "x∞"}
    return {sentence: math.inf if text == "∞" else float(text.removesuffix("x")) for sentence, text in margins.items()}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_mutant_fails_and_every_honest_variant_passes_by_a_factor_of_one_and_a_half(
    name: str, on_the_cpu: None
) -> None:
    problem = load_problem(ROOT / "problems" / name)
    margins = validate(problem, "cpu")
    assert [(each.name, each.precision) for each in margins if not each.as_it_should] == []
    assert [(each.name, each.precision, each.factor) for each in margins if each.factor < WANTED] == []
    assert {each.precision for each in margins if each.honest} >= set(problem.precisions)
    shown = [least_sure([each for each in margins if each.name == name]) for name in {each.name for each in margins}]
    measured = {each.sentence.rstrip("."): each.factor for each in shown}
    assert told((problem.folder / "README.md").read_text()) == pytest.approx(measured, rel=0.05)


# --- the command ---------------------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`podium validate` in a process of its own, since it decides which GPUs torch may see."""
    command = [sys.executable, str(ROOT / "cli.py"), "validate", *arguments, "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_the_command_shows_each_variant_and_ends_with_zero_when_all_are_judged_rightly(doubling: Path) -> None:
    done = run(str(doubling))
    assert (done.returncode, done.stderr) == (0, "")
    assert "right for three rows" in done.stdout
    assert "fails 2 of 3" in done.stdout
    assert "Forgets to double." in done.stdout
    assert done.stdout.rstrip().endswith("all 2 wrong variants fail, all 2 right ones pass")


def test_the_command_ends_with_two_and_names_a_wrong_variant_that_passes_as_json_too(doubling: Path) -> None:
    (doubling / "mutants.py").write_text(MUTANTS.replace("WRONG = [half", "WRONG = [exact, half"))
    done = run(str(doubling))
    assert done.returncode == 2
    assert "passes, and should not: exact" in done.stdout
    done = run(str(doubling), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"], found["problem"], found["device"]) == (2, False, "doubling", "cpu")
    wrong = [each["name"] for each in found["variants"] if not each["as_it_should"]]
    assert wrong == ["exact"]
    half = found["variants"][1]
    assert half["margin"] == max(trial["distance"] for trial in half["trials"]) > 1
    assert [trial["case"] for trial in half["trials"]] == [case.name for case in load_problem(doubling).smoke]


def test_a_mistake_ends_the_command_with_one_in_a_line(doubling: Path) -> None:
    (doubling / "mutants.py").unlink()
    done = run(str(doubling))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "has no mutants.py" in done.stderr


def test_an_infinite_margin_is_null_in_json(doubling: Path) -> None:
    found = margin_summary(load_problem(doubling), "cpu", [margin(False, math.inf)])
    assert (found["variants"][0]["margin"], found["variants"][0]["trials"][0]["distance"]) == (None, None)
    assert json.loads(json.dumps(found, allow_nan=False))["ok"] is True
