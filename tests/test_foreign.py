"""Problem folders of GPU MODE's kind, as they are: look-alikes of our own with each of their quirks, on the CPU."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import cli
from harness.errors import ProblemError
from harness.evaluate import Request, evaluate
from harness.problem import SHIPPED, find_problem, list_problems, load_problem
from harness.processes.cpu_for_cuda import cpu_for_cuda
from harness.record import Record
from harness.submission import read_submission

UTILS = """
import torch

def compare(received, expected):
    if received.shape != expected.shape:
        return "other sizes"
    return "" if torch.allclose(received.to(expected.dtype), expected, rtol=1e-3, atol=1e-3) else "values differ"
"""
TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
  - {"name": "eval.py", "source": "../eval.py"}
lang: "py"
description: |
  Something.
config:
  main: "eval.py"
tests:
  - {"size": 64, "k2": 3, "flag": "False", "seed": 4242}
  - {"size": 96, "k2": 5, "flag": "True", "seed": 5236}
benchmarks:
  - {"size": 128, "k2": 5, "flag": "True", "seed": 1}
"""
GENERATE = """
import torch
from task import input_t, output_t
from utils import compare

def generate_input(size: int, k2: int, flag: str, seed: int) -> input_t:
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    x = torch.randn(size, k2, device="cuda", dtype=torch.float32, generator=generator).contiguous()
    out = torch.empty(size, k2, device="cuda", dtype=torch.float32)
    return x, out
"""
SCALED = (
    GENERATE
    + """
def ref_kernel(data: input_t) -> output_t:
    x, out = data
    out[...] = 3 * x
    torch.cuda.synchronize()
    return out

def check_implementation(data, output):
    said = compare(output, ref_kernel(data))
    return said == "", said
"""
)
RIGHT = """
from task import input_t, output_t

def custom_kernel(data):
    data[1][...] = 3 * data[0]
    return data[1]
"""


class Tree:
    """A tree of problems below a folder: `add(set/name, reference, task)` puts one there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, place: str, reference: str = SCALED, task: str = TASK) -> Path:
        folder = self.root / place
        folder.mkdir(parents=True)
        (folder.parent / "utils.py").write_text(UTILS)
        (folder / "task.py").write_text("input_t = output_t = object\n")
        (folder / "reference.py").write_text(reference)
        (folder / "task.yml").write_text(task)
        return folder


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree")


Run = Callable[[Path, str], Record]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def submit(folder: Path, source: str = RIGHT) -> Record:
        file = tmp_path / "kernel.py"
        file.write_text(textwrap.dedent(source))
        return evaluate(Request(load_problem(folder), read_submission(file, "us"), "test", "cpu", tmp_path / "caches"))

    return submit


def test_its_own_check_judges_and_cuda_means_the_cpu_there(tree: Tree, run: Run) -> None:
    folder = tree.add("pmpp/scale_py")
    record = run(folder, RIGHT)
    assert record.outcome.verdict == "passed", record.outcome
    assert record.notes == ()
    wrong = run(folder, "def custom_kernel(data):\n    return 2 * data[0]\n")
    assert (wrong.outcome.verdict, wrong.outcome.message) == ("wrong", "values differ")
    idle = run(folder, "def custom_kernel(data):\n    return data[1]\n")
    assert idle.outcome.verdict == "wrong"


def test_an_old_check_that_returns_only_a_text_and_several_outputs(tree: Tree, run: Run) -> None:
    reference = GENERATE + textwrap.dedent("""
        def ref_kernel(data):
            return {"sum": data[0].sum(0), "both": (3 * data[0], -data[0])}

        def check_implementation(data, output):
            want = ref_kernel(data)
            return compare(output["sum"], want["sum"]) or compare(output["both"][1], want["both"][1])
    """)
    folder = tree.add("old/both_py", reference)
    right = "def custom_kernel(data):\n    x = data[0]\n    return {'both': [3 * x, -x], 'sum': x.sum(0)}\n"
    assert run(folder, right).outcome.verdict == "passed"
    assert run(folder, right.replace("-x]", "x]")).outcome.message == "values differ"
    assert run(folder, "def custom_kernel(data):\n    return data[0]\n").outcome.verdict == "bad-output"


def test_values_count_where_the_check_is_its_own_and_none_may_be_lost_on_the_way(tree: Tree, run: Run) -> None:
    """The reference's dtype is wider than what is asked for, as in a prefix sum; a kernel may return either."""
    reference = GENERATE + textwrap.dedent("""
        def ref_kernel(data):
            return data[0].double().cumsum(0)

        def check_implementation(data, output):
            said = compare(output, ref_kernel(data))
            return said == "", said
    """)
    folder = tree.add("pmpp/cumulate_py", reference)
    assert run(folder, "def custom_kernel(data):\n    return data[0].cumsum(0)\n").outcome.verdict == "passed"
    turned = "def custom_kernel(data):\n    return data[0].cumsum(0).t().contiguous().t()\n"
    assert run(folder, turned).outcome.verdict == "passed"
    shorter = run(folder, "def custom_kernel(data):\n    return data[0].cumsum(0)[:-1]\n")
    assert shorter.outcome.verdict == "bad-output"
    narrow = tree.add("pmpp/narrow_py", reference.replace(".double()", "").replace("cumsum(0)", "cumsum(0).half()"))
    assert run(narrow, "def custom_kernel(data):\n    return data[0].cumsum(0)\n").outcome.verdict == "bad-output"


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("output.shape == data[0].shape", ["zeros", "NaN", "what lies in a buffer that was never written"]),
        ("bool((output.nan_to_num() == 0).all())", ["zeros", "NaN", "what lies in a buffer that was never written"]),
        (
            "not bool((output - 3 * data[0]).abs().max() > 1e-3)",
            ["NaN", "what lies in a buffer that was never written"],
        ),
        ("bool((output == 0).all())", ["zeros"]),
    ],
)
def test_a_check_that_accepts_what_it_should_not_is_told(check: str, told: list[str], tree: Tree, run: Run) -> None:
    reference = SCALED[: SCALED.index("def check_implementation")]
    folder = tree.add("odd/lax_py", f"{reference}\ndef check_implementation(data, output):\n    return {check}, 'no'\n")
    notes = [note for note in run(folder, RIGHT).notes if "own check accepts" in note]
    assert notes == [f"this problem's own check accepts an output of {name}: a pass says little" for name in told]


def test_answers_that_are_the_same_for_every_seed_are_told(tree: Tree, run: Run) -> None:
    folder = tree.add("odd/still_py", SCALED.replace("manual_seed(seed)", "manual_seed(1)"))
    assert "the same for every seed" in "".join(run(folder, RIGHT).notes)
    without = TASK.replace(', "seed": 4242', "").replace(', "seed": 5236', "").replace(', "seed": 1}', "}")
    drawn = SCALED.replace(", seed: int", "").replace("generator.manual_seed(seed)", "generator.seed()")
    assert run(tree.add("odd/no_seed_py", drawn, without), RIGHT).notes == ()


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("import a_package_that_is_absent\n" + SCALED, "No module named 'a_package_that_is_absent'"),
        (SCALED.replace("    x, out = data\n", "    raise ValueError('no')\n"), "ValueError: no"),
        (SCALED.replace("def generate_input(", "def generate_input(other, "), "other"),
    ],
)
def test_what_its_code_lacks_or_raises_is_told_in_a_line(reference: str, said: str, tree: Tree, run: Run) -> None:
    with pytest.raises(ProblemError, match=said) as caught:
        run(tree.add("odd/broken_py", reference), RIGHT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "task", "reason"),
    [
        (SCALED, TASK + "multi_gpu: true\n", "it needs several GPUs at once"),
        (SCALED, TASK.replace('lang: "py"', 'lang: "cu"'), "its submissions are in cu, not Python"),
        (SCALED[: SCALED.index("def check_implementation")], TASK, "has no check_implementation"),
        (SCALED.replace("def generate_input(", "def generate_inputs("), TASK, "has no generate_input"),
        (SCALED.replace("def check_implementation(data, output):", "def check(data, output):"), TASK, "no check_impl"),
    ],
)
def test_what_cannot_be_run_here_is_listed_with_its_reason_and_not_half_run(
    reference: str, task: str, reason: str, tree: Tree, tmp_path: Path
) -> None:
    tree.add("odd/other_py", reference, task)
    listed = json.loads(invoke("problems", "--problems", str(tree.root), "--json").stdout)
    assert reason in next(each["unsupported"] for each in listed if each["name"] == "other_py")
    (tmp_path / "kernel.py").write_text(RIGHT)
    refused = invoke("submit", str(tmp_path / "kernel.py"), "-p", "other_py", "--problems", str(tree.root))
    assert refused.exit_code == 1
    assert reason in refused.stderr
    assert refused.stderr.startswith("podium: other_py cannot be run here: ")


@pytest.mark.parametrize(
    "offered",
    [
        "check_implementation = make(ref_kernel)",
        "from utils import check_implementation",
        "from utils import *",
        "if True:\n    def check_implementation(data, output):\n        return True, ''",
    ],
)
def test_a_check_may_be_made_or_imported(offered: str, tree: Tree) -> None:
    folder = tree.add("odd/made_py", SCALED[: SCALED.index("def check_implementation")] + offered + "\n")
    assert load_problem(folder).unsupported == ""


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.main, arguments)


SET = """
name: Practice
deadline: ""
problems:
  - {directory: pmpp_v2/scale_py, name: scale_v2, deadline: "2100-12-31", gpus: [B200, H100]}
  - {directory: pmpp_v2/gone_py, name: gone, deadline: "", gpus: []}
"""


def test_a_tree_of_sets_is_found_by_each_of_its_names(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tree.add("pmpp/scale_py"), tree.add("pmpp_v2/scale_py")
    (tree.root / "pmpp_v2.yaml").write_text(SET)
    (tree.root / "other.yaml").write_text("- 1\n")
    (tree.root / "broken.yaml").write_text("a: [\n")
    roots = [SHIPPED, tree.root]
    assert find_problem("scale_v2", roots) == second
    assert find_problem("pmpp/scale_py", roots) == first
    with pytest.raises(
        ProblemError, match=r"several problems are called scale_py: name pmpp/scale_py or pmpp_v2/scale"
    ):
        find_problem("scale_py", roots)
    found = json.loads(invoke("problems", "--problems", str(tree.root), "--json").stdout)
    told = next(each for each in found if each.get("set") == "pmpp_v2")
    assert (told["board"], told["deadline"], told["gpus"]) == ("scale_v2", "2100-12-31", ["B200", "H100"])
    shown = invoke("problems", "--problems", str(tree.root)).stdout
    assert "scale_v2, 2100-12-31," in shown
    assert "pmpp_v2/scale_py" in shown
    assert "scale" not in invoke("problems").stdout  # the next command knows nothing of it
    monkeypatch.setenv("PODIUM_PROBLEMS", str(tree.root))
    assert "scale_v2" in invoke("problems").stdout


def test_a_tree_takes_no_shipped_problem_s_name_away(tree: Tree) -> None:
    tree.add("nvidia/fp4_gemm")
    tree.add("amd/mm")
    (tree.root / "amd.yaml").write_text(
        "problems:\n  - {directory: amd/mm, name: amd-mxfp4-mm, gpus: [MI355X]}\n  - {directory: amd/mm, name: [1]}\n"
    )
    for name in ("fp4_gemm", "amd-mxfp4-mm"):
        assert find_problem(name, [SHIPPED, tree.root]) == SHIPPED / "fp4_gemm"
    assert find_problem("nvidia/fp4_gemm", [SHIPPED, tree.root]) == tree.root / "nvidia" / "fp4_gemm"


def test_one_broken_folder_hides_no_other(tree: Tree) -> None:
    tree.add("odd/scale_py")
    tree.add("odd/worse_py", task="files: 3\n")
    result = invoke("problems", "--problems", str(tree.root))
    assert result.exit_code == 0
    assert "scale_py" in result.stdout
    assert "podium: not listed: " in result.stderr
    assert "worse_py/task.yml:1" in result.stderr
    found = json.loads(invoke("problems", "--problems", str(tree.root), "--json").stdout)
    assert "task.yml:1" in next(each["error"] for each in found if each["name"] == "worse_py")
    assert invoke("problems", "--problems", str(tree.root / "nowhere")).exit_code == 1


def test_drafts_beside_the_shipped_problems_are_no_problems() -> None:
    assert all(folder.parent == SHIPPED for folder in list_problems([SHIPPED]))


def test_inside_cuda_is_the_cpu_and_outside_it_is_not() -> None:
    real = torch.Generator, torch.cuda.synchronize
    with cpu_for_cuda():
        generator = torch.Generator(device="cuda:0")
        generator.manual_seed(3)
        x = torch.randn(3, device="cuda", generator=generator)
        assert {each.device.type for each in (x, x.cuda(), x.to("cuda"), x.to(torch.device("cuda", 1)))} == {"cpu"}
        assert torch.nn.Linear(2, 2).to("cuda").weight.device.type == "cpu"
        torch.cuda.synchronize()
        torch.manual_seed(1)
        torch.cuda.manual_seed_all(1)
    assert (torch.Generator, torch.cuda.synchronize) == real
    with pytest.raises(ValueError, match="inside"), cpu_for_cuda():
        raise ValueError("inside")
    assert torch.Generator is real[0]
