"""Problems: folders with a task.yml, read into frozen data and checked before anything runs."""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cases import Case
from harness.errors import ProblemError
from harness.roofline import Roofline
from harness.sets import read_sets

if TYPE_CHECKING:
    from harness.schema import TaskModel

SUBMISSION_MARK = "@SUBMISSION@"
SHIPPED = Path(__file__).resolve().parents[1] / "problems"


@dataclass(frozen=True)
class RowLimits:
    """One precision's limits; see harness.judge."""

    row_relative: float
    rtol: float = 0.0
    atol: float = 0.0
    atol_rms: float = 0.0
    mismatched: float = 0.0
    outlier_rows: float = 0.0
    outlier_row_relative: float = 0.0


@dataclass(frozen=True)
class Tolerance:
    """What task.yml says under `tolerance`."""

    default: RowLimits
    per_precision: dict[str, RowLimits] = field(default_factory=dict)

    def for_precision(self, name: str | None) -> RowLimits:
        """The limits of a declared precision."""
        return self.per_precision.get(name or "", self.default)


@dataclass(frozen=True)
class FileEntry:
    """One file that a run lays flat: its name there and where it lies."""

    name: str
    source: Path


@dataclass(frozen=True)
class Timeouts:
    """task.yml's time limits, in seconds."""

    test_s: float
    benchmark_s: float
    ranked_s: float


@dataclass(frozen=True)
class Problem:
    """A problem as it was when it was loaded."""

    name: str
    folder: Path
    title: str
    description: str
    aliases: tuple[str, ...]
    files: tuple[FileEntry, ...]
    tests: tuple[Case, ...]
    benchmarks: tuple[Case, ...]
    smoke: tuple[Case, ...]
    timeouts: Timeouts
    ranking_by: str
    precisions: tuple[str, ...]
    regimes: tuple[str, ...]
    shared_inputs: tuple[str, ...]
    tolerance: Tolerance | None
    roofline: Roofline | None
    templates: dict[str, str]
    content_hash: str
    main: str = "eval.py"
    """The evaluator that upstream runs; here it has no part."""
    unsupported: str = ""
    """Why it cannot be run here; nothing where it can."""

    @property
    def is_foreign(self) -> bool:
        """A folder of GPU MODE's own keys only: its own check judges."""
        return self.tolerance is None

    def cases_on(self, device: str) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
        """(tests, benchmarks) that a device runs: the small cases on a CPU, where there are some."""
        return (self.smoke, self.smoke) if device == "cpu" and self.smoke else (self.tests, self.benchmarks)

    @property
    def oracle_files(self) -> tuple[FileEntry, ...]:
        """What is laid before the oracle."""
        return self.files

    @property
    def contestant_files(self) -> tuple[FileEntry, ...]:
        """What a submission may import: everything but the answers and the evaluator."""
        return tuple(entry for entry in self.files if entry.name not in ("reference.py", "eval.py", self.main))


def default_roots() -> tuple[Path, ...]:
    """The shipped problems, then the folders in PODIUM_PROBLEMS."""
    listed = [Path(item) for item in os.environ.get("PODIUM_PROBLEMS", "").split(os.pathsep) if item]
    return (SHIPPED, *listed)


def list_problems(roots: Sequence[Path]) -> list[Path]:
    """All problem folders below these roots, by name: in them, or, but for the shipped ones, in folders of a set."""
    found = [
        file.parent
        for root in roots
        if root.is_dir()
        for pattern in ("*/task.yml", *(["*/*/task.yml"] if root != SHIPPED else []))
        for file in root.glob(pattern)
    ]
    return sorted(dict.fromkeys(found), key=lambda folder: (folder.name, folder))


def supported(problem: Problem) -> Problem:
    """The same, if it can be run here; ProblemError with the reason if not."""
    if problem.unsupported:
        raise ProblemError(f"{problem.name} cannot be run here: {problem.unsupported}")
    return problem


def find_problem(name: str, roots: Sequence[Path]) -> Path:
    """A problem's folder by path, name or alias; ProblemError with the nearest names otherwise."""
    # os.path, since what is no path at all (too long, a loop, ~nobody) is for it no folder, and no error.
    path = Path(os.path.expanduser(name))
    if name and os.path.isfile(path / "task.yml"):
        return path.resolve()
    for root in roots if os.sep in name and not os.path.isabs(path) else ():
        if os.path.isfile(root / name / "task.yml"):  # SET/PROBLEM of a tree
            return (root / name).resolve()
    if os.sep in name and not os.path.isdir(path):
        raise ProblemError(f"there is no folder {name}")
    if os.sep in name or name in (".", ".."):
        raise ProblemError(f"{name} is no problem: it has no task.yml")
    return find_named(name, roots)


def find_named(name: str, roots: Sequence[Path]) -> Path:
    """The same by name or alias only: for a name that a submission gives, which chooses no folder of its own.

    An earlier root's problems go before a later one's: no tree takes the name of a shipped problem away.
    """
    known: list[str] = []
    aliases: list[str] = []
    for root in roots:
        folders = list_problems([root])
        places = [folder for folder in folders if folder.name == name]
        if len(places) == 1:
            return places[0]
        named = {each.name: each.folder for each in read_sets(root)}
        named |= {alias: folder for folder in folders for alias in _aliases(folder)}
        if name in named:
            return named[name]
        if places:
            shown = " or ".join(str(Path(folder.parent.name, folder.name)) for folder in places)
            raise ProblemError(f"several problems are called {name}: name {shown}")
        known += [folder.name for folder in folders]
        aliases += named
    near = difflib.get_close_matches(name, [*known, *aliases], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"
    raise ProblemError(f"there is no problem {name!r}; {hint}")


def _aliases(folder: Path) -> tuple[str, ...]:
    try:
        return load_problem(folder).aliases
    except ProblemError:
        return ()  # a broken neighbour is no reason to fail here


def load_problem(folder: Path) -> Problem:
    """Read and check a problem folder; ProblemError names the file, the line and the field."""
    from harness.schema import read_task

    task = read_task(folder / "task.yml")
    entries = _entries(folder, task.files)
    return Problem(
        name=folder.resolve().name,
        folder=folder.resolve(),
        title=task.title,
        description=task.description,
        aliases=tuple(task.aliases),
        files=entries,
        tests=tuple(Case(dict(spec)) for spec in task.tests),
        benchmarks=tuple(Case(dict(spec)) for spec in task.benchmarks),
        smoke=tuple(Case(dict(spec)) for spec in task.smoke),
        timeouts=Timeouts(task.test_timeout, task.benchmark_timeout, task.ranked_timeout),
        ranking_by=task.ranking_by,
        precisions=tuple(task.precisions),
        regimes=tuple(task.regimes),
        shared_inputs=tuple(task.shared_inputs),
        tolerance=task.frozen_tolerance(),
        roofline=Roofline(task.roofline.bytes, {kind: text for kind, text in task.roofline.operations.items()})
        if task.roofline
        else None,
        templates=dict(task.templates),
        content_hash=_content_hash(folder, entries),
        main=task.config.main,
        unsupported=_unsupported(task, {entry.name: entry.source for entry in entries}),
    )


def _unsupported(task: TaskModel, files: dict[str, Path]) -> str:
    """Why a folder's problem cannot be run here, as far as it shows without running any of it."""
    if task.lang != "py":
        return f"its submissions are in {task.lang}, not Python"
    if task.multi_gpu:
        return "it needs several GPUs at once"
    offered = _names_of(files["reference.py"])
    needed = ["generate_input", "ref_kernel"] + ([] if task.tolerance else ["check_implementation"])
    missing = [name for name in needed if offered is not None and name not in offered]
    return f"its reference.py has no {missing[0]}, so its evaluator is one of its own" if missing else ""


def _names_of(file: Path) -> set[str] | None:
    """What a module's top level defines or imports; None where that cannot be told from its text."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None  # the oracle will tell
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
        elif not isinstance(node, ast.Expr):
            return None
    return None if "*" in found else found


def _entries(folder: Path, files: Sequence[tuple[str, str]]) -> tuple[FileEntry, ...]:
    """What lies there of what is listed: all but the submission and perhaps the evaluator, as read_task has seen."""
    return tuple(
        FileEntry(name, (folder / source).resolve())
        for name, source in files
        if source != SUBMISSION_MARK and os.path.isfile(folder / source)
    )


def _content_hash(folder: Path, entries: Sequence[FileEntry]) -> str:
    """SHA-256 over everything that decides a verdict or a time: task.yml and the files that are laid out."""
    digest = hashlib.sha256()
    for name, path in sorted([("task.yml", folder / "task.yml"), *((each.name, each.source) for each in entries)]):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ProblemError(f"{path} cannot be read: {error.strerror}") from None
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
