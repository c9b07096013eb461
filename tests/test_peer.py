"""A child process, seen from the referee: what it says, what it prints, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import wire
from harness.processes.isolation import environment, launch, prune_caches
from harness.processes.peer import Peer, PeerEnded, pipes, printable, resident_bytes, shut

Start = Callable[..., Peer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script as a child; its `say(bytes)` writes on the reports' pipe, `hear()` reads an order."""
    peers = []

    def run(script: str, memory: int | None = None) -> Peer:
        child_orders, orders, reports, child_reports = pipes()
        prelude = f"""
            import os, sys, time
            def say(data): os.write({child_reports}, data)
            def hear(): return os.read({child_orders}, 65536)
            LOADED = b'{{"kind": "Loaded", "interprets": false}}\\n'
        """
        (tmp_path / "child.py").write_text(textwrap.dedent(prelude) + textwrap.dedent(script))
        process = launch(
            "child",
            [],
            descriptors=(child_orders, child_reports),
            variables={"PYTHONPATH": str(tmp_path)},
            folder=tmp_path,
        )
        shut((child_orders, child_reports))
        peer = Peer(process, orders, reports, wire.CONTESTANT_REPORTS, memory)
        peers.append(peer)
        return peer

    yield run
    for peer in peers:
        peer.close()


def ended(peer: Peer, timeout_s: float = 20.0) -> tuple[str, str]:
    with pytest.raises(PeerEnded) as caught:
        peer.receive(wire.Loaded, timeout_s=timeout_s)
    return caught.value.verdict, caught.value.message


def test_an_order_is_answered(start: Start) -> None:
    peer = start("hear(); say(LOADED); hear()")
    assert peer.ask(wire.Load("x.py"), wire.Loaded, timeout_s=20) == wire.Loaded(interprets=False)


def test_a_failure_is_an_answer_to_anything(start: Start) -> None:
    peer = start("""say(b'{"kind": "Failed", "verdict": "crashed", "stage": "load", "message": "no"}\\n'); hear()""")
    assert peer.receive(wire.Loaded, timeout_s=20) == wire.Failed("crashed", "load", "no")


def test_an_answer_out_of_turn_is_a_violation(start: Start) -> None:
    verdict, message = ended(start("""say(b'{"kind": "Prepared"}\\n'); hear()"""))
    assert verdict == "protocol-violation"
    assert "unknown kind 'Prepared'" in message


def test_a_line_without_end_is_a_violation(start: Start) -> None:
    assert ended(start("for _ in range(40): say(b'x' * 60000)\nhear()"))[0] == "protocol-violation"


def test_silence_ends_at_the_deadline(start: Start) -> None:
    assert ended(start("hear()"), timeout_s=0.3) == ("timed-out", "nothing came back within 0.3 s")


def test_a_signal_is_named(start: Start) -> None:
    verdict, message = ended(start("os.kill(os.getpid(), 11)"))
    assert (verdict, message) == ("crashed", "the process was ended by SIGSEGV: it touched memory that is not its own")


def test_an_exit_without_a_word_is_a_crash_even_with_status_zero(start: Start) -> None:
    assert ended(start("print('passed', flush=True); os._exit(0)")) == (
        "crashed",
        "the process ended itself with exit status 0",
    )


def test_a_flood_of_prints_blocks_nobody_and_only_its_end_is_kept(start: Start) -> None:
    peer = start("for i in range(300): os.write(1, b'x' * 100_000)\nos.write(1, b'the end')\nsay(LOADED); hear()")
    assert peer.receive(wire.Loaded, timeout_s=60) == wire.Loaded(interprets=False)
    deadline = time.monotonic() + 10
    while not peer.output.endswith("the end") and time.monotonic() < deadline:
        with pytest.raises(PeerEnded):
            peer.receive(wire.Loaded, timeout_s=0.05)
    assert peer.output.endswith("the end")
    assert "bytes before this were dropped" in peer.output
    assert len(peer.output) < 20_000


def test_a_child_that_does_not_read_its_orders_times_out(start: Start) -> None:
    peer = start("time.sleep(60)")

    def speak() -> None:
        for _ in range(100):
            peer.send(wire.Load("x" * 60_000), timeout_s=0.3)

    with pytest.raises(PeerEnded) as caught:
        speak()
    assert caught.value.verdict == "timed-out"


def test_what_it_started_counts_too(start: Start) -> None:
    script = """
        for _ in range(4):
            if os.fork() == 0:
                own = bytearray(os.urandom(1 << 20) * 80)
                time.sleep(1000)
        time.sleep(1000)
    """
    assert ended(start(script, memory=200 << 20))[0] == "out-of-memory"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no unnamed files in memory")
@pytest.mark.parametrize(("is_mapped", "ends"), [(False, True), (True, False)])
def test_files_in_memory_count_once_whether_they_are_mapped_or_not(is_mapped: bool, ends: bool, start: Start) -> None:
    """120 MiB beside an interpreter: without a mapping they are no process's resident memory, with one they are."""
    script = f"""
        import mmap
        files = [os.memfd_create("held") for _ in range(12)]
        for file in files:
            os.write(file, bytes(10 << 20))
        views = [mmap.mmap(file, 10 << 20) for file in files if {is_mapped}]
        touched = sum(view[page << 12] for view in views for page in range(10 << 8))
        time.sleep(1)
        say(LOADED)
        hear()
    """
    peer = start(script, memory=(100 if ends else 200) << 20)
    if ends:
        assert ended(peer) == ("out-of-memory", "it used more than 0.1 GiB of the host's memory")
    else:
        assert isinstance(peer.receive(wire.Loaded, timeout_s=20), wire.Loaded)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this system does not tell shared pages")
def test_pages_that_children_share_with_it_count_once(start: Start) -> None:
    script = """
        shared = bytearray(os.urandom(1 << 20) * 80)
        for _ in range(5):
            if os.fork() == 0:
                time.sleep(1000)
        time.sleep(0.5)
        say(LOADED)
        hear()
    """
    peer = start(script, memory=250 << 20)
    assert isinstance(peer.receive(wire.Loaded, timeout_s=20), wire.Loaded)
    assert sum(map(resident_bytes, peer.pids)) > 250 << 20


def test_too_much_memory_ends_it(start: Start) -> None:
    script = (
        "hold = []\nfor _ in range(100): hold.append(bytearray(os.urandom(1) * (16 << 20))); time.sleep(0.02)\nhear()"
    )
    verdict, message = ended(start(script, memory=200 << 20))
    assert verdict == "out-of-memory"
    assert "0.2 GiB" in message


def test_everything_that_it_started_ends_with_it(start: Start, tmp_path: Path) -> None:
    peer = start(
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        "open('pid', 'w').write(str(child.pid))\nsay(LOADED); hear()"
    )
    peer.receive(wire.Loaded, timeout_s=20)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    peer.kill()
    deadline = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_printable_text_cannot_move_a_cursor() -> None:
    assert (
        printable("a\x1b[31mb\x00c\r\nd\te\x9b")
        == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}c\nd\te\N{REPLACEMENT CHARACTER}"
    )


def test_a_child_s_environment_holds_nothing_of_the_referee_s_but_toolchains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODIUM_SECRET", "42")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    built = environment("cpu", tmp_path, tmp_path / "caches", tmp_path / "kernels")
    assert "PODIUM_SECRET" not in built
    assert built["CUDA_HOME"] == "/opt/cuda"
    assert built["TRITON_INTERPRET"] == "1"
    assert built["CUDA_VISIBLE_DEVICES"] == ""
    assert built["HOME"] == str(tmp_path)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [("cuda", None, "0"), ("cuda:2", None, "2"), ("cuda:1", "5,7", "7"), ("cuda", "GPU-abc", "GPU-abc")],
)
def test_a_child_sees_one_gpu(
    device: str, visible: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment(device, tmp_path, tmp_path, tmp_path)["CUDA_VISIBLE_DEVICES"] == expected


def test_the_caches_used_longest_ago_are_forgotten(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune_caches(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "older"]
    (tmp_path / "oldest").mkdir()
    prune_caches(tmp_path, keep=0, spare="oldest")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["oldest"]
    prune_caches(tmp_path / "not there")


def test_a_killed_referee_leaves_no_child_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    script = f"""
        import subprocess, sys, time
        from pathlib import Path
        from harness.processes.warden import Warden
        warden = Warden()
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        warden.watch(child.pid)
        warden.remove(Path({str(folder)!r}))
        print(child.pid, flush=True)
        time.sleep(600)
    """
    root = Path(__file__).resolve().parents[1]
    referee = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, cwd=root, start_new_session=True
    )
    assert referee.stdout is not None
    pid = int(referee.stdout.readline())
    assert _runs(pid)
    referee.kill()
    referee.wait()
    referee.stdout.close()
    deadline = time.monotonic() + 10
    while (_runs(pid) or folder.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)
    assert not folder.exists()
