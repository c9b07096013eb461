"""What the soak counts as left behind: all that a run leaves, and nothing of what else happens on the machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import ctypes, json, os, re, sys, time
import leftovers

place = leftovers.settle_in()
leftovers.SETTLED_S = 1.0
before = place.found()
print(json.dumps([place.is_alone, str(place.folder)]), flush=True)
sys.stdin.readline()
{leak}
print(json.dumps([re.sub("[0-9]+", "N", each) for each in place.left_since(before)]), flush=True)
"""
LEAKS = {
    "process N (python": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
""",
    "descriptor N of /dev/null": "kept = os.open('/dev/null', os.O_RDONLY)",
    "System V shm N": "assert ctypes.CDLL(None).shmget(0, 4096, 0o1600) >= 0",
    "/dev/shm/podium-left": "open('/dev/shm/podium-left', 'w').close()",
    "{folder}/tmp/left": "open(os.environ['TMPDIR'] + '/left', 'w').close()",
    "{folder}/caches/odd": "place.caches.mkdir(); (place.caches / 'odd').touch(); (place.caches / ('a' * 16)).mkdir()",
    "": "pass",
}


@pytest.mark.parametrize(("expected", "leak"), LEAKS.items(), ids=lambda each: str(each).strip()[:20] or "nothing")
def test_what_is_left_is_found_and_nothing_that_others_leave(expected: str, leak: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(leak=leak))
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    ) as begun:
        assert begun.stdin is not None and begun.stdout is not None
        is_alone, folder = json.loads(begun.stdout.readline())
        if not is_alone and expected != "process N (python":
            begun.kill()
            pytest.skip("this machine does not give namespaces: what others do is seen, too")
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="psm_"), subprocess.Popen(["sleep", "600"]) as other:
            begun.stdin.write("\n")
            begun.stdin.close()
            left = json.loads(begun.stdout.readline())
            other.kill()
        assert begun.wait() == 0
    assert [each[: len(expected)] if expected.startswith("process") else each for each in left] == (
        [expected.format(folder=re.sub("[0-9]+", "N", folder))] if expected else []
    )
    assert list(tmp_path.iterdir()) == [program]
