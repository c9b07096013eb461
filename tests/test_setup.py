"""A run that cannot be set up says why in a line, and leaves nothing: no descriptor, no folder, no process."""

from __future__ import annotations

import errno
import glob
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import wire
from harness.errors import DeviceError
from harness.problem import load_problem
from harness.processes import isolation, peer
from harness.processes.court import Court
from harness.processes.isolation import Limits
from harness.processes.pair import Pair, Setting
from harness.record import Outcome

PROBLEM = load_problem(Path(__file__).parent / "problems" / "doubling")


def held() -> tuple[int, set[str], set[str]]:
    """Descriptors, scratch folders and children of this process."""
    folders = set(glob.glob(f"{tempfile.gettempdir()}/podium-{os.getpid()}-*"))
    children = set()
    for process in glob.glob("/proc/[0-9]*"):
        try:
            if Path(process, "stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                children.add(process)
        except OSError:
            continue
    return len(os.listdir("/proc/self/fd")), folders, children


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = held()
    yield
    assert held() == before


def full(*arguments: Any, **named: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def one_line(begin: Callable[[], object]) -> None:
    with pytest.raises(DeviceError) as caught:
        begin()
    assert str(caught.value).startswith("a run could not be set up: No space left on device")
    assert "\n" not in str(caught.value)


def setting(tmp_path: Path, source: str = "def custom_kernel(data): return 2 * data[0] + data[1]\n") -> Setting:
    return Setting(source, Limits(load_s=5), tmp_path / "caches" / "one")


@pytest.mark.parametrize("name", ["make_scratch", "Warden", "memory_file", "pipes", "launch", "Peer"])
def test_a_court_that_cannot_be_set_up_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"harness.processes.court.{name}", full)
    before = held()
    one_line(lambda: Court(PROBLEM, "cpu").__enter__())
    assert held() == before


@pytest.mark.parametrize("name", ["pair.memory_file", "pair.os.ftruncate", "pair.Page", "court.launch", "court.Peer"])
def test_a_contestant_that_cannot_be_set_up_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Court(PROBLEM, "cpu") as court:
        before = held()
        with monkeypatch.context() as patch:
            patch.setattr(f"harness.processes.{name}", full)
            one_line(lambda: Pair(court, setting(tmp_path)).__enter__())
        assert held() == before


def test_a_contestant_that_cannot_be_started_again_is_a_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Court(PROBLEM, "cpu") as court, Pair(court, setting(tmp_path)) as pair:
        pair.drop()
        monkeypatch.setattr("harness.processes.court.launch", full)
        one_line(lambda: pair.attached(wire.Staged({}, ("",), 1, 1)).__enter__())


def test_a_pipe_or_a_seal_that_is_refused_closes_what_was_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = held()
    real, calls = os.pipe, iter([os.pipe, full])
    monkeypatch.setattr(peer.os, "pipe", lambda: next(calls)())
    with pytest.raises(OSError, match="No space"):
        peer.pipes()
    monkeypatch.setattr(peer.os, "pipe", real)
    monkeypatch.setattr("fcntl.fcntl", full)
    with pytest.raises(OSError, match="No space"):
        isolation.memory_file("podium-test")
    assert held() == before


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import time\ntime.sleep(1000)\n", "nothing came back within 5 s"),
        ("import os\nos._exit(3)\n", "exit status 3"),
        ("raise ValueError('no')\n", "ValueError: no"),
    ],
)
def test_a_submission_that_cannot_be_loaded_has_no_process_any_more(source: str, words: str, tmp_path: Path) -> None:
    with Court(PROBLEM, "cpu") as court, Pair(court, setting(tmp_path, source)) as pair:
        pair.prepare()
        process = f"/proc/{pair.pid}"
        report = pair.load()
        assert isinstance(report, Outcome)
        assert words in report.message
        assert pair.pid is None
        assert not os.path.exists(process)
