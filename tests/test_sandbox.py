"""What a program in the sandbox can do no more, and that nothing of it is left. As far as this kernel gives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import DeviceError
from harness.problem import load_problem
from harness.processes import landlock, pair
from harness.processes.court import Court
from harness.processes.isolation import SANDBOX, Limits, Report, hand_over, keeps_signals, other_user, settings
from harness.processes.pair import Pair, Setting
from harness.processes.peer import descendants
from harness.processes.sandbox import Settings
from harness.record import Layer

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = ROOT / "tests" / "problems" / "doubling"


@dataclass
class Ran:
    """How a program ended, what the sandbox said, and what it printed."""

    status: int
    layers: dict[str, bool]
    printed: str


class Started:
    """A program in the sandbox."""

    def __init__(self, program: str, folder: Path, **taken: object) -> None:
        self.report = Report()
        asked = Settings(self.report.descriptor, (str(folder),), ("/dev/null",), **taken)  # type: ignore[arg-type]
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "harness.processes.sandbox", asked.to_json(), sys.executable, "-c", program],
            pass_fds=(self.report.descriptor,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        self.report.begun()

    def ran(self) -> Ran:
        """To its end."""
        printed, _ = self.process.communicate(timeout=30)
        _, found = self.report.read()
        return Ran(self.process.returncode, {name: applied for name, applied, _ in found}, printed)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def begin(program: str, **taken: object) -> Started:
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        started.append(Started(program, folder, **taken))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.wait()
        each.report.close()


def needs(ran: Ran, *layers: str) -> None:
    """Skip where this kernel does not give what is tested."""
    missing = [name for name in layers if not ran.layers.get(name)]
    if missing:
        pytest.skip(f"this machine does not give {', '.join(missing)}")


def test_it_writes_into_its_own_folder_and_nowhere_else(start: Start, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    program = f"""
open("inside", "w").write("yes")
new = {str(tmp_path / "new")!r}
for path, mode in (({str(outside)!r}, "w"), ({str(outside)!r}, "a"), (new, "w")):
    try:
        open(path, mode)
    except PermissionError:
        print("refused")
try:
    open("/dev/shm/podium-test", "w")  # its own, where it has one
except PermissionError:
    pass
print(open({str(outside)!r}).read(), file=open("/dev/null", "w"))
"""
    ran = start(program).ran()
    needs(ran, "Landlock")
    assert (ran.status, ran.printed.split()) == (0, ["refused"] * 3)
    assert outside.read_text() == "mine"
    assert not Path("/dev/shm/podium-test").exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "outside", "own"]


def test_it_sees_processes_of_its_own_only(start: Start) -> None:
    program = "import os; print(*sorted(int(each) for each in os.listdir('/proc') if each.isdigit()))"
    ran = start(program).ran()
    needs(ran, "own /proc")
    assert ran.printed == "1 2\n"


def test_its_shared_memory_has_an_end(start: Start) -> None:
    program = """
import os
found = os.statvfs("/dev/shm")
print(found.f_blocks * found.f_frsize)
"""
    ran = start(program).ran()
    needs(ran, "own /dev/shm")
    assert int(ran.printed) == 1 << 30


def test_it_reaches_no_network(start: Start) -> None:
    program = """
import socket
listener = socket.socket()
for port in (80, 443):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5)
    except ConnectionRefusedError:
        print("there is a network")
    except OSError:
        print("refused")
"""
    ran = start(program).ran()
    needs(ran, "namespaces")
    assert ran.printed.split() == ["refused"] * 2


def test_it_neither_signals_nor_reads_a_process_outside(start: Start) -> None:
    program = f"""
import os, signal
for what in ("environ", "maps", "mem", "fd"):
    path = "/proc/{os.getpid()}/" + what
    try:
        os.readlink(path + "/0") if what == "fd" else open(path, "rb").read(1)
        print("got", what)
    except OSError:
        print("refused", what)
try:
    os.kill({os.getpid()}, signal.SIGCONT)
    print("got signal")
except OSError:
    print("refused signal")
"""
    ran = start(program).ran()
    needs(ran, "namespaces", "Landlock")
    refused = {line.removeprefix("refused ") for line in ran.printed.splitlines() if line.startswith("refused")}
    # Root sees the rest whatever Landlock says: hence the other user.
    assert refused >= ({"mem", "signal"} if os.getuid() == 0 else {"environ", "maps", "mem", "fd", "signal"})


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    ],
)
@pytest.mark.parametrize("layers", [(), ("namespaces", "Landlock")], ids=["none", "all"])
def test_it_ends_as_the_program_does(program: str, status: int, layers: tuple[str, ...], start: Start) -> None:
    assert start(program, layers=layers).ran().status == status


def test_a_daemon_ends_with_the_program(start: Start) -> None:
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)  # holds the pipe that the test reads to its end
    os._exit(0)
time.sleep(0.2)
"""
    begun = start(program)
    ran = begun.ran()
    needs(ran, "namespaces")
    assert ran.status == 0


@pytest.mark.parametrize("whom", ["init", "outside"])
def test_all_end_with_the_init_and_with_who_waits_outside(whom: str, start: Start) -> None:
    begun = start("import time; print('here', flush=True); time.sleep(1000)")
    assert begun.process.stdout is not None
    assert begun.process.stdout.readline() == "here\n"
    inside = descendants(begun.process.pid)
    init, found = begun.report.read()
    needs(Ran(0, {name: applied for name, applied, _ in found}, ""), "namespaces")
    assert init in inside
    assert len(inside) == 2
    os.kill(init if whom == "init" else begun.process.pid, signal.SIGKILL)
    assert begun.process.wait(timeout=30) == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{each}").exists() for each in inside) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{each}").exists() for each in inside)


def test_a_layer_that_cannot_be_had_is_named_and_the_program_runs(start: Start) -> None:
    ran = start("print('ran')", limits=(("files", "RLIMIT_NOFILE", 100, ""), ("moon", "RLIMIT_MOON", 1, ""))).ran()
    assert (ran.status, ran.printed) == (0, "ran\n")
    assert (ran.layers["files"], ran.layers["moon"]) == (True, False)


def test_resource_limits_hold_inside(start: Start) -> None:
    program = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert start(program, limits=(("files", "RLIMIT_NOFILE", 100, ""),)).ran().printed == "100 100\n"


def test_a_limit_below_what_is_asked_is_the_system_s_own(start: Start) -> None:
    begun = start("pass", limits=(("a", "RLIMIT_NOFILE", 100, "a hundred"), ("b", "RLIMIT_NOFILE", 200, "two hundred")))
    assert begun.process.wait(timeout=30) == 0
    said = {name: detail for name, _, detail in begun.report.read()[1]}
    assert (said["a"], said["b"]) == ("a hundred", "100, the system's own limit")


def test_settings_come_back_as_they_were_sent() -> None:
    sent = Settings(7, ("/a",), ("/dev/null",), (1, 2, 3), (("files", "RLIMIT_NOFILE", 100, ""),), ("Landlock",))
    assert Settings.from_json(sent.to_json()) == sent


@pytest.mark.parametrize(("version", "rights"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (9, 16)])
def test_a_kernel_is_asked_for_no_more_rights_than_it_knows(version: int, rights: int) -> None:
    assert landlock.file_rights(version).bit_count() == rights


@pytest.mark.parametrize(
    ("names", "scopes", "kept"),
    [
        (["namespaces"], False, True),
        (["Landlock"], True, True),
        (["Landlock"], False, False),
        (["own user", "no core dump"], True, False),
    ],
)
def test_signals_are_kept_inside_by_namespaces_and_by_newer_kernels_landlock(
    names: list[str], scopes: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "scopes_signals", lambda: scopes)
    layers = [Layer(name, name in names) for name in ("namespaces", "Landlock", "own user", "no core dump")]
    assert keeps_signals(layers) == kept


# --- as the harness uses it --------------------------------------------------------------------------------------


def test_without_isolation_only_limits_are_set() -> None:
    assert settings(Limits(isolation="none"), 3, ()).layers == ()
    assert "Landlock" in settings(Limits(), 3, ()).layers


def test_where_a_layer_is_missing_strict_runs_nothing_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "layers", lambda *_: (Layer("walls", False, "none here"), Layer("roof", True)))
    problem = load_problem(PROBLEM)
    source = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
    for isolation, is_refused in (("auto", False), ("strict", True)):
        setting = Setting(source, Limits(isolation=isolation), tmp_path / "caches" / "one")  # type: ignore[arg-type]
        with Court(problem, "cpu") as court, Pair(court, setting) as begun:
            if is_refused:
                with pytest.raises(DeviceError, match=r"does not give walls \(none here\): use --isolation auto"):
                    begun.prepare()
            else:
                begun.prepare()


@pytest.mark.parametrize("isolation", ["auto", "strict"])
def test_where_the_device_cannot_be_used_inside_this_process_and_the_next_do_without(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = Pair._prepared
    monkeypatch.setattr(Pair, "_prepared", lambda self: "CUDA error: not permitted" if self._in_sandbox else hear(self))
    monkeypatch.setattr(
        pair, "layers", lambda _, __, found: tuple(Layer(*each) for each in found if each[0] in SANDBOX)
    )
    setting = Setting("", Limits(isolation=isolation), tmp_path / "caches" / "one")  # type: ignore[arg-type]
    with Court(load_problem(PROBLEM), "cpu") as court, Pair(court, setting) as first, Pair(court, setting) as beside:
        if isolation == "strict":
            with pytest.raises(DeviceError, match="could not use the device: CUDA error"):
                first.prepare()
            return
        for each in (first, beside):
            each.begin_prepare()
        for each in (first, beside):
            each.prepare()
        with Pair(court, setting) as later:
            later.prepare()
            for each in (first, beside, later):
                assert {layer.name for layer in each.isolation} == set(SANDBOX)
                assert not any(layer.applied for layer in each.isolation)
                assert all("CUDA error: not permitted" in layer.detail for layer in each.isolation)


def test_another_user_is_only_for_root_and_must_reach_all_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    found = other_user([closed])
    assert isinstance(found, str)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert other_user([]) == "not started as root"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_what_is_handed_over_belongs_to_the_other_user_links_and_all(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("root's")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    hand_over(folder, (65534, 65534))
    assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == {65534}
    assert outside.stat().st_uid == 0
