"""Heats whose processes are scripted: which are started, prepared, loaded and ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness import wire
from harness.errors import DeviceError
from harness.heats import Budget, Heats


class ScriptedPair:
    """A contestant that keeps what was done to it."""

    made: list[ScriptedPair]
    ended: list[str]

    def __init__(self, court: Any, setting: str, seat: int) -> None:
        self.setting = setting
        self.done: list[str] = []
        self.is_prepared = False
        self.pid: int | None = 1
        self.output, self.notes = "", ()
        ScriptedPair.made.append(self)

    def __enter__(self) -> ScriptedPair:
        self.done.append("start")
        return self

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self.pid is None else (self.pid,)

    def signal_end(self) -> None:
        ScriptedPair.ended.append("signal")

    def __exit__(self, *_: object) -> None:
        self.pid = None
        self.done.append("end")
        ScriptedPair.ended.append("end")

    def begin_prepare(self) -> None:
        self.is_prepared = True

    def prepare(self) -> None:
        self.done.append("prepare")

    def load(self) -> wire.Loaded:
        self.done.append("load")
        return wire.Loaded(interprets=False)


@pytest.fixture
def heats(monkeypatch: pytest.MonkeyPatch) -> Heats:
    ScriptedPair.made, ScriptedPair.ended = [], []
    monkeypatch.setattr("harness.heats.Pair", ScriptedPair)
    settings: Any = ["a", "b", "c"]
    court: Any = SimpleNamespace(kind="cpu", pid=0)
    return Heats(court, settings, 3, 5)


def done(setting: str) -> list[list[str]]:
    return [pair.done for pair in ScriptedPair.made if pair.setting == setting]


def test_a_retired_submission_ends_everywhere_and_is_never_started_again(heats: Heats) -> None:
    with heats:
        heats.next()
        assert [index for index, _ in heats.load()] == [0, 1, 2]
        heats.retire(1)
        assert {pair.setting for pair in heats.current.values() if pair.pid is not None} == {"a", "c"}
        assert done("b") == [["start", "prepare", "load", "end"], *[["start", "prepare", "end"]] * 2]
        assert len(heats.pids) == 1 + 2 * 3
        for _ in range(4):
            assert list(heats.next()) == [0, 2]
            assert [index for index, _ in heats.load()] == [0, 2]
            assert [heats.current[index].setting for index in heats.current] == ["a", "c"]
    assert len(done("a")) == len(done("c")) == 5
    assert len(done("b")) == 3
    assert all(pair.pid is None for pair in ScriptedPair.made)


@pytest.mark.parametrize(
    ("cores", "started"), [(16, [5, 5, 5, 6, 10, 10, 10, 10, 12]), (2, [3, 3, 3, 4, 8, 8, 8, 8, 12])]
)
def test_on_a_gpu_interpreters_start_ahead_and_contexts_are_made_up_to_the_next_look(
    cores: int, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ScriptedPair.made, ScriptedPair.ended = [], []
    monkeypatch.setattr("harness.heats.Pair", ScriptedPair)
    monkeypatch.setattr("harness.heats.os.cpu_count", lambda: cores)
    settings: Any = ["a", "b", "c"]
    court: Any = SimpleNamespace(kind="cuda", pid=0)
    seen, prepared = [], []
    with Heats(court, settings, 3, 12) as heats:
        for _ in range(9):
            heats.next()
            seen.append(len(ScriptedPair.made) // 3)
            prepared.append(sum(pair.is_prepared for pair in ScriptedPair.made) // 3)
    assert seen == started
    assert prepared == [3, 3, 3, 4, 8, 8, 8, 8, 12]
    assert all(pair.pid is None for pair in ScriptedPair.made)


def test_no_more_contexts_are_made_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ScriptedPair.made, ScriptedPair.ended = [], []
    monkeypatch.setattr("harness.heats.Pair", ScriptedPair)
    monkeypatch.setattr("harness.heats.os.cpu_count", lambda: 2)
    settings: Any = ["a"]
    court: Any = SimpleNamespace(kind="cuda", pid=0)
    prepared = []
    with Heats(court, settings, 3, 12) as heats:
        for further in (None, None, None, 1, 2, None):
            heats.next(further)
            prepared.append(sum(pair.is_prepared for pair in ScriptedPair.made))
    assert prepared == [3, 3, 3, 4, 6, 6]


@pytest.mark.parametrize(("taken_s", "further"), [(2.0, 12), (5.0, 3), (6.5, 1), (9.0, 1)])
def test_a_budget_tells_how_many_heats_like_those_so_far_it_has_time_for(
    taken_s: float, further: int, heats: Heats, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0, int(taken_s * 1e9)])
    monkeypatch.setattr("harness.heats.wall_ns", lambda: next(now))
    heats.number = 3
    assert Budget(8.0).further(heats) == further


def test_a_budget_without_a_bound_has_time_for_all(heats: Heats) -> None:
    assert Budget(None).further(heats) is None


def test_processes_that_end_at_the_same_time_are_all_told_before_one_is_waited_for(heats: Heats) -> None:
    with heats:
        heats.next()
        heats.next()
        assert ScriptedPair.ended == ["signal"] * 3 + ["end"] * 3
        ScriptedPair.ended.clear()
        heats.retire(0)
        assert ScriptedPair.ended == ["signal"] * 2 + ["end"] * 2
        ScriptedPair.ended.clear()
    assert ScriptedPair.ended == ["signal"] * 5 + ["end"] * 5  # the retired one of this heat, once more


def test_an_interpreter_that_cannot_be_started_ahead_is_told_only_when_it_is_needed(
    heats: Heats, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(pair: ScriptedPair) -> ScriptedPair:
        if len(ScriptedPair.made) > 11:
            raise DeviceError("a run could not be set up: Too many open files")
        return pair

    monkeypatch.setattr(ScriptedPair, "__enter__", enter)
    monkeypatch.setattr("harness.heats.os.cpu_count", lambda: 16)
    heats.court.kind = "cuda"  # type: ignore[misc]
    with heats:
        for number in range(3):
            assert len(heats.next()) == 3
            assert heats.number == number
        started = len(ScriptedPair.made)
        with pytest.raises(DeviceError, match="Too many open files"):
            heats.next()
    assert started > 11
    assert all(pair.pid is None for pair in ScriptedPair.made if pair.is_prepared)


def test_a_submission_retired_while_others_are_loaded_is_not_loaded(heats: Heats) -> None:
    with heats:
        heats.next()
        loaded = []
        for index, _ in heats.load():
            loaded.append(index)
            if index == 0:
                heats.retire(2)
    assert loaded == [0, 1]
