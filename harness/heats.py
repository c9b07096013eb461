"""Fresh processes of every submission, heat after heat: started side by side, timed one heat at a time.

A process keeps the luck of where its memory landed for as long as it lives; only fresh ones average that out.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType

from harness import wire
from harness.cases import Case
from harness.devices.monitor import Missing, Monitor
from harness.errors import DeviceError
from harness.gates import Round
from harness.processes.court import Court
from harness.processes.pair import Pair, Setting, wall_ns
from harness.record import Layer, Outcome
from harness.statistics import LOOKS
from harness.timing.sampling import Pace


class Budget:
    """About how long the timing may take, counted from here; `max_seconds` None for no bound."""

    def __init__(self, max_seconds: float | None) -> None:
        self._most_ns = None if max_seconds is None else max_seconds * 1e9
        self._begin_ns = wall_ns()

    def until_ns(self, heats: Heats) -> int | None:
        """On the referee's clock, the end of the current heat's share: the least number of heats share it evenly."""
        if self._most_ns is None:
            return None
        return self._begin_ns + int(self._most_ns * (heats.number + 1) / heats.least)

    def further(self, heats: Heats) -> int | None:
        """About how many more heats like those so far it has time for, one at the least; None for no bound."""
        if self._most_ns is None:
            return None
        taken_ns = wall_ns() - self._begin_ns
        return max(1, math.ceil((self._most_ns - taken_ns) * (heats.number + 1) / max(taken_ns, 1)))

    @property
    def is_over(self) -> bool:
        """Whether no further heat should begin."""
        return self._most_ns is not None and wall_ns() - self._begin_ns > self._most_ns


class Heats:
    """The heats of one run. Use it as a context: every process ends with it.

    Each setting's submission keeps its seat before the court, from heat to heat.
    """

    def __init__(self, court: Court, settings: Sequence[Setting], least: int, most: int) -> None:
        self.court = court
        self.settings = settings
        self.least, self.most = least, most
        self.number = -1
        """Of the current heat, from 0."""
        self.past: list[Pair] = []
        """Pairs of heats that are over: what they printed and noted."""
        self._waiting: list[dict[int, Pair]] = []
        self.current: dict[int, Pair] = {}
        """The pairs of the current heat, by the index of their setting."""
        self._retired: set[int] = set()
        self._started = 0

    def __enter__(self) -> Heats:
        try:
            for _ in range(self.least):
                self._start()
            self._prepare(self.least)
            self._start_ahead()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end([pair for each in (*self._waiting, self.current) for pair in each.values()])
        self._waiting, self.current = [], {}

    def _start_ahead(self) -> None:
        """Start interpreters of later heats while another is timed: as many as idle cores can do."""
        cores = 0 if self.court.kind == "cpu" or self.least == 1 else (os.cpu_count() or 1) // 2
        started = sum(not pair.is_prepared for pairs in self._waiting for pair in pairs.values())
        with contextlib.suppress(DeviceError):  # it will be told when one is needed
            for _ in range(min(self.most - self._started, (cores - started) // len(self.settings))):
                self._start()

    def _start(self) -> None:
        """Start a heat's interpreters; nothing is loaded and no device is touched yet."""
        pairs: dict[int, Pair] = {}
        self._waiting.append(pairs)
        try:
            for seat, setting in enumerate(self.settings):
                if seat not in self._retired:
                    pairs[seat] = Pair(self.court, setting, seat).__enter__()
        except DeviceError:
            self._waiting.pop()
            _end(pairs.values())
            raise
        self._started += 1

    def _prepare(self, heats: int) -> None:
        """Make the device contexts of the next heats, side by side."""
        pairs = [pair for each in self._waiting[:heats] for pair in each.values()]
        for pair in pairs:
            pair.begin_prepare()
        for pair in pairs:
            pair.prepare()

    def next(self, further: int | None = None) -> dict[int, Pair]:
        """End the current heat and give the next one's pairs, prepared; load them before use.

        `further` heats will be needed at the most, as far as one knows: no more are made ready.
        """
        ahead = self._ahead if further is None else min(self._ahead, further)
        _end(self.current.values())
        self.past += self.current.values()
        self.current = {}
        while not self._waiting or (self.most - self._started > 0 and len(self._waiting) < ahead):
            self._start()
        if not all(pair.is_prepared for pair in self._waiting[0].values()):
            self._prepare(ahead)
        self.current = self._waiting.pop(0)
        self.number += 1
        self._start_ahead()
        return self.current

    @property
    def _ahead(self) -> int:
        """Heats whose device contexts are made together, after the first ones: all up to the next look.

        That takes hardly longer than one. Where the processor itself is what is timed, nothing is made ready.
        """
        done = self.number + 1
        if self.court.kind == "cpu" or done < self.least:
            return 1
        return next((look for look in LOOKS if look > done), done + 1) - done

    def load(self) -> Iterator[tuple[int, wire.Loaded | Outcome]]:
        """Import one submission after another in the current heat's processes: what it defines, or how it failed."""
        for index, pair in self.current.items():
            if index not in self._retired:
                yield index, pair.load()

    def retire(self, index: int) -> None:
        """End all processes of one submission, and start no more: it takes nothing from the others from here on."""
        self._retired.add(index)
        _end([pairs[index] for pairs in (self.current, *self._waiting) if index in pairs])
        for pairs in self._waiting:
            pairs.pop(index, None)

    def round(self, seed: int, pace: Pace, watch: Monitor | Missing) -> Round:
        """What all cases of the current heat have in common."""
        return Round(self.number, seed, pace, None if isinstance(watch, Missing) else watch, self.pids)

    def shuffled(self, cases: Sequence[Case], seed: int) -> list[Case]:
        """The cases in the current heat's own order."""
        return random.Random(f"{seed} {self.number}").sample(cases, len(cases))

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of this run that hold the device."""
        live = [pair for pairs in (*self._waiting, self.current) for pair in pairs.values() if pair.is_prepared]
        return (self.court.pid, *(pid for pair in live for pid in pair.pids))

    @property
    def isolation(self) -> tuple[Layer, ...]:
        """What the latest process of a run of one submission was kept apart by."""
        return next(pair.isolation for pair in (*self.current.values(), *reversed(self.past)))

    def refused(self, seat: int = 0) -> tuple[str, ...]:
        """System calls that the submission of one seat asked for and was refused, each once."""
        pairs = [pair for pair in (*self.past, *self.current.values()) if pair.seat == seat]
        return tuple(dict.fromkeys(name for pair in pairs for name in pair.refused))

    @property
    def output(self) -> str:
        """What the submissions printed, the end of it."""
        printed = [pair.output for pair in (*self.past, *self.current.values()) if pair.output.strip()]
        return "\n".join(list(dict.fromkeys(printed))[-3:])

    @property
    def notes(self) -> tuple[str, ...]:
        """What this machine could not give, each once."""
        return tuple(dict.fromkeys(note for pair in (*self.past, *self.current.values()) for note in pair.notes))


def _end(pairs: Collection[Pair]) -> None:
    """End these together, whatever one of them does; a second time, after an interrupt, ends what is left."""
    with contextlib.ExitStack() as stack:
        for pair in pairs:
            stack.push(pair.__exit__)
        for pair in pairs:
            pair.signal_end()
