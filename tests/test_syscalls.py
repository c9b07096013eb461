"""What the filter lets pass, refuses and tells: run here as the kernel would, and by the kernel."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cases import Case
from harness.contest import Contender, Contest, compare_kernels
from harness.evaluate import Request, evaluate
from harness.problem import load_problem
from harness.processes import syscalls
from harness.processes.isolation import Attempts
from harness.submission import read_submission
from leaderboard.tables import summary_lines

ROOT = Path(__file__).resolve().parents[1]
ALLOWED, REFUSED, TOLD = 0x7FFF0000, 0x00050001, 0x7FC00000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003


def verdict(program: bytes, architecture: int, number: int) -> int:
    """What a filter says of a call: the four instructions that it is made of, as seccomp_filter.rst defines them."""
    lines = list(struct.iter_unpack("=HBBI", program))
    place = value = 0
    while True:
        code, then, otherwise, operand = lines[place]
        place += 1
        if code == 0x20:
            value = {0: number, 4: architecture}[operand]
        elif code in (0x15, 0x35):
            place += then if (value == operand if code == 0x15 else value >= operand) else otherwise
        else:
            assert code == 0x06
            return int(operand)


@pytest.mark.parametrize(("place", "machine"), list(enumerate(ARCHITECTURES)))
def test_exactly_the_named_calls_are_refused(place: int, machine: str) -> None:
    named = {numbers[place] for numbers in syscalls.NAMES.values()}
    assert len(named) == len(syscalls.NAMES)
    program = syscalls.program(machine, TOLD)
    found = {number for number in range(600) if verdict(program, ARCHITECTURES[machine], number) == TOLD}
    assert found == named
    rest = {verdict(program, ARCHITECTURES[machine], number) for number in range(600) if number not in named}
    assert rest == {ALLOWED}


def test_the_machine_s_other_interfaces_are_refused_whatever_is_asked() -> None:
    program = syscalls.program("x86_64", TOLD)
    assert verdict(program, I386, 3) == REFUSED
    assert verdict(program, ARCHITECTURES["x86_64"], 0x40000000) == REFUSED


def test_a_machine_that_is_not_known_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls.os, "uname", lambda: type("Name", (), {"machine": "s390x"}))
    with pytest.raises(syscalls.Unavailable, match="no filter for s390x"):
        syscalls.forbid(listens=False)


def test_refused_at_once_where_nobody_listens() -> None:
    program = """
import ctypes, os
from harness.processes import syscalls
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
try:
    syscalls.forbid(listens=False)
except syscalls.Unavailable as error:
    print("unavailable", error)
    raise SystemExit
print(libc.unshare(0), ctypes.get_errno(), os.getpid() > 0)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    if ran.stdout.startswith("unavailable"):
        pytest.skip(ran.stdout)
    assert ran.stdout.split() == ["-1", "1", "True"]


def test_attempts_are_read_as_far_as_they_were_told() -> None:
    attempts = Attempts()
    assert attempts.read() == ()
    os.write(attempts.descriptor, b"ptrace\nmount\n")
    assert attempts.read() == ("ptrace", "mount")
    os.write(attempts.descriptor, b"ptrace\n")
    attempts.begun()
    assert (attempts.read(), attempts.read()) == (("ptrace",), ())
    attempts.close()


ASKS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
{when_loaded}

def custom_kernel(data):
    {when_called}
    return 2 * data[0] + data[1]
"""


@pytest.mark.parametrize(
    ("when_loaded", "when_called", "refused"),
    [
        ("", "pass", ()),
        ("libc.ptrace(0, 0, 0, 0)", "libc.unshare(0); libc.unshare(0)", ("ptrace", "unshare")),
        ("", "import os; os.fork() or (libc.setns(0, 0), os._exit(0)); os.wait()", ("setns",)),
    ],
)
def test_what_a_submission_asked_for_stands_in_its_record_and_unranks_it(
    when_loaded: str, when_called: str, refused: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "asks.py"
    file.write_text(ASKS.format(when_loaded=when_loaded, when_called=when_called))
    problem = load_problem(ROOT / "tests" / "problems" / "doubling")
    case = Case({"rows": 4, "columns": 32, "seed": 1})
    record = evaluate(
        Request(problem, read_submission(file, "nobody"), "test", "cpu", tmp_path / "caches", cases=(case,))
    )
    layer = next((each for each in record.isolation if each.name == "system calls"), None)
    if layer is None or "counted" not in layer.detail:
        pytest.skip("this machine does not tell what it refuses")
    assert (record.outcome.verdict, record.refused) == ("passed", refused)
    assert record.doubts == (("sandbox-denied",) if refused else ())
    said = [line.plain for line in summary_lines(record)]
    assert [", ".join(refused) in line for line in said if "for what no kernel needs" in line] == [True] * bool(refused)


def test_a_comparison_says_who_asked(tmp_path: Path) -> None:
    problem = load_problem(ROOT / "tests" / "problems" / "doubling")
    contenders = []
    for name, when_loaded in (("quiet", ""), ("asks", "libc.ptrace(0, 0, 0, 0)")):
        file = tmp_path / f"{name}.py"
        file.write_text(ASKS.format(when_loaded=when_loaded, when_called="pass"))
        contenders.append(Contender(name, read_submission(file, "nobody")))
    case = Case({"rows": 4, "columns": 32, "seed": 1})
    contest = Contest(problem, tuple(contenders), "cpu", tmp_path / "caches", cases=(case,), max_seconds=1)
    found = compare_kernels(contest)
    notes = [each for each in found.notes if "refused" in each]
    if not notes:
        pytest.skip("this machine does not tell what it refuses")
    assert notes == ["asks asked the system for what no kernel needs, and was refused: ptrace"]
