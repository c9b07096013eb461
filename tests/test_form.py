"""What `podium problems NAME` tells of a problem's tensors: what its reference makes, or why it makes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from harness.form import Part, form_of
from harness.problem import load_problem

ROOT = Path(__file__).resolve().parents[1]
DOUBLING = ROOT / "tests" / "problems" / "doubling"
Podium = Callable[..., Result]


def changed(tmp_path: Path, reference: str, **files: str) -> Path:
    folder = tmp_path / "odd"
    shutil.copytree(DOUBLING, folder)
    (folder / "reference.py").write_text(reference)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_tensors_have_the_template_s_names_and_say_what_a_batch_shares() -> None:
    form = form_of(load_problem(DOUBLING))
    assert not isinstance(form, str)
    assert form.case == "rows=4 columns=32 seed=1"
    assert form.inputs == (
        Part("0", "x", "float32", (4, 32), 512),
        Part("1", "shift", "float32", (1, 32), 128, is_shared=True),
    )
    assert form.outputs == (Part("", "", "float32", (4, 32), 512),)


def test_data_of_any_form_has_paths_and_what_a_star_hides_has_no_name(tmp_path: Path) -> None:
    folder = changed(
        tmp_path,
        "import torch\n"
        "def generate_input(rows, columns, seed):\n"
        "    return torch.zeros(2, 3).T, [torch.zeros(1), 7], torch.zeros(0, dtype=torch.uint8), {'a': {'b': True}}\n"
        "def ref_kernel(data):\n    return {'y': torch.zeros(2), 'z': (torch.zeros(3),)}\n",
        template="def custom_kernel(data):\n    x, *_rest, config = data\n",
    )
    form = form_of(load_problem(folder))
    assert not isinstance(form, str)
    found = [(part.name, part.path, part.shape, part.is_contiguous, part.value) for part in form.inputs]
    assert found == [
        ("x", "0", (3, 2), False, None),
        ("1.0", "1.0", (1,), True, None),
        ("1.1", "1.1", None, True, 7),
        ("2", "2", (0,), True, None),
        ("config.a.b", "3.a.b", None, True, True),
    ]
    assert [(part.path, part.shape) for part in form.outputs] == [("y", (2,)), ("z.0", (3,))]


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("import nothing_like_it\n", "No module named 'nothing_like_it' (reference.py:1)"),
        ("def generate_input(**case):\n    raise ValueError('one\\ntwo')\n", "ValueError: one two (reference.py:2)"),
        ("import time\ndef generate_input(**case):\n    time.sleep(1000)\n", "nothing came back within 2 s"),
        ("def generate_input(**case):\n    return object()\ndef ref_kernel(data):\n    return data\n", "object"),
        ("import os\nos._exit(3)\n", "exit status 3"),
        ("", "has no attribute 'generate_input'"),
    ],
)  # fmt: skip
def test_a_reference_that_fails_shows_the_page_without_tensors_and_says_why(
    podium: Podium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, why: str
) -> None:
    monkeypatch.setattr("harness.form.CASE_S", 2.0)
    folder = changed(tmp_path, reference)
    page = podium("problems", str(folder))
    assert page.exit_code == 0
    text = " ".join(page.stdout.split())
    assert "tensors not shown: " in text
    assert why in text
    assert "Return 2 * x + shift" in text and "roofline bytes: 8*rows*columns" in text
    answer = json.loads(podium("problems", str(folder), "--json").stdout)
    assert (answer["inputs"], answer["output"]) == (None, None)
    assert why in answer["form_error"]
    assert "\n" not in answer["form_error"]


def test_the_page_and_its_json_tell_the_same(podium: Podium) -> None:
    text = podium("problems", str(DOUBLING)).stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["x", "0", "[4,", "32]", "float32", "512", "new", "in", "every", "call"] in lines
    assert ["shift", "1", "[1,", "32]", "float32", "128", "shared", "by", "a", "batch"] in lines
    assert ["→", "output", "[4,", "32]", "float32", "512", "what", "you", "return"] in lines
    answer = json.loads(podium("problems", str(DOUBLING), "--json").stdout)
    assert [(part["name"], part["shape"], part["is_shared"]) for part in answer["inputs"]] == [
        ("x", [4, 32], False),
        ("shift", [1, 32], True),
    ]
    assert answer["tolerance"]["default"]["row_relative"] == 1e-5
    assert answer["roofline"] == {"bytes": "8*rows*columns", "operations": {"fp32": "2*rows*columns"}}


def test_the_list_of_all_problems_starts_no_process(podium: Podium, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.processes.court.Court.__enter__", lambda court: 1 / 0)
    assert podium("problems").exit_code == 0
    assert "inputs" not in json.loads(podium("problems", "--json").stdout)[0]
