"""Who may import whom: the trust line and the start-up time, as rules that a machine checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "judge.py",
    "margins.py",
    "validate.py",
    "oracle.py",
    "reference.py",
    "contestant.py",
    "sharing.py",
    "cpu_for_cuda.py",
    "weaknesses.py",
    "reveal.py",
    "enqueue.py",
    "flush.py",
    "allowance.py",
    "seal.py",
    "canary.py",
    "roof.py",
}
"""The modules of harness that live in a process with torch in it."""


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Names of the modules that a file imports, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else [node for node in ast.walk(tree) if not _is_typing(node, tree)]
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _is_typing(node: ast.AST, tree: ast.Module) -> bool:
    blocks = [block for block in tree.body if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"]
    return any(node in ast.walk(block) for block in blocks)


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def starts(names: set[str], *prefixes: str) -> set[str]:
    return {name for name in names if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)}


@pytest.mark.parametrize("path", files("harness"), ids=str)
def test_harness_knows_no_leaderboard_and_no_user_interface(path: Path) -> None:
    assert starts(imports(path), "leaderboard", "click", "rich", "cli", "submissions") == set()


@pytest.mark.parametrize("path", files("leaderboard"), ids=str)
def test_leaderboard_knows_records_comparisons_and_statistics_only(path: Path) -> None:
    allowed = ("harness.record", "harness.statistics", "harness.compare", "harness.errors")
    used = starts(imports(path), "harness", "cli", "submissions", "problems", "torch")
    assert used - starts(used, *allowed) == set()


@pytest.mark.parametrize("path", [path for path in files("harness") if path.name not in HEAVY], ids=str)
def test_the_referee_s_modules_load_no_torch(path: Path) -> None:
    assert starts(imports(path, top_level_only=True), "torch", "triton") == set()


def test_the_contestant_has_wire_sharing_timing_and_devices_of_ours_and_nothing_else() -> None:
    code = "import sys, harness.processes.contestant; print(*sorted(n for n in sys.modules if n.startswith('harness')))"
    listed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    queue = imports(ROOT / "harness/timing/enqueue.py") | imports(ROOT / "harness/timing/flush.py")
    loaded = set(listed.stdout.split()) | starts(queue, "harness")
    packages = {"harness", "harness.processes", "harness.timing", "harness.processes.contestant"}
    ours = ("harness.wire", "harness.processes.sharing", "harness.processes.reveal", "harness.devices")
    allowed = starts(loaded, *ours)
    own = ("enqueue", "allowance", "flush", "gate", "seal", "slots")
    allowed |= starts(loaded, *(f"harness.timing.{name}" for name in own))
    assert loaded - packages - allowed == set()


def reached(module: str) -> set[str]:
    """The modules of harness that one imports, itself or through others, wherever in the file it says so."""
    found: set[str] = set()
    left = {module}
    while left:
        name = left.pop()
        path = ROOT / name.replace(".", "/")
        file = next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)
        if file is None or name in found:
            continue  # a name in a module, or one seen before
        found.add(name)
        left |= starts(imports(file), "harness")
    return found


def test_nothing_that_the_contestant_may_ever_import_leads_to_the_referee_or_the_oracle() -> None:
    found = reached("harness.processes.contestant") - {"harness.processes.contestant"}
    packages = {"harness", "harness.processes", "harness.timing"}
    ours = (
        "harness.wire",
        "harness.processes.sharing",
        "harness.processes.reveal",
        "harness.timing",
        "harness.devices",
    )
    allowed = starts(found, *ours)
    assert found - packages - allowed == set()
    assert {"harness.wire", "harness.timing.enqueue", "harness.timing.gate"} <= found
    assert starts(found, "harness.timing.sampling", "harness.record", "harness.statistics", "harness.judge") == set()


def test_what_the_referee_runs_loads_no_torch() -> None:
    code = (
        "import sys, harness.evaluate, harness.contest, harness.doctor, harness.submission, harness.schema\n"
        "print(*[name for name in ('torch', 'triton', 'numpy') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []


@pytest.mark.parametrize("path", [*files("problems"), *files("leaderboard"), ROOT / "cli.py"], ids=str)
def test_nobody_imports_a_submission(path: Path) -> None:
    assert starts(imports(path), "submissions") == set()


@pytest.mark.parametrize("path", [*files("harness"), *files("leaderboard"), ROOT / "cli.py"], ids=str)
def test_imports_are_absolute_so_that_these_rules_see_them(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text()))
    assert [node.lineno for node in nodes if isinstance(node, ast.ImportFrom) and node.level] == []


def test_the_oracle_loads_nothing_of_a_submission_s() -> None:
    trusted = [ROOT / "harness/processes/oracle.py", ROOT / "harness/processes/reference.py", ROOT / "harness/judge.py"]
    used = set().union(*map(imports, trusted))
    assert starts(used, "pickle", "marshal", "runpy", "submissions", "harness.submission") == set()
    assert [path.name for path in trusted if "submission.py" in path.read_text()] == []


@pytest.mark.parametrize("path", [*files("harness"), *files("leaderboard"), ROOT / "cli.py"], ids=str)
def test_nothing_is_ever_unpickled(path: Path) -> None:
    assert starts(imports(path), "pickle", "marshal", "shelve", "dill", "cloudpickle") == set()


def test_the_command_starts_without_torch_database_or_tables() -> None:
    heavy = ("torch", "triton", "sqlalchemy", "rich", "pydantic")
    code = f"import sys, cli; print(*[name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []


def test_showing_a_board_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['podium', 'board']; import atexit, cli\n"
        "atexit.register(lambda: print('torch' in sys.modules)); cli.main()"
    )
    environment = {"PODIUM_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout.split()[-1] == "False"
