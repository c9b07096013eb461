"""The contestant: the process that holds the submission, and the only one that ever runs it.

It is told what to do line by line and knows no seed, no expected value, no tolerance and no clock that
counts. Nothing it says is believed: outputs are judged where they lie, in the oracle's buffers, and the
time that counts is the referee's.

    python -m harness.processes.contestant DEVICE ORDERS_FD REPORTS_FD PAGE_FD MEMORY_FD
"""

from __future__ import annotations

import errno
import gc
import importlib.util
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import torch

from harness import wire
from harness.processes import sharing
from harness.processes.reveal import Reveals, open_reveals

MAX_MESSAGE = 4000
COMPILED = "compiled"
"""In the working folder: kernels of the harness that are not among those it keeps."""
Stage = Literal["prepare", "load", "map", "call", "rehearse", "batch"]


@dataclass
class Mapping:
    """One case's buffers, attached."""

    arena: sharing.Arena
    inputs: list[sharing.Tree]
    seals: list[sharing.Tree]
    stand_in: sharing.Tree
    """Zeros in the shape of an output, sealed in empty batches."""
    zeros: torch.Tensor
    """The bytes that the stand-in lies in, int32."""
    reveals: Reveals | None
    """The late lines of every input set."""
    converts: bool = False
    """Whether an output may have other strides, or a smaller dtype, than its buffer."""


@dataclass
class Contestant:
    """State between two orders."""

    device: str
    page_fd: int
    memory_fd: int
    reports: BinaryIO
    orders: BinaryIO
    kernel: Callable[[Any], Any] | None = None
    mapping: Mapping | None = None
    flush: Any = None
    queue: Any = None
    copy: Callable[[torch.Tensor, torch.Tensor], None] = sharing.torch_copy
    stage: Stage = "prepare"

    def say(self, message: Any) -> None:
        """Send one report."""
        self.reports.write(wire.encode(message))
        self.reports.flush()

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    # --- one method an order ---------------------------------------------------------------------------

    def prepare(self, order: wire.Prepare) -> None:
        """Device context and the harness's own kernels. A device that cannot share a page has no gate."""
        missing = ""
        if self.device != "cpu":
            try:
                self._rehearse_queue()
            except RuntimeError as error:
                self.queue, missing = None, str(error)
        _compile_into(os.path.abspath(COMPILED))
        gc.collect()
        gc.freeze()  # what is there now need not be looked at between cases
        self.say(wire.Prepared(gated=self.queue is not None, missing=missing))

    def _rehearse_queue(self) -> None:
        from harness.devices import DEFAULT_CACHE_BYTES, describe_device
        from harness.timing.flush import Flush
        from harness.timing.rehearsal import rehearsed_queue
        from harness.timing.seal import copy

        self.flush = Flush(describe_device(self.device)["cache_bytes"] or DEFAULT_CACHE_BYTES)
        try:
            self.queue = rehearsed_queue(self.page_fd, self.flush)
        except OSError:  # one of them is not among those kept, to which nothing can be added from here
            _compile_into(os.path.abspath(COMPILED))
            self.queue = rehearsed_queue(self.page_fd, self.flush)
        self.copy = copy

    def probe(self, order: wire.Probe) -> None:
        """Whether memory of the oracle's can be opened here."""
        sharing.attach(order.handle, sharing.BLOCK_BYTES, self.device, self.memory_fd).close()
        self.say(wire.Probed())

    def load(self, order: wire.Load) -> None:
        """Import the submission from the working folder. From here on compiled kernels are its own."""
        _compile_into(os.path.join(os.environ["XDG_CACHE_HOME"], "triton"))
        spec = importlib.util.spec_from_file_location("submission", os.path.abspath(order.filename))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["submission"] = module
        spec.loader.exec_module(module)
        kernel = getattr(module, "custom_kernel", None)
        if not callable(kernel):
            state = "defines no custom_kernel" if kernel is None else "custom_kernel is not callable"
            raise LookupError(f"{state}; a submission defines `def custom_kernel(data): ...`")
        try:
            inspect.signature(kernel).bind(None)
        except TypeError as error:
            raise LookupError(f"custom_kernel must take exactly one argument, the data: {error}") from error
        except ValueError:
            pass  # a builtin without a signature: the first call will tell
        self.kernel = kernel
        interprets = os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules
        self.say(wire.Loaded(interprets=interprets))

    def map(self, order: wire.Map) -> None:
        """Attach a case's buffers."""
        arena = sharing.attach(order.handle, order.size_bytes, self.device, self.memory_fd)
        inputs = [sharing.rebuild(plan, arena.bytes) for plan in order.layout["inputs"]]
        seals = [sharing.rebuild(plan, arena.bytes) for plan in order.layout["outputs"]]
        stand_in, zeros = sharing.zeros_like(seals[0])
        reveals = open_reveals(order.layout["reveals"], arena.bytes)
        self.mapping = Mapping(arena, inputs, seals, stand_in, zeros, reveals, order.layout["converts"])
        self.say(wire.Mapped())

    def unmap(self, order: wire.Unmap) -> None:
        """Let go of the buffers."""
        self.synchronize()
        if self.queue is not None:
            self.queue.let_go()
        mapping, self.mapping = self.mapping, None
        if mapping is not None:
            arena = mapping.arena
            del mapping
            gc.enable()
            gc.collect()
            arena.close()
        self.say(wire.Unmapped())

    def call_once(self, order: wire.Call) -> None:
        """One call for the judge; compiles what it needs."""
        claims = self._step([order.index], empty=False)
        self.say(wire.Called(claims[0]))

    def inventory(self, order: wire.Inventory) -> None:
        """What one more call launches, by torch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        on_cpu = self.device == "cpu"
        with profile(activities=[ProfilerActivity.CPU if on_cpu else ProfilerActivity.CUDA]) as trace:
            self._call(order.index)
            self.synchronize()
        launches: dict[str, int] = {}
        for event in sorted(trace.events() or (), key=lambda event: event.time_range.start):
            is_wanted = event.cpu_parent is None if on_cpu else event.device_type != torch.autograd.DeviceType.CPU
            if is_wanted:
                name = str(event.name)[: wire.MAX_NAME]
                launches[name] = launches.get(name, 0) + 1
        found = list(launches.items())[: wire.MOST_KERNELS]
        self.say(wire.Inventoried(tuple(name for name, _ in found), tuple(count for _, count in found)))

    def rehearse(self, order: wire.Rehearse) -> None:
        """The batch to come, gate open."""
        gc.collect()
        gc.disable()
        if self.queue is None:
            claims = self._step(order.order, empty=order.empty)
        else:
            self._enqueue(None, order.order, empty=True, events=True)
            if not order.empty:
                self._enqueue(None, order.order, empty=False, events=True)
            claims = self.queue.claims_ns(len(order.order))
        self.say(wire.Rehearsed(tuple(claims)))

    def arm(self, order: wire.Arm) -> None:
        """One batch; ends with the contestant's own claims."""
        if order.by_message:
            self.synchronize()
            self.say(wire.Armed(order.generation, expired=False))
            self.expect(wire.Release)
            claims = self._step(order.order, order.empty)
            self.say(wire.Done(order.generation))
        else:
            expired = self._enqueue(
                order.generation, order.order, order.empty, order.events, order.polls, order.flush_ns, order.shift
            )
            self.say(wire.Armed(order.generation, expired))
            claims = self.queue.claims_ns(len(order.order) if order.events else 0)
        self.say(wire.Claims(order.generation, tuple(claims)))

    # --- calls -----------------------------------------------------------------------------------------

    def _enqueue(
        self,
        generation: int | None,
        order: Any,
        empty: bool,
        events: bool,
        polls: int = 0,
        flush_ns: float = 0.0,
        shift: int = 0,
    ) -> bool:
        mapping = self.mapping
        touch, reveals = (mapping.zeros, mapping.reveals) if mapping is not None else (None, None)
        call, seal = (self.queue.start_nothing, self._seal_stand_in) if empty else (self._call, self._seal)
        expired: bool = self.queue.enqueue(
            generation, order, call, seal, touch, reveals, events, polls, flush_ns, shift
        )
        return expired

    def _step(self, order: Any, empty: bool) -> list[float]:
        """Call after call, the device idle before and after each; wall times in ns."""
        claims = []
        for index in order:
            if self.flush is not None:
                self.flush()
            reveals = self.mapping.reveals if self.mapping is not None else None
            if reveals is not None:
                reveals(index) if self.queue is None else self.queue.reveal(reveals, index)
            self.synchronize()
            start = time.perf_counter_ns()
            output = None if empty else self._call(index)
            self.synchronize()
            claims.append(float(time.perf_counter_ns() - start))
            (self._seal_stand_in if empty else self._seal)(index, output)
        self.synchronize()
        return claims

    def _call(self, index: int) -> Any:
        assert self.kernel is not None and self.mapping is not None
        return self.kernel(self.mapping.inputs[index])

    def _seal(self, index: int, output: Any) -> None:
        assert self.mapping is not None
        sharing.seal_into(output, self.mapping.seals[index], copy=self.copy, converts=self.mapping.converts)

    def _seal_stand_in(self, index: int, _: Any) -> None:
        if self.mapping is not None:
            sharing.seal_into(self.mapping.stand_in, self.mapping.seals[index], copy=self.copy)

    # --- the loop --------------------------------------------------------------------------------------

    def expect(self, *kinds: type) -> Any:
        """The next order, which must be one of `kinds`; ends the process when the referee is gone."""
        line = self.orders.readline(wire.MAX_LINE_BYTES + 1)
        if not line:
            os._exit(0)
        return wire.decode(line.rstrip(b"\n"), kinds)

    def obey(self) -> None:
        """Orders until Quit. The one place that catches everything: what a submission raises is a report."""
        steps: dict[type, tuple[Stage, Callable[[Any], None]]] = {
            wire.Prepare: ("prepare", self.prepare),
            wire.Probe: ("prepare", self.probe),
            wire.Load: ("load", self.load),
            wire.Map: ("map", self.map),
            wire.Unmap: ("map", self.unmap),
            wire.Call: ("call", self.call_once),
            wire.Inventory: ("call", self.inventory),
            wire.Rehearse: ("rehearse", self.rehearse),
            wire.Arm: ("batch", self.arm),
        }
        self.say(wire.Started())
        while True:
            order = self.expect(*steps, wire.Quit)
            if isinstance(order, wire.Quit):
                return
            self.stage, step = steps[type(order)]
            try:
                step(order)
            except BaseException as error:  # noqa: BLE001
                self.say(_failure(error, self.stage))


def _compile_into(folder: str) -> None:
    """Let Triton look for compiled kernels in this folder from here on, and keep them there."""
    os.environ["TRITON_CACHE_DIR"] = folder


# --- what went wrong, in words -----------------------------------------------------------------------------

_COMPILERS = ("triton.compiler.errors", "triton.runtime.errors", "torch.utils.cpp_extension")


def _failure(error: BaseException, stage: Stage) -> wire.Failed:
    if isinstance(error, sharing.BadOutput):
        return wire.Failed("bad-output", stage, str(error)[:MAX_MESSAGE])
    text = _first_line(error)
    frames = _own_frames(error)
    return wire.Failed(_verdict(error, text, stage), stage, "\n".join([text, *frames])[:MAX_MESSAGE])


def _first_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    if isinstance(error, LookupError) and type(error) is LookupError:
        return str(error)
    return f"{type(error).__name__}: {error}{_hint(error)}".strip()


def _hint(error: BaseException) -> str:
    """What to do about it, where a submission asked for what the sandbox does not have."""
    installs = "pip" in str(getattr(error, "cmd", ""))
    reaches = type(error).__name__ in ("gaierror", "URLError") or getattr(error, "errno", None) == errno.ENETUNREACH
    return "; there is no network here: install what it needs beside Podium" if installs or reaches else ""


def _own_frames(error: BaseException) -> list[str]:
    """The frames of the submission's own files, outermost first; none of the harness's."""
    here = os.getcwd() + os.sep
    lines = []
    if isinstance(error, SyntaxError) and (error.filename or "").startswith(here):
        lines.append(f"  {os.path.basename(error.filename or '')}:{error.lineno}")
        lines.append(f"    {(error.text or '').strip()}")
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(here):
            lines.append(f"  {frame.filename.removeprefix(here)}:{frame.lineno}, in {frame.name}")
            lines.append(f"    {frame.line or ''}")
    return lines[-20:]


def _verdict(error: BaseException, text: str, stage: Stage) -> Any:
    memory = ("can't allocate memory", "out of memory", "not enough memory")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in text for words in memory):
        return "out-of-memory"
    if stage == "load":
        return "load-failed"
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    if "Interpreter" not in name and (name.startswith(_COMPILERS) or "Error building extension" in text):
        return "compile-failed"
    return "crashed"


def main(arguments: list[str]) -> None:
    """Serve one referee until it says Quit or is gone."""
    device, orders_fd, reports_fd, page_fd, memory_fd = arguments
    sys.path.insert(0, os.getcwd())
    if device != "cpu":
        import harness.timing.enqueue  # noqa: F401  Triton takes a second to import: while nobody waits for it yet
    with os.fdopen(int(orders_fd), "rb") as orders, os.fdopen(int(reports_fd), "wb") as reports:
        Contestant(device, int(page_fd), int(memory_fd), reports, orders).obey()
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of a submission have no say in when it ends


if __name__ == "__main__":
    main(sys.argv[1:])
