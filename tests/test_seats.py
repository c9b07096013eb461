"""Contestants before one court: each has an arena of its own, and nobody sees or changes another's."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import wire
from harness.cases import Case
from harness.contest import Contender, Contest, compare_kernels
from harness.problem import load_problem
from harness.processes import oracle, sharing
from harness.processes.court import Court
from harness.processes.isolation import Limits
from harness.processes.oracle import Oracle
from harness.processes.pair import Pair, Setting
from harness.processes.reveal import Reveals, open_reveals
from harness.submission import read_submission

PROBLEM = Path(__file__).parent / "problems" / "doubling"
CASE = Case({"rows": 64, "columns": 64, "seed": 4})
SETS = 2
RIGHT = "def custom_kernel(data):\n    return 2 * data[0] + data[1]\n"
LOOKING = """
import os

def arenas():
    "Every arena that this process can reach: inherited, or mapped."
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if "podium-arena" in os.readlink(f"/proc/self/fd/{descriptor}"):
                found.add(os.stat(f"/proc/self/fd/{descriptor}").st_ino)
        except OSError:
            pass
    with open("/proc/self/maps") as maps:
        found |= {int(line.split()[4]) for line in maps if "podium-arena" in line}
    return found

def custom_kernel(data):
    with open(os.path.join(os.environ["XDG_CACHE_HOME"], "SEEN"), "a") as seen:
        print(os.getpid(), *sorted(arenas()), file=seen)
    return 2 * data[0] + data[1]
"""
VANDAL = """
import os

def custom_kernel(data):
    output = 2 * data[0] + data[1]
    for descriptor in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{descriptor}"
        try:
            if "podium-arena" in os.readlink(path):
                with open(path, "r+b") as arena:
                    arena.write(bytes(os.fstat(arena.fileno()).st_size))
        except OSError:
            pass
    return output
"""


def test_no_process_of_a_comparison_can_reach_the_arena_of_another_kernel(tmp_path: Path) -> None:
    names = ["of-first", "of-second"]
    contenders = []
    for name in names:
        source = tmp_path / f"{name}.py"
        source.write_text(LOOKING.replace("SEEN", name))
        contenders.append(Contender(source.name, read_submission(source, "ada")))
    problem = load_problem(PROBLEM)
    found = compare_kernels(Contest(problem, tuple(contenders), "cpu", tmp_path / "caches", (CASE,), max_seconds=0.1))
    assert [entry.outcome.verdict for entry in found.entries] == ["passed", "passed"]
    first, second = (
        {tuple(line.split()[1:]) for line in file.read_text().splitlines()}
        for file in (next(tmp_path.rglob(each)) for each in names)
    )
    assert {len(arenas) for arenas in first | second} == {1}  # whatever heat a process belongs to
    assert first.isdisjoint(second)
    assert len(first | second) == 3  # the hidden copy of one of them sits apart as well


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    with Court(load_problem(PROBLEM), "cpu", seats=2) as opened:
        assert opened.device.kind == "cpu"
        yield opened


@pytest.fixture
def seat(tmp_path: Path, court: Court) -> Iterator[Any]:
    """Seat a submission's text before the court."""
    with contextlib.ExitStack() as stack:

        def take(number: int, source: str = RIGHT) -> Pair:
            setting = Setting(textwrap.dedent(source), Limits(), tmp_path / "caches" / str(number))
            pair = stack.enter_context(Pair(court, setting, number))
            pair.prepare()
            assert isinstance(pair.load(), wire.Loaded)
            return pair

        yield take


def lies(court: Court, number: int) -> bytes:
    """All that lies in a seat's memory."""
    descriptor = court.memory_fds[number]
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def late(court: Court, staged: wire.Staged, number: int) -> Reveals:
    reveals = open_reveals(
        staged.layout["reveals"], torch.frombuffer(bytearray(lies(court, number)), dtype=torch.uint8)
    )
    assert reveals is not None
    return reveals


def inputs(court: Court, staged: wire.Staged, number: int) -> torch.Tensor:
    """The first set's own input, with its late lines in their places."""
    arena = torch.frombuffer(bytearray(lies(court, number)), dtype=torch.uint8)
    reveals = open_reveals(staged.layout["reveals"], arena)
    assert reveals is not None
    reveals(0)
    found: torch.Tensor = sharing.rebuild(staged.layout["inputs"][0], arena)[0]
    return found


def renew(court: Court) -> None:
    court.ask(wire.Renew(tuple(range(SETS)), 7, keep_first=False), wire.Renewed)


def call(pair: Pair) -> None:
    for index in range(SETS):
        pair.contestant(wire.Call(index), wire.Called, timeout_s=30)


def test_what_is_dealt_to_one_seat_lies_in_no_other_before_its_own_deal(court: Court, seat: Any) -> None:
    pairs = [seat(0), seat(1)]
    with court.staged(CASE, SETS, (0, 1)) as staged, pairs[0].attached(staged), pairs[1].attached(staged):
        before = lies(court, 1)
        renew(court)
        court.ask(wire.Deal(0), wire.Dealt)
        call(pairs[0])
        assert court.ask(wire.Judge(0, 0, published=True), wire.Judged).ok
        assert lies(court, 1) == before
        assert not inputs(court, staged, 1).any()
        court.ask(wire.Deal(1), wire.Dealt)
        assert torch.equal(inputs(court, staged, 1), inputs(court, staged, 0))
        after = lies(court, 0)
        call(pairs[1])
        assert court.ask(wire.Judge(1, 0, published=True), wire.Judged).ok
        assert lies(court, 0) == after


def test_a_contestant_that_writes_wherever_it_can_ruins_its_own_outputs_only(court: Court, seat: Any) -> None:
    honest, vandal = seat(0), seat(1, VANDAL)
    with court.staged(CASE, SETS, (0, 1)) as staged, honest.attached(staged), vandal.attached(staged):
        renew(court)
        court.ask(wire.Deal(0), wire.Dealt)
        call(honest)
        court.ask(wire.Deal(1), wire.Dealt)
        call(vandal)
        assert court.ask(wire.Judge(0, 0, published=False), wire.Judged).ok
        assert not court.ask(wire.Judge(1, 0, published=False), wire.Judged).ok


def test_the_late_lines_are_others_in_every_seat_and_deal(court: Court) -> None:
    with court.staged(CASE, SETS, (0, 1)) as staged:
        renew(court)
        drawn = []
        for number in (0, 1, 0, 1):
            court.ask(wire.Deal(number), wire.Dealt)
            drawn.append(tuple(late(court, staged, number).offsets.flatten().tolist()))
    assert len(set(drawn)) == 4


def test_only_the_seats_that_are_asked_for_get_an_arena(court: Court, seat: Any) -> None:
    with court.staged(CASE, SETS, (1,)) as staged:
        assert staged.handles == (None, "")
        assert (len(lies(court, 0)), len(lies(court, 1))) == (0, staged.size_bytes)
    with seat(1).staged(CASE, SETS) as sets:
        assert sets == SETS
        assert lies(court, 0) == b""


# --- shared inputs, in several places ---------------------------------------------------------------------------

SHIFT_BYTES = 64 * 4


def test_each_call_reads_the_shared_inputs_at_another_place_where_the_same_is_dealt(court: Court) -> None:
    with court.staged(CASE, 4, (0,)) as staged:
        places = [plan["tuple"][1]["tensor"]["offset"] for plan in staged.layout["inputs"]]
        assert len(set(places)) == staged.sets == 4
        court.ask(wire.Renew(tuple(range(4)), 7, keep_first=False), wire.Renewed)
        court.ask(wire.Deal(0), wire.Dealt)
        found = {lies(court, 0)[place : place + SHIFT_BYTES] for place in places}
    assert len(found) == 1
    assert any(found.pop())


@pytest.mark.parametrize("written", [None, 0, 1])
def test_a_write_to_any_place_of_a_shared_input_is_seen(written: int | None, court: Court, seat: Any) -> None:
    source = """
        from itertools import count
        numbers = count()

        def custom_kernel(data):
            output = 2 * data[0] + data[1]
            if next(numbers) == WRITTEN:
                data[1][0, 5] += 1
            return output
    """
    pair = seat(0, source.replace("WRITTEN", str(written)))
    with court.staged(CASE, SETS, (0,)) as staged, pair.attached(staged):
        renew(court)
        court.ask(wire.Deal(0), wire.Dealt)
        call(pair)
        judged = court.ask(wire.Judge(0, 0, published=False), wire.Judged)
    assert (judged.ok, judged.modified) == (True, written is not None)


@pytest.mark.parametrize(("room", "seats", "places"), [(4, 1, 4), (3.9, 1, 3), (4, 2, 2), (0.5, 1, 1), (99, 1, 6)])
def test_shared_inputs_lie_in_as_many_places_as_fit(
    room: float, seats: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.ones(8, 1024)
    monkeypatch.setattr(oracle, "PLACES_BYTES", int(room * weight.numel() * 4))
    found = doubling(monkeypatch, Memory(room=2), seats=2)
    found.reference.generate = lambda spec: (torch.ones(4, 256), weight)
    found.reference.shared = lambda data: [data[1]]
    staged = found.stage(wire.Stage({"rows": 4}, 6, tuple(range(seats))))
    offsets = [plan["tuple"][1]["tensor"]["offset"] for plan in staged.layout["inputs"]]
    assert (staged.sets, len(set(offsets))) == (6, places)
    assert offsets == [offsets[index % places] for index in range(6)]
    assert found.bench.layout.spans.lines == 4 * 256 * 4 // 64  # the sets' own: no shared one comes late


# --- room -----------------------------------------------------------------------------------------------------


class Memory:
    """A device's memory, in place of sharing.allocate: room for some arenas."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: list[sharing.Arena] = []

    def allocate(self, size_bytes: int, device: str, memory_fd: int) -> sharing.Arena:
        if len(self.held) == self.room:
            raise MemoryError("the device is out of memory")
        arena = sharing.Arena(torch.ones(size_bytes, dtype=torch.uint8), "00", lambda: self.held.remove(arena))
        self.held.append(arena)
        return arena


def doubling(monkeypatch: pytest.MonkeyPatch, memory: Memory, seats: int) -> Oracle:
    """An oracle in this process, before a device with that memory."""
    monkeypatch.setattr(sharing, "allocate", memory.allocate)
    found = Oracle(io.BytesIO(), io.BytesIO(), range(seats))
    reference = SimpleNamespace(
        generate=lambda spec: (torch.full((spec["rows"], 256), float(next(counter))),),
        output=lambda data: 2 * data[0],
        shared=lambda _: (),
        limits={},
    )
    counter = itertools.count()
    monkeypatch.setattr(found, "_reference", reference)
    return found


def test_an_arena_that_finds_no_room_leaves_none_of_the_others_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(room=2)
    found = doubling(monkeypatch, memory, seats=3)
    with pytest.raises(MemoryError):
        found.stage(wire.Stage({"rows": 4}, SETS, (0, 1, 2)))
    assert memory.held == []
    found.strike(wire.Strike())
    assert len(found.stage(wire.Stage({"rows": 4}, SETS, (0, 2))).handles) == 3
    assert len(memory.held) == 2
    found.strike(wire.Strike())
    assert memory.held == []


def test_an_arena_is_empty_whatever_lay_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doubling(monkeypatch, Memory(room=1), seats=1)
    found.stage(wire.Stage({"rows": 4}, SETS, (0,)))
    assert not found.bench.seats[0].inputs[0][0].any()


def generations(found: Oracle, *rows: int) -> list[float]:
    """By stage of a case with so many rows: the how-manieth data that was generated it is."""
    numbers = []
    for count in rows:
        found.stage(wire.Stage({"rows": count}, SETS, (0,)))
        numbers.append(float(found.bench.original[0][0, 0]))
    found.strike(wire.Strike())
    return numbers


def test_a_case_s_data_is_kept_for_the_next_process_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doubling(monkeypatch, Memory(room=1), seats=1)
    assert generations(found, 4, 4) == [0, 1]  # no room is known of
    found._keep_bytes = 6 * 256 * 4
    assert generations(found, 4, 8, 2, 4, 8, 2) == [2, 3, 4, 2, 5, 4]


def test_the_data_of_a_problem_whose_own_code_may_write_to_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found = doubling(monkeypatch, Memory(room=1), seats=1)
    found._keep_bytes = 1 << 30
    found.reference.limits = None
    assert generations(found, 4, 4) == [0, 1]


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_kept_makes_way_where_memory_is_short(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(room=1)
    found = doubling(monkeypatch, memory, seats=1)
    found._keep_bytes = (1 << 30) if kept else 0
    generations(found, 4)

    def allocate(size_bytes: int, device: str, memory_fd: int) -> sharing.Arena:
        if len(found._kept) > 1 or not kept:  # more than the case at hand needs anyway
            raise MemoryError("the device is out of memory")
        return memory.allocate(size_bytes, device, memory_fd)

    monkeypatch.setattr(sharing, "allocate", allocate)
    orders, reports = io.BytesIO(wire.encode(wire.Stage({"rows": 8}, SETS, (0,)))), io.BytesIO()
    found._orders, found._reports = orders, reports
    found.obey()
    report = wire.decode(reports.getvalue().rstrip(b"\n"), (wire.Staged, wire.Trouble))
    assert isinstance(report, wire.Staged if kept else wire.Trouble)


def test_seats_share_the_room_for_input_sets_and_are_laid_out_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "MAX_SET_BYTES", 24 * (2 * 4 * 256 * 4 + sharing.ALIGNMENT_BYTES))
    found = doubling(monkeypatch, Memory(room=3), seats=3)
    staged = [found.stage(wire.Stage({"rows": 4}, 100, tuple(range(seats)))) for seats in (1, 2, 3)]
    assert [each.sets for each in staged] == [24, 12, 8]
    assert {seat.arena.bytes.numel() for seat in found.bench.seats.values()} == {staged[2].size_bytes}


def test_a_small_arena_has_its_block_of_device_memory_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver puts small allocations together, and a handle opens all that lies in a block."""
    asked: list[int] = []
    driver = SimpleNamespace(allocate=lambda size: asked.append(size) or 64, export=lambda pointer: b"\x07")
    monkeypatch.setattr(sharing, "gpu_driver", lambda: driver)
    monkeypatch.setattr(sharing, "_device_bytes", lambda pointer, size: torch.empty(size, dtype=torch.uint8))
    arena = sharing.allocate(5000, "cuda", -1)
    assert (arena.bytes.numel(), arena.handle, asked) == (5000, "07", [sharing.BLOCK_BYTES])
    sharing.allocate(sharing.BLOCK_BYTES + 1, "cuda", -1)
    assert asked[1:] == [2 * sharing.BLOCK_BYTES]


@pytest.mark.parametrize(("room", "expected"), [(100, 2), (1, 1), (0, 0)])
def test_an_arena_finds_its_place_while_others_are_in_the_way_which_are_freed(
    room: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def allocate(size_bytes: int, device: str, memory_fd: int) -> SimpleNamespace:
        if len(taken) == room:
            raise MemoryError
        assert size_bytes % sharing.BLOCK_BYTES == 0
        taken.append(size_bytes)
        return SimpleNamespace(close=lambda: taken.remove(size_bytes))

    monkeypatch.setattr(sharing, "allocate", allocate)
    sizes = set()
    for _ in range(20):
        with sharing.moved_on("cuda"):
            assert len(taken) == expected
            sizes.add(tuple(taken))
        assert taken == []
    assert len(sizes) > 5 or not expected
    with sharing.moved_on("cpu"):
        assert taken == []
