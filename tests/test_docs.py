"""docs/write-a-problem.md does what it says: its commands run in their order, each with the exit code that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "write-a-problem.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FAILS = re.compile(r"\s+# exits with (\d+)$")


def script(text: str) -> str:
    """A block as bash runs it: the first line that ends otherwise than it says ends all."""
    lines = []
    for line in text.splitlines():
        found = FAILS.search(line)
        command = FAILS.sub("", line)
        lines.append(command if found is None else f"code=0; {command} || code=$?; test $code = {found[1]}")
    return "\n".join(lines)


@pytest.mark.timeout(600)
def test_every_block_of_the_walk_through_runs(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "podium").write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    (tmp_path / "bin" / "podium").chmod(0o755)
    (tmp_path / "here").mkdir()
    variables = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PODIUM_HOME": str(tmp_path / "home"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    shown = ""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [language for language, _ in blocks].count("python") == 1
    for language, text in blocks:
        if language == "python":
            first, _, added = text.partition("\n")
            found = re.fullmatch(r"# (\S+), at its end", first)
            assert found is not None, first
            with (tmp_path / "here" / found[1]).open("a") as file:
                file.write(f"\n\n{added}")
            continue
        run = subprocess.run(
            ["bash", "-e", "-c", script(text)],
            cwd=tmp_path / "here",
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"{text}\n{run.stdout}\n{run.stderr}"
        shown += run.stdout
    text = " ".join(shown.split())
    assert "all 7 wrong variants fail, all 4 right ones pass" in text
    assert "passes, and should not: zeros" in text
    assert "nearer than 1.5x" not in text.partition("passes, and should not")[0]
    assert shown.rstrip().rpartition("triton_kernel.py")[1], "the board shows both"
    assert "my_kernel.py" in shown[shown.rindex("recorded as") :]
