"""Inputs that come late within a batch too: a few lines of each call's inputs are wrong until right before that call.

The oracle inverts randomly drawn lines of what it deals, and puts the right ones aside, in the same arena. The
contestant's queue puts them in their places after the call's flush, right before the call, in empty batches alike.
Whoever computes all of a batch ahead of its turn computes with wrong lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.processes import sharing

WORDS = 16
"""int32 words in a line of 64 bytes."""
LINE_BYTES = 4 * WORDS
LINES = 64
"""Lines per call, at most: 4 KiB among inputs of any size."""
SHARE = 8
"""At most one line in this many is inverted, and at least one."""


@dataclass(frozen=True)
class Spans:
    """Where the input sets' own lines lie in the arena: the same lines in every set, at other places."""

    starts: torch.Tensor
    """Byte offset of each tensor with a line or more, int64 [sets, tensors]."""
    ends: torch.Tensor
    """Number of a set's lines up to and with that tensor, int64 [tensors]."""
    lines: int
    """Of one set, in all its tensors."""

    @property
    def count(self) -> int:
        """Lines that come late in each call."""
        return max(1, min(LINES, self.lines // SHARE)) if self.lines else 0

    def draw(self, sets: torch.Tensor, source: torch.Generator) -> torch.Tensor:
        """Word offsets in the arena of randomly drawn lines, int64 [sets, count]; a line may be drawn twice.

        `sets`, int64 [sets], and `source` are on the spans' device.
        """
        lines = torch.randint(self.lines, (sets.numel(), self.count), generator=source, device=self.ends.device)
        tensors = torch.searchsorted(self.ends, lines, right=True)
        before = torch.nn.functional.pad(self.ends, (1, 0))[tensors]
        return (self.starts[sets].gather(1, tensors) + (lines - before) * LINE_BYTES) // 4


def spans_of(plans: Sequence[Any], shared: Sequence[dict[str, Any]], device: str = "cpu") -> Spans:
    """The lines of each set's plan (as sharing.describe made it), without the tensors that all calls share."""
    known = {place["offset"] for place in shared if place["bytes"]}
    own = [[each for each in _places(plan) if each["bytes"] >= LINE_BYTES] for plan in plans]
    kept = [[each for each in places if each["offset"] not in known] for places in own]
    counts = [each["bytes"] // LINE_BYTES for each in kept[0]]
    starts = torch.tensor([[each["offset"] for each in places] for places in kept], dtype=torch.int64, device=device)
    return Spans(starts, torch.tensor(counts, dtype=torch.int64, device=device).cumsum(0), sum(counts))


def _places(plan: Any) -> list[dict[str, Any]]:
    ((kind, content),) = plan.items()
    if kind == "tensor":
        return [content]
    if kind in ("tuple", "list"):
        return [place for item in content for place in _places(item)]
    if kind == "dict":
        return [place for _, item in content for place in _places(item)]
    return []


def room(spans: Spans, planner: sharing.Planner) -> dict[str, Any] | None:
    """A place for all sets' late lines, as JSON; None for inputs without a whole line."""
    if not spans.count:
        return None
    sets = spans.starts.shape[0]
    return {
        "offsets": planner.place(torch.empty(sets, spans.count, dtype=torch.int64, device="meta")),
        "lines": planner.place(torch.empty(sets, spans.count, WORDS, dtype=torch.int32, device="meta")),
    }


@dataclass
class Reveals:
    """The late lines of all sets, in the arena."""

    offsets: torch.Tensor
    """int64 [sets, count], in words of the arena."""
    lines: torch.Tensor
    """int32 [sets, count, 16]: what belongs there."""
    words: torch.Tensor
    """int32, all of the arena."""

    def __call__(self, index: int) -> None:
        """Put one set's lines in their places, by torch: where there is no queue to do it in a kernel."""
        self.words[_cells(self.offsets[index])] = self.lines[index].clone()  # both lie in the arena

    def keep(self, spans: Spans, sets: torch.Tensor, source: torch.Generator) -> torch.Tensor:
        """Draw lines of these sets' inputs and note what is there: until they are hidden, a call changes nothing.

        `sets`: int64 [sets], on the arena's device. Gives the words' indices, int64 [sets, count, 16].
        """
        offsets = spans.draw(sets, source)
        cells = _cells(offsets)
        self.offsets[sets] = offsets
        self.lines[sets] = self.words[cells]
        return cells

    def hide(self, spans: Spans, sets: torch.Tensor, source: torch.Generator) -> None:
        """Invert freshly drawn lines of these sets' inputs, and keep the right ones."""
        cells = self.keep(spans, sets, source)
        self.words[cells] = ~self.words[cells]


def open_reveals(plan: dict[str, Any] | None, arena: torch.Tensor) -> Reveals | None:
    """What `room` planned."""
    if plan is None:
        return None
    words = arena[: arena.numel() // 4 * 4].view(torch.int32)
    offsets, lines = (sharing.rebuild({"tensor": plan[name]}, arena) for name in ("offsets", "lines"))
    return Reveals(offsets, lines, words)


def _cells(offsets: torch.Tensor) -> torch.Tensor:
    return offsets[..., None] + torch.arange(WORDS, device=offsets.device)
