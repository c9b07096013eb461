"""What does this machine stop? Exploits are run as any submission is, with decoys around them."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.decoys import Decoys
from harness.errors import PodiumError, SubmissionError
from harness.evaluate import Request, evaluate
from harness.exploits import End, Exploit, difference, has_compiler, list_exploits
from harness.problem import find_named, load_problem
from harness.processes.isolation import Limits
from harness.progress import Listener, Progress
from harness.submission import read_submission

TESTS = Path(__file__).resolve().parents[1] / "tests"
"""Where a checkout has the corpus and its small problems."""
PROBLEMS = (TESTS / "problems", TESTS.parent / "problems")
LIMITS = Limits(load_s=60, compile_s=60, call_s=20)
MAX_SECONDS = 0.5
"""Of timing: no small difference is looked for."""


@dataclass(frozen=True)
class Finding:
    """One exploit, tried here."""

    exploit: Exploit
    state: Literal["as declared", "not stopped", "not run"]
    found: str
    """How it ended, or how that differs from what was declared."""


def audit(device: str, names: Sequence[str], listen: Listener = lambda progress: None) -> list[Finding]:
    """Try the exploits of these names (none: all) on this machine; those that need a GPU only on one."""
    chosen = choose(names)
    findings = []
    for done, exploit in enumerate(chosen):
        listen(Progress("audit", exploit.name, done, len(chosen)))
        findings.append(look_at(exploit, device))
    return findings


def choose(names: Sequence[str]) -> list[Exploit]:
    """The exploits of these names, in the corpus's order; SubmissionError for a name that there is not."""
    known = {exploit.path.stem: exploit for exploit in list_exploits(TESTS / "exploits")}
    if not known:
        raise SubmissionError(f"there are no exploits in {TESTS / 'exploits'}: run this from a checkout of Podium")
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SubmissionError(f"there is no exploit {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return [exploit for stem, exploit in known.items() if not names or stem in names]


def look_at(exploit: Exploit, device: str) -> Finding:
    """Try one exploit: on the device if it needs a GPU, on the CPU if it does not."""
    if exploit.needs_gpu and device == "cpu":
        return Finding(exploit, "not run", "it needs a GPU")
    if exploit.needs_compiler and not has_compiler():
        return Finding(exploit, "not run", "it needs a C++ compiler and ninja")
    with tempfile.TemporaryDirectory(prefix="podium-audit-") as folder:
        end = attempt(exploit, Path(folder), device if exploit.needs_gpu else "cpu")
    differs = difference(exploit, end)
    return Finding(exploit, "not stopped" if differs else "as declared", differs or str(end))


def attempt(exploit: Exploit, folder: Path, device: str) -> End:
    """Run one exploit on its problem, everything that it may touch in `folder` (empty)."""
    decoys = Decoys(folder)
    request = Request(
        load_problem(find_named(exploit.problem, PROBLEMS)),
        read_submission(exploit.path, "nobody"),
        exploit.mode,
        device,
        decoys.caches,
        limits=LIMITS,
        max_seconds=MAX_SECONDS,
    )
    record, error = None, ""
    try:
        with decoys.on_the_path():
            record = evaluate(request)
    except PodiumError as ended:
        error = str(ended)
    return End(record, error, decoys.harm())
