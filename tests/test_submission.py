"""Submissions as files: what can be read, whose they are, which problem they answer."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path

import pytest

from harness.errors import ProblemError, SubmissionError
from harness.problem import load_problem
from harness.submission import (
    MAX_BYTES,
    default_author,
    marked_baseline,
    popcorn_problem,
    problem_for,
    read_submission,
    start_from_template,
)

ROOT = Path(__file__).resolve().parents[1]
ROOTS = (ROOT / "problems", ROOT / "tests" / "problems")


def test_a_file_is_kept_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_bytes("# µ\r\nx = 1".encode())
    read = read_submission(file, "ada")
    assert (read.filename, read.author, read.source) == ("kernel.py", "ada", "# µ\r\nx = 1")
    assert read.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_an_empty_file_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.py").touch()
    assert read_submission(tmp_path / "empty.py", "ada").source == ""


def test_what_is_no_text_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"a\nb\n\xff")
    (tmp_path / "huge.py").write_bytes(b"#" * (MAX_BYTES + 1))
    for name, because in {
        "missing.py": "does not exist",
        ".": "is a folder",
        "binary.py": r"not UTF-8 text \(line 3\)",
        "huge.py": "one source file below",
        "binary.py/below.py": "cannot be read: Not a directory",
        "/dev/zero": "is too large; a submission is one source file below",
        "/proc/self/mem": "cannot be read: ",
        "x" * 300: "cannot be read: File name too long",
    }.items():
        with pytest.raises(SubmissionError, match=because):
            read_submission(tmp_path / name, "ada")


def test_the_popcorn_line_names_the_problem() -> None:
    assert popcorn_problem("#!POPCORN leaderboard amd-mxfp4-mm\n#!POPCORN gpu MI355X\n") == "amd-mxfp4-mm"
    assert popcorn_problem("import torch\n#!POPCORN  leaderboard  x_y\n") == "x_y"
    assert popcorn_problem("\ufeff#!POPCORN leaderboard x\r\n") == "x"
    assert popcorn_problem("# not #!POPCORN leaderboard x\n") is None
    assert popcorn_problem("#!POPCORN leaderboard\nimport torch\n") is None


def test_a_submission_names_a_known_problem_and_brings_no_folder_to_judge_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOTS[1] / "doubling", tmp_path / "easy")
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "easy"), "./easy", "easy"):
        with pytest.raises(ProblemError, match="there is no problem"):
            problem_for(tmp_path / "k.py", f"#!POPCORN leaderboard {name}\n", None, ROOTS)
        assert problem_for(tmp_path / "k.py", "", name, ROOTS) == tmp_path / "easy"


def test_asked_beats_the_line_beats_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "fp4_gemm"
    folder.mkdir()
    line = "#!POPCORN leaderboard amd-mixed-mla\n"
    assert problem_for(folder / "k.py", line, "mxfp4_moe", ROOTS).name == "mxfp4_moe"
    assert problem_for(folder / "k.py", line, None, ROOTS).name == "mla_decode"
    assert problem_for(folder / "k.py", "", None, ROOTS).name == "fp4_gemm"
    with pytest.raises(SubmissionError, match=r"which problem does .* answer.*fp4_gemm, mla_decode"):
        problem_for(tmp_path / "k.py", "", None, ROOTS[:1])
    with pytest.raises(ProblemError, match="did you mean fp4_gemm"):
        problem_for(folder / "k.py", "", "fp4_gem", ROOTS)


def test_an_author_is_always_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("LOGNAME", "grace")
    assert default_author() == "grace"
    monkeypatch.setenv("LOGNAME", "caf\udce9")
    assert default_author() == "caf\ufffd"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)  # as in a container: nobody of that number is known
    assert default_author() == "anonymous"


def test_git_s_name_is_the_author_s_in_whatever_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    git.write_text("#!/bin/sh\nprintf 'Ren\\351e\\n'\n")
    git.chmod(0o755)
    assert default_author() == "Ren\ufffde"


def test_only_the_shipped_baseline_byte_for_byte_is_the_baseline(tmp_path: Path) -> None:
    shipped = read_submission(ROOT / "submissions/fp4_gemm/torch_reference.py", "x")
    assert marked_baseline(shipped, "fp4_gemm").is_baseline
    assert not marked_baseline(shipped, "mla_decode").is_baseline
    (tmp_path / "torch_reference.py").write_text(shipped.source + "\n")
    assert not marked_baseline(read_submission(tmp_path / "torch_reference.py", "x"), "fp4_gemm").is_baseline


def test_a_template_is_copied_once_and_never_over_something(tmp_path: Path) -> None:
    problem = load_problem(ROOTS[1] / "doubling")
    made = start_from_template(problem, tmp_path)
    assert made == tmp_path / "doubling.py"
    assert made.read_text() == (problem.folder / "template.py").read_text()
    with pytest.raises(SubmissionError, match="exists already and is left as it is"):
        start_from_template(problem, made)
    with pytest.raises(SubmissionError, match="cannot be written: No such file"):
        start_from_template(problem, tmp_path / "no" / "where.py")
    made.write_text("mine\n")
    with pytest.raises(SubmissionError, match="exists already"):
        start_from_template(problem, tmp_path)
    assert made.read_text() == "mine\n"


def test_a_template_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    problem = dataclasses.replace(load_problem(ROOTS[1] / "doubling"), folder=tmp_path, templates={})
    with pytest.raises(ProblemError, match=r"has no template to start from .*No such file"):
        start_from_template(problem, tmp_path / "a.py")
    (tmp_path / "template.py").write_bytes(b"\xff")
    with pytest.raises(ProblemError, match=r"template\.py is not UTF-8 text"):
        start_from_template(problem, tmp_path / "a.py")
    (tmp_path / "template.py").write_text("x = 1\n")
    start_from_template(problem, tmp_path / "a.py")
    assert (tmp_path / "a.py").read_text() == "#!POPCORN leaderboard doubling\nx = 1\n"
