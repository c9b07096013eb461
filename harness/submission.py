"""A submission before it is run: its text, its author, the problem that it answers."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.errors import ProblemError, SubmissionError
from harness.problem import Problem, find_named, find_problem, list_problems
from harness.record import Submission

MAX_BYTES = 4 << 20
_POPCORN = re.compile(r"^\ufeff?#!POPCORN[ \t]+leaderboard[ \t]+(\S+)", re.MULTILINE)


def read_submission(path: Path, author: str) -> Submission:
    """The file as it is; SubmissionError when it cannot be read as text at all. An empty file can."""
    try:
        if path.is_dir():
            raise SubmissionError(f"{path} is a folder; name the file in it that defines custom_kernel")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # no more: it may be a device without an end
    except FileNotFoundError:
        raise SubmissionError(f"{path} does not exist; `podium start PROBLEM {path}` makes one to begin with") from None
    except OSError as error:
        raise SubmissionError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise SubmissionError(f"{path} is too large; a submission is one source file below {MAX_BYTES} bytes")
    try:
        source = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SubmissionError(f"{path} is not UTF-8 text (line {line}); save it as UTF-8") from None
    return Submission(path.name, author, hashlib.sha256(content).hexdigest(), source)


def marked_baseline(submission: Submission, problem: str) -> Submission:
    """The same, marked as the baseline if it is the problem's shipped torch_reference.py, byte for byte."""
    shipped = Path(__file__).resolve().parents[1] / "submissions" / problem / "torch_reference.py"
    known = shipped.is_file() and hashlib.sha256(shipped.read_bytes()).hexdigest() == submission.sha256
    return dataclasses.replace(submission, is_baseline=known)


def popcorn_problem(source: str) -> str | None:
    """The name in the `#!POPCORN leaderboard NAME` line, if there is one."""
    found = _POPCORN.search(source)
    return found[1] if found else None


def problem_for(path: Path, source: str, asked: str | None, roots: Sequence[Path]) -> Path:
    """Folder of the problem: the asked one, else the #!POPCORN line's, else the one named like the file's folder."""
    if asked:
        return find_problem(asked, roots)
    if (name := popcorn_problem(source)) is not None:
        return find_named(name, roots)  # no path: what judges a file is not for the file to bring along
    try:
        return find_problem(path.resolve().parent.name, roots)
    except ProblemError:
        names = ", ".join(folder.name for folder in list_problems(roots))
        raise SubmissionError(
            f"which problem does {path} answer? Pass -p PROBLEM or begin the file with "
            f"`#!POPCORN leaderboard PROBLEM`; there are: {names}"
        ) from None


def default_author() -> str:
    """git's user.name, else the login name."""
    try:
        name = (
            subprocess.run(["git", "config", "user.name"], capture_output=True, timeout=2, check=False)
            .stdout.decode("utf-8", "replace")
            .strip()
        )
    except (OSError, subprocess.TimeoutExpired):
        name = ""
    if name:
        return name
    try:
        return os.fsencode(getpass.getuser()).decode("utf-8", "replace")
    except (KeyError, OSError):
        return "anonymous"


def start_from_template(problem: Problem, target: Path) -> Path:
    """Copy the problem's template to a file that must not exist yet; the file."""
    source = problem.folder / problem.templates.get("Python", "template.py")
    if target.is_dir():
        target = target / f"{problem.name}.py"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ProblemError(f"{problem.name} has no template to start from ({source}: {error.strerror})") from None
    except ValueError:
        raise ProblemError(f"{problem.name} has no template to start from ({source} is not UTF-8 text)") from None
    if popcorn_problem(text) is None:
        text = f"#!POPCORN leaderboard {problem.name}\n{text}"
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SubmissionError(f"{target} exists already and is left as it is; name another file") from None
    except OSError as error:
        raise SubmissionError(f"{target} cannot be written: {error.strerror}") from None
    return target
