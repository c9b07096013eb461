"""The contestant's GPU queue, as far as it shows without a GPU: what is on it; it compiles for both vendors."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from harness.processes.sharing import seal_into
from harness.timing import enqueue
from harness.timing.slots import SLOTS, shift

ROOT = Path(__file__).resolve().parents[1]
COMPILE = """
import json, sys
import torch

vendor = sys.argv[1]
torch.version.hip = "7.0" if vendor == "hip" else None
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from harness.timing import allowance, enqueue, flush, seal

TYPES = {
    "words": "*i32", "begun": "*i64", "offsets": "*i64", "lines": "*i32", "source": "*i32", "sink": "*i32",
    "target": "*i32", "ticks": "i32", "looks": "i32", "generation": "i32", "polls": "i32", "index": "i32",
    "count": "i32",
}
CONSTANTS = {"release": 0, "done": 16, "expired": 32, "size": 64, "width": 4, "block": 8192}
target = GPUTarget("hip", "gfx950", 64) if vendor == "hip" else GPUTarget("cuda", 90, 32)
found = {}
for module in (allowance, enqueue, flush, seal):
    for name, kernel in vars(module).items():
        if isinstance(kernel, triton.runtime.jit.JITFunction):
            signature = {each: TYPES.get(each, "constexpr") for each in kernel.arg_names}
            constants = {each: CONSTANTS[each] for each in kernel.arg_names if each in CONSTANTS}
            compiled = triton.compile(ASTSource(kernel, signature, constants), target=target)
            found[name] = compiled.asm["amdgcn" if vendor == "hip" else "ptx"]
print(json.dumps(found))
"""


@pytest.mark.parametrize(("vendor", "clock"), [("cuda", "%globaltimer"), ("hip", "s_memrealtime")])
def test_every_kernel_of_the_queue_compiles_for_either_vendor(vendor: str, clock: str, tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment = {**kept, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, vendor]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kernels = json.loads(done.stdout)
    ours = {"_gate_kernel", "_done_kernel", "_empty_kernel", "_reveal_kernel", "_read_kernel"}
    assert set(kernels) == ours | {"_begin_kernel", "_wait_kernel", "_copy_kernel"}
    assert {name for name, text in kernels.items() if clock in text} == {"_begin_kernel", "_wait_kernel"}
    if vendor == "hip":  # without this wait, the register still has what was in it before
        for name in ("_begin_kernel", "_wait_kernel"):
            behind = kernels[name].split(clock)[1].split("ASMEND")[0]
            assert "s_waitcnt lgkmcnt(0)" in behind


class RecordedQueue(enqueue.Queue):
    """A queue whose kernels are words in a list."""

    def __init__(self) -> None:
        self.log: list[str] = []
        say = self.log.append
        self._words = torch.zeros(64, dtype=torch.int32)
        self._flush: Any = lambda: say("flush")
        self._allowance: Any = SimpleNamespace(begin=lambda: say("begin"), wait=lambda ns: say("wait"))
        self._events: Any = [(contextlib.nullcontext(), contextlib.nullcontext())] * 16
        self._outputs = []

    def _gate(self, generation: int, polls: int) -> None:
        self.log.append("gate")

    def start_nothing(self, index: int = 0) -> None:
        self.log.append("nothing")

    def reveal(self, reveals: Any, index: int) -> None:
        self.log.append("reveal")

    def batch(self, calls: int, kernels: int, ahead: int, seals: int = 1) -> None:
        """One gate with calls of so many kernels."""

        def call(index: int) -> None:
            self.log.extend(["call"] * kernels)

        def seal(index: int, output: object) -> None:
            self.log.extend(["seal"] * seals)

        self.enqueue(1, range(calls), call, seal, None, object(), False, 0, 1.0, ahead)  # type: ignore[arg-type]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> RecordedQueue:
    found = RecordedQueue()
    done = {(1,): lambda *_, **__: found.log.append("done")}
    monkeypatch.setattr(enqueue, "_done_kernel", done)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return found


def test_a_flush_has_a_time_of_its_own_and_the_seal_is_none_of_it(queue: RecordedQueue) -> None:
    queue.batch(2, 1, 0)
    each = ["begin", "flush", "wait", "reveal", "call", "seal"]
    assert queue.log[: 2 + 2 * len(each)] == ["gate", *each, *each, "done"]
    assert set(queue.log[2 + 2 * len(each) :]) <= {"nothing"}


def test_a_lazy_output_that_computes_while_it_is_copied_does_so_on_the_clock(queue: RecordedQueue) -> None:
    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
            if function is torch.Tensor.detach:
                queue.log.append("work")
            return super().__torch_function__(function, kinds, arguments, keywords or {})

    def call(index: int) -> torch.Tensor:
        queue.log.append("call")
        return torch.ones(4).as_subclass(Lazy)

    sealed = torch.zeros(4)
    queue.enqueue(
        1, [0], call, lambda _, output: seal_into(output, sealed), None, None, False, polls=0, flush_ns=1.0, shift=0
    )
    begun = max(place for place, name in enumerate(queue.log) if name == "begin")
    assert sealed.tolist() == [1.0] * 4
    assert queue.log.index("wait", begun) < queue.log.index("work") < queue.log.index("done")


def test_the_outputs_of_a_batch_are_all_there_until_it_has_ended(queue: RecordedQueue) -> None:
    """Each has a place of its own then, and one place's luck is not all of theirs."""
    made: list[weakref.ref[torch.Tensor]] = []

    def call(index: int) -> torch.Tensor:
        assert all(each() is not None for each in made[-index:] if index)
        output = torch.ones(4)
        made.append(weakref.ref(output))
        return output

    for _ in range(2):
        queue.enqueue(1, range(4), call, lambda *_: None, None, None, False, polls=0, flush_ns=1.0, shift=0)
        assert [each() is not None for each in made] == [False] * (len(made) - 4) + [True] * 4
    queue.claims_ns(0)
    assert not any(each() is not None for each in made)


@pytest.mark.parametrize("calls", [4, 8, 16])
@pytest.mark.parametrize(("kernels", "seals"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)])
def test_every_kernel_of_a_call_comes_to_each_slot_alike(
    calls: int, kernels: int, seals: int, queue: RecordedQueue
) -> None:
    for gate in range(SLOTS**2 // calls):
        queue.batch(calls, kernels, shift(gate, calls), seals)
    slots = [place % SLOTS for place, name in enumerate(queue.log) if name == "call"]
    for kernel in range(kernels):
        own = slots[kernel::kernels]
        assert [own.count(slot) for slot in range(SLOTS)] == [SLOTS] * SLOTS
    assert len(queue.log) % SLOTS == 0
