"""What the contestant puts on the GPU's queue around its calls: gate, flush, touch, events, seal, done.

All of it runs in the contestant's process, which may tamper with it; nothing here decides anything. The
time that counts is read by the referee (timing.gate), the outputs that count lie in the oracle's buffers.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

from harness.processes.reveal import LINES, WORDS, Reveals
from harness.timing.allowance import Allowance
from harness.timing.flush import Flush
from harness.timing.gate import DONE, EXPIRED, PAGE_BYTES, RELEASE
from harness.timing.seal import copy
from harness.timing.slots import pads_before, pads_behind


@triton.jit(do_not_specialize=["generation", "polls"])
def _gate_kernel(words, generation, polls, release: tl.constexpr, expired: tl.constexpr):
    seen = tl.load(words + release, volatile=True)
    tries = 0
    while (seen < generation) & (tries < polls):
        seen = tl.load(words + release, volatile=True)
        tries += 1
    if seen < generation:
        tl.atomic_xchg(words + expired, generation, sem="release", scope="sys")


@triton.jit(do_not_specialize=["generation"])
def _done_kernel(words, generation, done: tl.constexpr):
    tl.atomic_xchg(words + done, generation, sem="release", scope="sys")


@triton.jit
def _empty_kernel(words):
    """Start and end."""


@triton.jit(do_not_specialize=["index", "count"])
def _reveal_kernel(words, offsets, lines, index, count, size: tl.constexpr, width: tl.constexpr):
    """Put a set's lines, int32 [sets, count, width], in their places: offsets int64 [sets, count], in words."""
    line = tl.arange(0, size)
    word = tl.arange(0, width)
    there = line < count
    own = index * count + line
    places = tl.load(offsets + own, mask=there, other=0)
    content = tl.load(lines + own[:, None] * width + word[None, :], mask=there[:, None], other=0)
    tl.store(words + places[:, None] + word[None, :], content, mask=there[:, None])


class Queue:
    """One contestant's GPU queue with the harness's own commands. Sizes in bytes, times in ns."""

    def __init__(self, page_descriptor: int, flush: Flush, calls: int = 32) -> None:
        self._mapping = mmap.mmap(page_descriptor, PAGE_BYTES)
        self._words = torch.frombuffer(self._mapping, dtype=torch.int32)
        # Flag 2 maps the page into the device's address space; Triton then takes the tensor as it is.
        code = torch.cuda.cudart().cudaHostRegister(self._words.data_ptr(), PAGE_BYTES, 2)
        if int(code) != 0:
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")  # the next launch is told of the error, and it is forgotten
            raise RuntimeError(f"the driver would not map the gate's page (error {int(code)})")
        self._flush = flush
        self._allowance = Allowance()
        self._events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)
        ]
        self._outputs: list[object] = []
        """Of the calls enqueued last: held, so that each call's output gets a place of its own. A batch has the mean of
        their luck."""

    def rehearse(self) -> None:
        """Run each of the harness's kernels once: loading one behind a closed gate would wait for ever."""
        opened = self._words[RELEASE].item()
        self._gate(opened, 1)
        self._gate(opened + 1, 1)  # takes the branch that gives up
        self._allowance.begin()
        self._flush()
        self._allowance.wait(1.0)
        self.start_nothing()
        _done_kernel[(1,)](self._words, int(self._words[DONE].item()), DONE, num_warps=1)
        arena = torch.zeros(2 * LINES * WORDS, dtype=torch.int32, device="cuda")
        offsets = torch.arange(LINES, device="cuda").view(1, LINES) * WORDS
        self.reveal(Reveals(offsets, arena[LINES * WORDS :].view(1, LINES, WORDS), arena), 0)
        copy(arena[LINES * WORDS :], arena[: LINES * WORDS])
        for start, end in self._events:
            start.record()
            end.record()
        torch.cuda.synchronize()
        self._words[EXPIRED] = 0

    def _gate(self, generation: int, polls: int) -> None:
        _gate_kernel[(1,)](self._words, generation, polls, RELEASE, EXPIRED, num_warps=1)

    def start_nothing(self, index: int = 0) -> None:
        """Enqueue an empty kernel, in the place of a call."""
        _empty_kernel[(1,)](self._words, num_warps=4)

    def _pad(self, count: int) -> None:
        for _ in range(count):
            self.start_nothing()

    def reveal(self, reveals: Reveals, index: int) -> None:
        """Enqueue putting the late lines of input set `index` in their places."""
        _reveal_kernel[(1,)](
            reveals.words, reveals.offsets, reveals.lines, index, reveals.lines.shape[1], LINES, WORDS, num_warps=4
        )

    def enqueue(
        self,
        generation: int | None,
        order: Sequence[int],
        call: Callable[[int], object],
        seal: Callable[[int, object], None],
        touch: torch.Tensor | None,
        reveals: Reveals | None,
        events: bool,
        polls: int,
        flush_ns: float,
        shift: int,
    ) -> bool:
        """Enqueue a batch behind the gate of `generation` (None: no gate); True if the gate gave up meanwhile.

        Each call: flush, touch, wait, reveal, `call(index)`, `seal(index, output)`; with `events`, one before and one
        behind the call. An event holds up what comes after it until all before it has ended, and for how long differs
        from batch to batch by up to 1 us: batches whose time counts have none. The touch brings the empty batch's
        stand-in output into the cache, where a real output lies when it is sealed, in both kinds of batch; so the
        seal costs the same in both. The seal is on the clock: what a submission does there (a tensor of a class of its
        own can compute while it is copied) is part of the call. The wait ends `flush_ns` after the flush began, however
        long flush and touch took. The reveal puts the late lines of this call's inputs in their places.

        Empty kernels ahead of the gate (`shift`), within it and behind it bring every kernel of a call to each slot of
        the queue (timing.slots) equally often. Those within the gate run in a flush's allowance.
        """
        torch.cuda.synchronize()
        self._outputs.clear()
        if generation is not None:
            self._pad(shift)
            self._gate(generation, polls)
        for place, ((start, end), index) in enumerate(zip(self._events, order, strict=False)):
            self._allowance.begin()
            self._pad(pads_before(place))
            self._flush()
            if touch is not None:
                self._flush.touch(touch)
            self._allowance.wait(flush_ns)
            if reveals is not None:
                self.reveal(reveals, index)
            if events:
                start.record()
            output = call(index)
            if events:
                end.record()
            seal(index, output)
            self._outputs.append(output)
        if generation is None:
            return False
        _done_kernel[(1,)](self._words, generation, DONE, num_warps=1)
        self._pad(pads_behind(len(order), shift))
        return bool(self._words[EXPIRED].item() == generation)

    def close(self) -> None:
        """Let go of the page: nothing can be enqueued any more."""
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(self._words.data_ptr())

    def let_go(self) -> None:
        """Hold no output any more, also where a call raised."""
        self._outputs.clear()

    def claims_ns(self, calls: int) -> list[float]:
        """Wait for the device; the events' reading of each of the first `calls` calls of the last batch."""
        torch.cuda.synchronize()
        self._outputs.clear()
        return [start.elapsed_time(end) * 1e6 for start, end in self._events[:calls]]
