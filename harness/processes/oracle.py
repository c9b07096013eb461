"""The oracle: the process that knows the answers. It makes inputs, computes what is expected, and judges.

It runs the problem's own code and never any of the submission's. Expected outputs and the originals of the
inputs stay in its private memory; only the arenas of the case at hand are shared, one with each contestant.

    python -m harness.processes.oracle ORDERS_FD REPORTS_FD MEMORY_FD...

with a MEMORY_FD for every seat.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Literal

import torch

from harness import wire
from harness.devices import DEFAULT_CACHE_BYTES, describe_device
from harness.judge import Finding, judge, poison, same_bits
from harness.processes import sharing
from harness.processes.privacy import hide
from harness.processes.reference import Reference, copied, open_reference
from harness.processes.reveal import Reveals, Spans, open_reveals, room, spans_of
from harness.processes.weaknesses import weaknesses

MAX_SET_BYTES = 4 << 30
"""Room for per-call inputs and outputs of all seats' batches, at most, and at most a tenth of the device's memory."""
PLACES_BYTES = 256 << 20
"""Shared inputs lie in the arenas more than once, with the same contents, as long as that takes no more than this.
Where a tensor lies in the device's memory is luck (H200: 0.7 us of a 5 us kernel, in one place of five), so the calls
of a batch read it from different places."""
KEPT_SHARE = 0.1
"""Data of earlier cases are kept in so much of the device's memory, for the next process that is timed on them."""
JUDGED_ROWS = 64
"""Rows of dimension 0 judged per output where the reference can be asked for rows."""


class NoDevice(Exception):
    """The asked device is not there."""


@dataclass(frozen=True)
class Layout:
    """What lies where in an arena: the same in every seat's."""

    plan: dict[str, Any]
    """As JSON: inputs and outputs by set, late lines."""
    spans: Spans
    """Where the sets' own lines lie."""
    size_bytes: int

    @property
    def sets(self) -> int:
        """Input sets, each with a place for its output."""
        return len(self.plan["inputs"])


@dataclass
class Seat:
    """One contestant's arena, and what is known of who sits there."""

    arena: sharing.Arena
    inputs: list[Any]
    outputs: list[Any]
    reveals: Reveals | None
    """Where the lines that come late are kept."""
    nearest: str | None = None
    """The precision found nearest so far: asked first."""


@dataclass(frozen=True)
class Data:
    """A case's data as generated, and the form of its output: tensors without contents."""

    original: Any
    output: Any

    @property
    def size_bytes(self) -> int:
        """What keeping it takes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in sharing.tensors(self.original))


@dataclass
class Bench:
    """The case at hand."""

    spec: dict[str, Any]
    original: Any
    """The data as generated: its shared inputs are what `refresh` starts from."""
    layout: Layout
    seats: dict[int, Seat]
    """By number, those that were asked for."""
    fresh: dict[int, Any] = field(default_factory=dict)
    """Private contents of the sets last renewed, by index: what the judge computes from."""
    renewed: torch.Tensor | None = None
    """Their indices, int64 on the device."""


class Oracle:
    """State between two orders."""

    def __init__(self, orders: BinaryIO, reports: BinaryIO, memory_fds: Sequence[int]) -> None:
        self._orders, self._reports, self._memory_fds = orders, reports, memory_fds
        self._device = "cpu"
        self._room_bytes = MAX_SET_BYTES
        self._secret = _secret_generator("cpu")
        self._canaries: Callable[[], tuple[float, ...]] = tuple
        self._reference: Reference | None = None
        self._bench: Bench | None = None
        self._probe: sharing.Arena | None = None
        self._kept: dict[str, Data] = {}
        self._keep_bytes = 0.0
        self._cache_bytes = DEFAULT_CACHE_BYTES

    def obey(self) -> None:
        """Orders until Quit or until the referee is gone."""
        steps: dict[type, Callable[[Any], Any]] = {
            wire.Open: self.open,
            wire.Stage: self.stage,
            wire.Renew: self.renew,
            wire.Deal: self.deal,
            wire.Judge: self.judge,
            wire.Roof: self.roof,
            wire.Examine: self.examine,
            wire.Strike: self.strike,
        }
        while line := self._orders.readline(wire.MAX_LINE_BYTES + 1):
            order = wire.decode(line.rstrip(b"\n"), wire.ORACLE_ORDERS)
            if isinstance(order, wire.Quit):
                return
            try:
                with torch.no_grad():
                    report = self._obeyed(steps[type(order)], order)
            except Exception as error:  # noqa: BLE001  the problem's code may raise anything; the referee decides what it means
                report = _trouble(type(order).__name__.lower(), error)
            self._reports.write(wire.encode(report))
            self._reports.flush()

    def _obeyed(self, step: Callable[[Any], Any], order: Any) -> Any:
        """The step's report. Where there is too little memory for it, what is kept for later makes way."""
        try:
            return step(order)
        except Exception as error:
            if not (self._kept and _is_memory(error)):
                raise
        self._kept = {}
        self._release()
        return step(order)

    def _release(self) -> None:
        """Give back what torch holds of the device's memory without using it."""
        if self._device != "cpu":
            torch.cuda.empty_cache()

    @property
    def reference(self) -> Reference:
        """The opened problem."""
        assert self._reference is not None
        return self._reference

    @property
    def bench(self) -> Bench:
        """The staged case."""
        assert self._bench is not None
        return self._bench

    def _synchronize(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()

    # --- one method an order ---------------------------------------------------------------------------

    def open(self, order: wire.Open) -> wire.Opened:
        """Import the reference and look at the device."""
        self._device = order.device
        if order.device == "cpu":
            hide()  # a GPU's driver names threads of its own through /proc, and may not do without
        if order.device == "cuda":
            if not torch.cuda.is_available():
                raise NoDevice("torch sees no GPU")
            torch.cuda.init()
            torch.zeros(1, device="cuda")
        self._secret = _secret_generator(order.device)
        facts = describe_device(order.device)
        self._room_bytes = min(MAX_SET_BYTES, (facts["memory_bytes"] or MAX_SET_BYTES) // 10)
        self._keep_bytes = KEPT_SHARE * (facts["memory_bytes"] or 0)
        self._cache_bytes = facts["cache_bytes"] or DEFAULT_CACHE_BYTES
        if order.kernels:
            from harness.timing.filling import fill

            fill(order.kernels, self._cache_bytes)
        self._reference = open_reference(order.folder, order.problem, order.device)
        if order.device == "cuda":
            from harness.timing.canary import Canaries

            self._canaries = Canaries(self._cache_bytes)
            self._probe = sharing.allocate(sharing.BLOCK_BYTES, order.device, -1)
        return wire.Opened(facts, _software(), self._probe.handle if self._probe is not None else "")

    def stage(self, order: wire.Stage) -> wire.Staged:
        """Data, the form of the output, and for each seat an arena with as many input sets as fit."""
        self.strike(wire.Strike())
        data = self._data(order.spec)
        layout = self._layout(data, order)
        seats = self._seats(layout, order.seats)
        self._bench = Bench(dict(order.spec), data.original, layout, seats)
        handles = tuple(
            seats[number].arena.handle if number in seats else None for number in range(len(self._memory_fds))
        )
        return wire.Staged(layout.plan, handles, layout.size_bytes, layout.sets)

    def _data(self, spec: dict[str, Any]) -> Data:
        """Of this case, kept from an earlier time or made. A foreign problem's code may write to its data: made."""
        name = json.dumps(spec, sort_keys=True)
        if name in self._kept:
            return self._kept[name]
        original = self.reference.generate(spec)
        output = sharing.mapped(self.reference.output(original), _form)
        data = Data(original, output)
        taken = sum(each.size_bytes for each in (*self._kept.values(), data))
        if self.reference.limits is not None and taken <= self._keep_bytes:
            self._kept[name] = data
        return data

    def _layout(self, data: Data, order: wire.Stage) -> Layout:
        """Places for as many sets as fit when all seats have them, for shared inputs, and for late lines."""
        original, output = data.original, data.output
        shared = {id(tensor): tensor for tensor in self.reference.shared(original)}
        planner = sharing.Planner()

        def placed() -> dict[int, Any]:
            return {key: planner.place(tensor) for key, tensor in shared.items()}

        def planned(places: dict[int, Any]) -> tuple[Any, Any]:
            return sharing.describe(original, planner, places), sharing.describe(output, planner)

        places = [placed()]
        shared_bytes = planner.size_bytes
        plans = [planned(places[0])]
        set_bytes = planner.size_bytes - shared_bytes + sharing.ALIGNMENT_BYTES
        sets = max(1, min(order.max_sets, self._room_bytes // (set_bytes * len(order.seats))))
        copies = max(1, min(sets, PLACES_BYTES // max(shared_bytes * len(order.seats), 1)))
        for index in range(1, sets):
            if index < copies:
                places.append(placed())
            plans.append(planned(places[index % copies]))
        inputs, outputs = (list(column) for column in zip(*plans, strict=True))
        spans = spans_of(inputs, [place for each in places for place in each.values()], self._device)
        converts = self.reference.limits is None  # a foreign check looks at values
        plan = {"inputs": inputs, "outputs": outputs, "reveals": room(spans, planner), "converts": converts}
        return Layout(plan, spans, max(planner.size_bytes, 1))

    def _seats(self, layout: Layout, numbers: Sequence[int]) -> dict[int, Seat]:
        """An arena for each; none is left when one of them finds no room.

        Made in random order, at places of their own each time: a place in the device's memory may be a lucky one, and
        should not always be the same seat's, nor stay one run's for as long as it lasts.
        """
        seats = {}
        with contextlib.ExitStack() as stack:
            for number in random.sample(numbers, len(numbers)):
                with sharing.moved_on(self._device):
                    arena = sharing.allocate(layout.size_bytes, self._device, self._memory_fds[number])
                stack.callback(arena.close)
                seats[number] = self._seat(layout, arena)
            stack.pop_all()
        return seats

    def _seat(self, layout: Layout, arena: sharing.Arena) -> Seat:
        arena.bytes.zero_()  # a device hands out again what it got back: it may have been another's arena
        plan = layout.plan
        inputs, outputs = (
            [sharing.rebuild(each, arena.bytes) for each in plan[name]] for name in ("inputs", "outputs")
        )
        reveals = open_reveals(plan["reveals"], arena.bytes)
        if reveals is not None:
            reveals.keep(layout.spans, torch.arange(layout.sets, device=self._device), self._secret)
        return Seat(arena, inputs, outputs, reveals)

    def renew(self, order: wire.Renew) -> wire.Renewed:
        """Fresh private contents for the coming batch: large shared parts moved, the rest drawn anew."""
        bench, reference = self.bench, self.reference
        draw = random.Random(order.seed)
        bench.fresh = {}
        base = bench.original
        if not order.keep_first:
            base = reference.refresh(base, draw.randrange(1 << 20))
        for position, index in enumerate(order.indices):
            if order.keep_first and position == 0:
                bench.fresh[index] = base
            else:
                bench.fresh[index] = reference.renew(base, {**bench.spec, "seed": draw.randrange(1 << 62)})
        bench.renewed = torch.tensor(order.indices, dtype=torch.int64, device=self._device)
        self._synchronize()
        return wire.Renewed(self._canaries())

    def deal(self, order: wire.Deal) -> wire.Dealt:
        """What one contestant will find: fresh inputs but for the lines that come late, poisoned outputs.

        Enqueued without waiting in between: while a gate is closed, each wait costs turns of the device.
        """
        bench, seat = self.bench, self.bench.seats[order.seat]
        done: set[int] = set()
        for index, fresh in bench.fresh.items():
            contents = sharing.tensors(bench.original if order.blank else fresh)
            for place, content in zip(sharing.tensors(seat.inputs[index]), contents, strict=True):
                if place.data_ptr() not in done or place.numel() == 0:
                    place.copy_(content)
                    done.add(place.data_ptr())
            for tensor in sharing.tensors(seat.outputs[index]):
                poison(tensor)
        if seat.reveals is not None and bench.renewed is not None:
            seat.reveals.hide(bench.layout.spans, bench.renewed, self._secret)
        self._synchronize()
        return wire.Dealt()

    def judge(self, order: wire.Judge) -> wire.Judged:
        """Take a seat's sealed outputs out of reach, then judge them in random order while the budget lasts."""
        bench, seat = self.bench, self.bench.seats[order.seat]
        sealed = {index: copied(seat.outputs[index]) for index in bench.fresh}
        self._synchronize()
        begin_ns = time.perf_counter_ns()
        modified = not self._is_intact(seat)
        judging_ns = time.perf_counter_ns()
        deadline = judging_ns + order.budget_ns
        indices = random.sample(list(sealed), len(sealed))
        everything = order.budget_ns == 0
        worst: Finding | None = None
        published: tuple[bool, str] | None = None
        judged = 0
        for index in indices:
            finding, verdict = self._judge_one(seat, bench.fresh[index], sealed[index], order.published, everything)
            judged += 1
            published = verdict if published is None or published[0] else published
            if worst is None or (finding.ok, -finding.distance) < (worst.ok, -worst.distance):
                worst = finding
            if not finding.ok or (not everything and time.perf_counter_ns() > deadline):
                break
        assert worst is not None
        return wire.Judged(
            judged,
            worst.ok,
            worst.message,
            worst.precision,
            worst.row_error if worst.row_error is None else min(worst.row_error, 1e30),
            worst.row_limit,
            worst.mismatched,
            None if published is None else ("pass" if published[0] else "fail"),
            "" if published is None else published[1][:500],
            modified,
            judging_ns - begin_ns,
        )

    def _is_intact(self, seat: Seat) -> bool:
        """Whether all inputs have the bits that were dealt, late lines included.

        A foreign problem may hand out the output's own buffer among its inputs: there it is not asked.
        """
        if self.reference.limits is None:
            return True
        seen: set[int] = set()
        for index, fresh in self.bench.fresh.items():
            for place, content in zip(sharing.tensors(seat.inputs[index]), sharing.tensors(fresh), strict=True):
                if place.numel() and place.data_ptr() not in seen:
                    seen.add(place.data_ptr())
                    if not same_bits(place, content):
                        return False
        return True

    def _judge_one(
        self, seat: Seat, data: Any, output: Any, published: bool, everything: bool
    ) -> tuple[Finding, tuple[bool, str] | None]:
        reference = self.reference
        check = None
        if reference.limits is None or published:
            check = reference.published(data, output)
        if reference.limits is None:
            assert check is not None
            return Finding(check[0], "" if check[0] else check[1] or "the problem's own check says no"), check
        rows = None if everything else self._some_rows(output)
        chosen = output if rows is None else output[rows]
        known = seat.nearest
        order = sorted(reference.precisions, key=lambda name: name != known)
        finding: Finding | None = None
        for name in order:
            want = reference.expected(data, name, rows)
            found = judge(chosen, {name: want}, reference.limits)
            if rows is not None and found.message:
                found = replace(
                    found, message=f"among rows {rows[0]} to {rows[-1]}, {len(rows)} of them judged: {found.message}"
                )
            if finding is None or (found.ok, -found.error) > (finding.ok, -finding.error):
                finding = found
            if found.ok and name == known:
                break
        assert finding is not None
        if finding.ok:
            seat.nearest = finding.precision
        return finding, check

    def _some_rows(self, output: Any) -> torch.Tensor | None:
        """Rows to judge in a timed batch: random, drawn after it ended; None for all."""
        if not isinstance(output, torch.Tensor) or output.dim() < 2 or output.shape[0] <= JUDGED_ROWS:
            return None
        if not self.reference.has("expected"):
            return None
        rows = random.sample(range(output.shape[0]), JUDGED_ROWS)
        return torch.tensor(sorted(rows), dtype=torch.int64, device=output.device)

    def roof(self, order: wire.Roof) -> wire.RoofFound:
        """How fast the device is; nothing of it is kept."""
        if self._device == "cpu":
            return wire.RoofFound(None, {})
        from harness.timing.roof import memory_bytes_per_s, operations_per_s

        found = wire.RoofFound(memory_bytes_per_s(self._cache_bytes), operations_per_s(order.kinds))
        self._release()
        return found

    def examine(self, order: wire.Examine) -> wire.Examined:
        """What the problem's own generator and check let pass."""
        found = weaknesses(self.reference, order.specs)
        self._release()
        return wire.Examined(found)

    def strike(self, order: wire.Strike) -> wire.Struck:
        """Free the case."""
        if self._bench is not None:
            seats = self._bench.seats.values()
            self._bench = None
            for seat in seats:
                seat.arena.close()
        self._release()
        return wire.Struck()


def _secret_generator(device: str) -> torch.Generator:
    """Draws which lines come late, where they lie."""
    return torch.Generator(device).manual_seed(random.SystemRandom().getrandbits(63))


def _software() -> dict[str, Any]:
    try:
        from importlib.metadata import version

        triton = version("triton")
    except ImportError:
        triton = None
    runtime = f"HIP {torch.version.hip}" if torch.version.hip else None
    if torch.version.cuda:
        runtime = f"CUDA {torch.version.cuda}"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton,
        "runtime": runtime,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _form(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _trouble(stage: str, error: Exception) -> wire.Trouble:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    cause: Literal["code", "memory", "device"] = "device" if isinstance(error, NoDevice) else "code"
    if _is_memory(error):
        cause = "memory"
    return wire.Trouble(stage, f"{type(error).__name__}: {error}{place}"[:4000], cause)


def main(arguments: list[str]) -> None:
    """Serve one referee."""
    orders_fd, reports_fd, *memory_fds = map(int, arguments)
    with os.fdopen(orders_fd, "rb") as orders, os.fdopen(reports_fd, "wb") as reports:
        Oracle(orders, reports, memory_fds).obey()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
