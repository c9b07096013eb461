"""`podium new`: what it writes works at once, by whatever names; what cannot be is a line, and leaves nothing."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from harness.draft import KINDS, STARTERS, begin, write
from harness.errors import ProblemError
from harness.problem import load_problem
from harness.validate import validate

ROOT = Path(__file__).resolve().parents[1]
Podium = Callable[..., Result]


def one_line(result: Result) -> str:
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    return result.stderr.removeprefix("podium: ").rstrip("\n")


# --- what it writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_says_to_run_next_works_at_once(podium: Podium, tmp_path: Path, kind: str) -> None:
    made = podium("new", "mine", "--kind", kind, "--json")
    assert made.exit_code == 0, made.output
    answer = json.loads(made.stdout)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == answer["files"]
    assert {"mutants.py", "template.py", "triton_kernel.py", "README.md", "task.yml"} <= set(answer["files"])
    commands = [command.split()[1:] for command in answer["next"]]
    assert [command[0] for command in commands] == ["problems", "validate", "submit"]
    assert podium(*commands[0]).exit_code == 0
    for command in commands[1:]:
        result = podium(*command, "--device", "cpu")
        assert result.exit_code == 0, result.output
    triton = podium("submit", "mine/triton_kernel.py", "-p", "mine", "--mode", "test", "--device", "cpu")
    assert triton.exit_code == 0, triton.output


OTHERWISE = {
    "elementwise": ("x fp16 [rows, columns]", "gamma fp32", "normed fp32"),
    "matmul": ("a fp32 [i, l]", "b [l, j]", "c bf16"),
    "attention": ("q fp16 [h, s_q, d]", "k [h, s_k, d]", "v", "o"),
}


@pytest.mark.parametrize(
    ("kind", "dtype", "tensors"),
    [
        *((kind, dtype, ()) for kind in KINDS for dtype in ("bf16", "fp16", "fp32")),
        *((kind, "bf16", tensors) for kind, tensors in OTHERWISE.items()),
    ],
)
def test_its_tolerance_tells_right_from_wrong_by_the_factor_that_is_wanted(
    tmp_path: Path, kind: str, dtype: str, tensors: tuple[str, ...]
) -> None:
    draft = begin("mine", kind).with_dtype(dtype)
    for index, text in enumerate(tensors):
        draft = draft.with_tensor(index, text)
    write(draft, tmp_path / "mine")
    margins = validate(load_problem(tmp_path / "mine"), "cpu")
    assert [(margin.name, margin.factor) for margin in margins if margin.near or not margin.as_it_should] == []
    assert len(margins) >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_starter_is_the_problem_itself_but_for_its_name(kind: str) -> None:
    for name, text in begin("mine", kind).files().items():
        assert text == (STARTERS / kind / name).read_text().replace("my_problem", "mine")
    assert [dict(case.spec) for case in load_problem(STARTERS / kind).benchmarks] == [
        {**case, "seed": number} for number, case in enumerate(begin("mine", kind).cases, start=101)
    ]


def test_names_dtypes_and_sizes_of_one_s_own_are_everywhere(podium: Podium, tmp_path: Path) -> None:
    words = ("--tensor", "hidden_states fp16 [rows, columns]", "--tensor", "gamma fp32", "--tensor", "normed: float32")
    sizes = ("--size", "rows=3, 4", "--size", "columns=128")
    assert podium("new", "mine", "--kind", "elementwise", *words, *sizes).exit_code == 0
    problem = load_problem(tmp_path / "mine")
    assert [case.spec for case in problem.benchmarks] == [
        {"rows": 3, "columns": 128, "seed": 101},
        {"rows": 4, "columns": 128, "seed": 102},
    ]
    assert problem.roofline is not None
    assert problem.roofline.bytes == "2*rows*columns + 4*columns + 4*rows*columns"
    written = {path.name: path.read_text() for path in (tmp_path / "mine").iterdir()}
    assert "# (hidden_states [rows, columns], gamma [columns])" in written["task.py"]
    assert '{"hidden_states": torch.float16, "gamma": torch.float32, "normed": torch.float32}' in written["task.py"]
    assert "hidden_states_ptr" in written["triton_kernel.py"]
    assert [name for name, text in written.items() if "tokens" in text or "my_problem" in text] == []
    assert podium("submit", "mine/triton_kernel.py", "-p", "mine", "--mode", "test", "--device", "cpu").exit_code == 0


def test_sizes_that_are_not_asked_for_follow_in_number() -> None:
    draft = begin("mine", "matmul")
    assert draft.with_sizes("m", "1, 2, 3, 4").cases[2:] == [
        {"m": 3, "n": 4096, "k": 4096},
        {"m": 4, "n": 4096, "k": 4096},
    ]
    assert draft.with_sizes("m", "8").cases == [{"m": 8, "n": 4096, "k": 4096}]  # each case once
    assert len(draft.with_sizes("m", "8").with_sizes("k", "64 128").cases) == 2


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine"], "--kind is missing: elementwise, matmul or attention"),
        (["mine", "--dtype", "fp16"], "--kind is missing"),
        (["mine", "--kind", "conv"], "'conv' is not one of 'elementwise', 'matmul', 'attention'"),
        (["3d", "--kind", "matmul"], "'3d' cannot be a problem's name: a letter, then letters, digits and underscores"),
        (["a/b", "--kind", "matmul"], "'a/b' cannot be a problem's name"),
        (["..", "--kind", "matmul"], "'..' cannot be a problem's name"),
        (["x\ny", "--kind", "matmul"], "cannot be a problem's name"),
        (["class", "--kind", "matmul"], "(and no word of Python's)"),
        (["fp4_gemm", "--kind", "matmul"], "there is a problem fp4_gemm already"),
        (["there", "--kind", "matmul"], "there exists already and is left as it is"),
        (["file", "--kind", "matmul"], "file exists already and is left as it is"),
        (["dangling", "--kind", "matmul"], "dangling exists already and is left as it is"),
        (["mine", "--kind", "matmul", "--folder", "/proc/mine"], "/proc/mine cannot be made: No such file"),
        (["mine", "--kind", "matmul", "--folder", "no/mine"], "no/mine cannot be made: No such file or directory"),
        (["mine", "--kind", "matmul", "--folder", "there"], "--folder there/mine would be one for mine"),
        (["mine", "--kind", "matmul", "--size", "mm=3"], "'mm' is no size of this problem; did you mean 'm'?"),
        (["mine", "--kind", "matmul", "--size", "width=3"], "'width' is no size of this problem; there are m, n, k"),
        (["mine", "--kind", "matmul", "--size", "m"], "m: '' is no whole number from 1"),
        (["mine", "--kind", "matmul", "--size", "m=0"], "m: '0' is no whole number from 1"),
        (["mine", "--kind", "matmul", "--size", "m=1e9"], "m: '1e9' is no whole number from 1"),
        (["mine", "--kind", "matmul", "--size", "m=1,2", "--size", "k=1,2,3"], "k: 3 sizes for 2 cases"),
        (["mine", "--kind", "matmul", "--tensor", "x bf61"], "'bf61' is none of bf16, fp16, fp32"),
        (["mine", "--kind", "matmul", "--tensor", "x bf16 [m]"], "x has 2 dimensions (m, k)"),
        (["mine", "--kind", "matmul", "--tensor", "x [m, m]"], "'m' is the name of something else here"),
        (["mine", "--kind", "matmul", "--tensor", "x y z w"], "is no tensor; say it as 'x bf16 [m, k]'"),
        (["mine", "--kind", "matmul", "--tensor", "torch"], "'torch' has a meaning in the files that are written"),
        (["mine", "--kind", "matmul", "--tensor", "x [no, k]"], "'no' cannot be a name"),
        (["mine", "--kind", "matmul", "--tensor", "for"], "'for' cannot be a name"),
        (["mine", "--kind", "matmul", "--tensor", "y"], "'y' is the name of something else here"),
        (["mine", "--kind", "matmul", "--tensor", "a", "--tensor", "b fp16"], "what is multiplied with a is bf16"),
        (["mine", "--kind", "matmul", *["--tensor", "x"] * 4], "4 times --tensor, but matmul has 3 with its output"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_nothing_is_written(
    podium: Podium, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert message in one_line(podium("new", *arguments))
    as_json = podium("new", *arguments, "--json")
    assert as_json.exit_code == 1
    assert message in json.loads(as_json.stdout)["error"]
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_one_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = Path.write_text

    def failing(path: Path, *arguments: str, **named: str) -> int:
        if path.name == "task.yml":
            assert (tmp_path / "mine" / "reference.py").exists()
            raise error
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises((KeyboardInterrupt, ProblemError), match=r"No space left|^$"):
        write(begin("mine", "matmul"), tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


# --- on a terminal -----------------------------------------------------------------------------------------


def on_a_terminal(tmp_path: Path, *typed: str) -> tuple[int, str]:
    """The exit code and what was shown; each of `typed` waits for the next question."""
    master, slave = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "cli", "new", "mine"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PODIUM_HOME": str(tmp_path / "home"), "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(slave)
    shown, left = b"", list(typed)
    while select.select([master], [], [], 60)[0]:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # its end
            break
        shown += part
        if shown.endswith((b"): ", b"]: ")) and left:
            if left[0] == "^C":
                time.sleep(0.5)  # one that comes just before input() waits is heard at the next key only
                run.send_signal(signal.SIGINT)
            else:
                os.write(master, f"{left[0]}\n".encode())
            left.pop(0)
    os.close(master)
    assert left == []
    return run.wait(timeout=60), shown.decode().replace("\r\n", "\n")


def test_it_asks_and_enter_takes_what_is_shown(tmp_path: Path) -> None:
    code, shown = on_a_terminal(tmp_path, "", "", "", "", "", "")
    assert code == 0, shown
    assert "kind of kernel (elementwise, matmul, attention) [elementwise]: " in shown
    assert "input 1 (x bf16 [tokens, hidden]): " in shown
    assert "podium validate mine" in shown
    assert load_problem(tmp_path / "mine").benchmarks == load_problem(STARTERS / "elementwise").benchmarks


def test_an_answer_that_cannot_be_is_asked_for_again_with_the_reason(tmp_path: Path) -> None:
    code, shown = on_a_terminal(tmp_path, "mat", "matmul", "a fp8", "a fp16 [i, l]", "", "", "many", "1, 2", "64", "")
    assert code == 0, shown
    assert "Error: 'mat' is not one of" in shown
    assert "Error: 'a fp8': 'fp8' is none of bf16, fp16, fp32" in shown
    assert "input 2 (weight fp16 [l, n]): " in shown
    assert "Error: i: 'many' is no whole number from 1" in shown
    assert [case.shape for case in load_problem(tmp_path / "mine").benchmarks] == [
        {"i": 1, "n": 64, "l": 4096},
        {"i": 2, "n": 64, "l": 4096},
    ]


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    code, shown = on_a_terminal(tmp_path, "matmul", "a", "^C")
    assert code == 130, shown
    assert shown.rstrip().endswith("podium: stopped; nothing was written")
    assert not (tmp_path / "mine").exists()
