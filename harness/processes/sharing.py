"""Buffers that two processes see: an arena per case and contestant, and the plan of what lies where in it.

The oracle allocates each arena as one allocation of its own (an IPC handle opens a whole allocation, so
nothing else may live in it); the contestant attaches its own and no other. On a GPU an arena is device memory
passed as an IPC handle; on the CPU it is an unnamed file in memory whose descriptor both processes were given
at birth, so that nothing can be left behind however either of them ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from harness.devices import gpu_driver

ALIGNMENT_BYTES = 512
"""Every buffer starts on a multiple of this, as the frameworks' own allocators do."""
BLOCK_BYTES = 2 << 20
"""A GPU's driver puts smaller allocations together into blocks of this size, and a handle opens the whole block."""

_MOVES, _MOVE_BLOCKS = 2, 64
"""So many allocations, each of up to so many blocks, are in the way while an arena finds its place."""

Tree = Any
"""Nested tuples, lists and dicts of tensors and plain values; described as JSON by `describe`."""


class Arena:
    """One shared allocation, `bytes` a uint8 tensor [size] over it."""

    def __init__(self, raw: torch.Tensor, handle: str, release: Any) -> None:
        self.bytes = raw
        self.handle = handle
        self._release = release

    def close(self) -> None:
        """Give the memory back; no tensor over it may be used afterwards."""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self._release()


def allocate(size_bytes: int, device: str, memory_fd: int) -> Arena:
    """The oracle's side: a new arena. MemoryError when the device or the machine has no room."""
    if device == "cpu":
        os.ftruncate(memory_fd, max(size_bytes, os.fstat(memory_fd).st_size))
        return _map_file(memory_fd, size_bytes)
    driver = gpu_driver()
    pointer = driver.allocate(-(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
    try:
        handle = driver.export(pointer)
    except RuntimeError:
        driver.free(pointer)
        raise
    return Arena(_device_bytes(pointer, size_bytes), handle.hex(), lambda: driver.free(pointer))


@contextlib.contextmanager
def moved_on(device: str) -> Iterator[None]:
    """What is allocated inside gets another place than before, where a GPU has room for that.

    A driver gives back the place that was freed last. 8 runs of a kernel of 11.5 us differed by 6 %, six times what
    their processes' spread explains, while all of a run's processes had an arena at one place (H200).
    """
    with contextlib.ExitStack() as taken:
        if device != "cpu":
            with contextlib.suppress(MemoryError):
                for _ in range(_MOVES):
                    size_bytes = random.randint(1, _MOVE_BLOCKS) * BLOCK_BYTES
                    taken.callback(allocate(size_bytes, device, -1).close)
        yield


def attach(handle: str, size_bytes: int, device: str, memory_fd: int) -> Arena:
    """The contestant's side of `allocate`."""
    if device == "cpu":
        return _map_file(memory_fd, size_bytes)
    driver = gpu_driver()
    pointer = driver.open(bytes.fromhex(handle))
    return Arena(_device_bytes(pointer, size_bytes), handle, lambda: driver.close(pointer))


def _map_file(memory_fd: int, size_bytes: int) -> Arena:
    # The mapping is unmapped when the last tensor over it is gone, not before: a submission may have kept one.
    mapping = mmap.mmap(memory_fd, size_bytes)
    return Arena(torch.frombuffer(mapping, dtype=torch.uint8), "", lambda: None)


class _DeviceBytes:
    """What torch needs to see memory that it did not allocate (CUDA array interface, version 3; HIP alike)."""

    def __init__(self, pointer: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def _device_bytes(pointer: int, size_bytes: int) -> torch.Tensor:
    return torch.as_tensor(_DeviceBytes(pointer, size_bytes), device="cuda")


# --- the plan: trees of tensors as JSON --------------------------------------------------------------------


class Planner:
    """Hands out places in an arena that does not exist yet; `size_bytes` is what it will have to hold."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def place(self, tensor: torch.Tensor) -> dict[str, Any]:
        """A place for a tensor of this shape, dtype and these strides: its JSON description."""
        start = -(-self.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.size_bytes = start + span_bytes(tensor)
        return {
            "offset": start,
            "bytes": span_bytes(tensor),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a tensor, in its own strides."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def describe(tree: Tree, planner: Planner, shared: dict[int, Any] | None = None) -> Any:
    """A tree as JSON, each tensor given a place; tensors whose id is a key of `shared` get that description."""
    if isinstance(tree, torch.Tensor):
        known = (shared or {}).get(id(tree))
        return {"tensor": known if known is not None else planner.place(tree)}
    if isinstance(tree, tuple | list):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [describe(item, planner, shared) for item in tree]}
    if isinstance(tree, dict):
        return {"dict": [[key, describe(item, planner, shared)] for key, item in tree.items()]}
    if isinstance(tree, torch.dtype):
        return {"dtype": str(tree).removeprefix("torch.")}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise TypeError(f"a {type(tree).__name__} in the data cannot be handed to another process")


def rebuild(plan: Any, arena: torch.Tensor) -> Tree:
    """The tree that `describe` described, its tensors views of the arena's bytes, each with a storage of its own."""
    ((kind, content),) = plan.items()
    if kind == "tensor":
        return _view(content, arena)
    if kind == "tuple":
        return tuple(rebuild(item, arena) for item in content)
    if kind == "list":
        return [rebuild(item, arena) for item in content]
    if kind == "dict":
        return {key: rebuild(item, arena) for key, item in content}
    if kind == "dtype":
        return getattr(torch, content)
    return content


def _view(place: dict[str, Any], arena: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, place["dtype"])
    if place["bytes"] == 0:
        return torch.empty_strided(place["shape"], place["stride"], dtype=dtype, device=arena.device)
    if arena.device.type == "cpu":
        raw = arena[place["offset"] : place["offset"] + place["bytes"]]
    else:
        raw = _device_bytes(arena.data_ptr() + place["offset"], place["bytes"])
    return raw.view(dtype).as_strided(place["shape"], place["stride"])


def tensors(tree: Tree) -> list[torch.Tensor]:
    """All tensors of a tree, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return [tensor for item in tree for tensor in tensors(item)]
    return []


def mapped(tree: Tree, function: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
    """The tree with each tensor replaced by what the function makes of it."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(item, function) for item in tree)
    if isinstance(tree, dict):
        return {key: mapped(item, function) for key, item in tree.items()}
    return tree


# --- outputs, sealed -----------------------------------------------------------------------------------------


class BadOutput(Exception):
    """What custom_kernel returned cannot be an output of this problem; the text says why."""


def zeros_like(tree: Tree) -> tuple[Tree, torch.Tensor]:
    """Zeros of the same structure in this process's own memory, and that memory, int32, to be kept beside them."""
    planner = Planner()
    plan = describe(tree, planner)
    device = next((tensor.device for tensor in tensors(tree)), torch.device("cpu"))
    zeros = torch.zeros(-(-planner.size_bytes // 4), dtype=torch.int32, device=device)
    return rebuild(plan, zeros.view(torch.uint8)), zeros


def torch_copy(place: torch.Tensor, output: torch.Tensor) -> None:
    """Copy `output` to `place`, both of one form."""
    place.copy_(output.detach())


def seal_into(
    output: Any,
    seal: Tree,
    name: str = "the output",
    copy: Callable[[torch.Tensor, torch.Tensor], None] = torch_copy,
    converts: bool = False,
) -> None:
    """Copy what the kernel returned into the oracle's buffer, if it has its exact form. BadOutput says what differs.

    `copy(place, output)` copies one tensor. `converts`: other strides are as good, and a dtype whose every value the
    buffer's has too.
    """
    if isinstance(seal, torch.Tensor):
        if not isinstance(output, torch.Tensor):
            raise BadOutput(f"{name} is {_kind(output)}; expected {_form(seal)}")
        if _traits(output) == _traits(seal):
            copy(seal, output)
        elif converts and _is_convertible(output, seal):
            torch_copy(seal, output)
        else:
            raise BadOutput(f"{name} is {_form(output)}; expected {_form(seal)}")
    elif isinstance(seal, tuple | list):
        if not isinstance(output, tuple | list) or len(output) != len(seal):
            raise BadOutput(f"{name} is {_kind(output)}; expected a {type(seal).__name__} of {len(seal)}")
        for index, (item, place) in enumerate(zip(output, seal, strict=True)):
            seal_into(item, place, f"{name}[{index}]", copy, converts)
    elif isinstance(seal, dict):
        if not isinstance(output, dict) or set(output) != set(seal):
            raise BadOutput(f"{name} is {_kind(output)}; expected a dict with keys {sorted(map(str, seal))}")
        for key, place in seal.items():
            seal_into(output[key], place, f"{name}[{key!r}]", copy, converts)


def _is_convertible(output: torch.Tensor, seal: torch.Tensor) -> bool:
    """Whether a tensor differs from the seal by its strides, or by a dtype that has no value which the seal's lacks."""
    if output.layout != torch.strided or output.shape != seal.shape or output.device.type != seal.device.type:
        return False
    try:
        return bool(torch.promote_types(output.dtype, seal.dtype) == seal.dtype)
    except RuntimeError:  # there is no common dtype of some of the small ones
        return False


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tuple(
        stride for size, stride in zip(tensor.shape, _strides(tensor), strict=True) if size > 1 and tensor.numel()
    )
    return tensor.layout, tensor.dtype, tuple(tensor.shape), tensor.device.type, strides


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout == torch.strided else (0,) * tensor.dim()


def _form(tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided:
        return f"{name} {list(tensor.shape)} in layout {tensor.layout} on {tensor.device.type}"
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{name} {list(tensor.shape)}{strides} on {tensor.device.type}"
