"""What the tests share: problems laid out as a run lays them, and a skip for what needs a GPU."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

import cli

ROOT = Path(__file__).resolve().parents[1]
PROBLEMS = ROOT / "problems"
TEST_PROBLEMS = ROOT / "tests" / "problems"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests where torch sees no GPU."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture
def load_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a problem's reference.py with its files laid flat, as the oracle does."""
    from harness.problem import load_problem

    def load(name: str) -> ModuleType:
        folder = tmp_path / name
        folder.mkdir()
        for entry in load_problem(PROBLEMS / name).oracle_files:
            shutil.copyfile(entry.source, folder / entry.name)
            monkeypatch.delitem(sys.modules, entry.name.removesuffix(".py"), raising=False)
        monkeypatch.syspath_prepend(str(folder))
        spec = importlib.util.spec_from_file_location(f"reference_of_{name}", folder / "reference.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def podium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in an empty home and folder."""
    monkeypatch.setenv("PODIUM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["podium", *arguments])
        return CliRunner().invoke(cli.main, list(arguments))

    return run
