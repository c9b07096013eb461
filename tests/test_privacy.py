"""A hidden process is closed to others of its user: the referee during a run, the oracle, the sandbox's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.problem import load_problem
from harness.processes import privacy
from harness.processes.court import Court

ROOT = Path(__file__).resolve().parents[1]
HIDES = """
import os, sys
from harness.processes.privacy import hide, is_hidden, show

def look():
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)
    for name in ("environ", "maps", "mem"):
        try:
            open(f"/proc/{os.getppid()}/{name}", "rb").close()
            print("opened", name)
        except OSError:
            print("refused", name)
    sys.stdout.flush()
    os._exit(0)

if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
for step in (show, hide, show):
    step()
    print("hidden" if is_hidden() else "open")
    look()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no /proc")
def test_what_is_hidden_is_closed_to_the_same_user_until_it_is_shown_again() -> None:
    ran = subprocess.run([sys.executable, "-c", HIDES], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    parts = [lines[:4], lines[4:8], lines[8:]]
    assert [part[0] for part in parts] == ["open", "hidden", "open"]
    assert parts[1][1:] == ["refused environ", "refused maps", "refused mem"]
    if parts[0][1:] != ["opened environ", "opened maps", "opened mem"]:
        pytest.skip("this system lets nobody look into others (ptrace_scope)")
    assert parts[2] == parts[0]


def test_the_referee_is_hidden_during_a_run_and_the_oracle_with_it() -> None:
    problem = load_problem(ROOT / "tests" / "problems" / "doubling")
    assert not privacy.is_hidden()
    with Court(problem, "cpu") as court:
        assert privacy.is_hidden()
        court.await_device()
        # The system lets what is below the /proc of a hidden process belong to root, whoever's it is.
        assert os.stat(f"/proc/{court.pid}/environ").st_uid == 0
        assert os.stat(f"/proc/{os.getpid()}/environ").st_uid == 0
    assert not privacy.is_hidden()
