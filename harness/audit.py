"""What does this machine stop? Exploits are run as any submission is, with decoys around them."""

from __future__ import annotations

from pathlib import Path

from harness.decoys import Decoys
from harness.errors import PodiumError
from harness.evaluate import Request, evaluate
from harness.exploits import End, Exploit
from harness.problem import load_problem
from harness.processes.isolation import Limits
from harness.submission import read_submission

LIMITS = Limits(load_s=60, compile_s=60, call_s=20)
MAX_SECONDS = 0.5
"""Of timing: no small difference is looked for."""


def attempt(exploit: Exploit, problems: Path, folder: Path, device: str) -> End:
    """Run one exploit on a problem in `problems`, everything that it may touch in `folder` (empty)."""
    decoys = Decoys(folder)
    request = Request(
        load_problem(problems / exploit.problem),
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
