"""Every message between the referee and its two processes, in one file for both sides.

One JSON object a line, `{"kind": …, fields…}`: exactly the fields of the message's class, of exactly its
types, in a line of bounded length. Anything else is a `WireError`; the referee turns that into the verdict
`protocol-violation`, whoever sent it. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

MAX_LINE_BYTES = 1 << 20
"""Longest line either side accepts; the largest honest one (a layout of 24 input sets) has about 60 KB."""

MOST_KERNELS, MAX_NAME = 64, 200
"""Of an inventory."""

D = TypeVar("D")
Json = Any


class WireError(Exception):
    """Bytes that are not a message of the vocabulary."""


# --- orders to the contestant, and its reports -------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Set up the device and the harness's own kernels, before anything of the submission is read."""


@dataclass(frozen=True)
class Probe:
    """Open and close a block of the oracle's memory: can this process share any?"""

    handle: str


@dataclass(frozen=True)
class Load:
    """Import the submission."""

    filename: str


@dataclass(frozen=True)
class Map:
    """Attach the arena of a case: `layout` as sharing.describe made it."""

    layout: Json
    handle: str
    size_bytes: int


@dataclass(frozen=True)
class Unmap:
    """Let go of the arena."""


@dataclass(frozen=True)
class Call:
    """Call the kernel once on input set `index`, wait for it, seal its output."""

    index: int


@dataclass(frozen=True)
class Inventory:
    """Call once more on one input set, under torch's profiler. Nothing depends on the answer."""

    index: int


@dataclass(frozen=True)
class Rehearse:
    """Run a whole batch with the gate open: every kernel is loaded, every pool is warm afterwards."""

    order: tuple[int, ...]
    empty: bool = False
    """Only the empty batch: nothing of the submission's runs."""


@dataclass(frozen=True)
class Arm:
    """Enqueue a batch behind the gate (or, `by_message`, stand ready to run it on `Release`).

    `empty` starts an empty kernel in each call's place (by message, nothing at all), `events` times each of them by the
    contestant's own events. `polls` bounds how long the gate waits. Each call begins `flush_ns` after its flush began.
    `shift` empty kernels go ahead of the gate.
    """

    generation: int
    order: tuple[int, ...]
    empty: bool
    by_message: bool
    events: bool
    polls: int
    flush_ns: float = 0.0
    shift: int = 0


@dataclass(frozen=True)
class Release:
    """Start an armed batch, where the gate is a message."""

    generation: int


@dataclass(frozen=True)
class Quit:
    """End."""


@dataclass(frozen=True)
class Started:
    """The contestant's interpreter is up; nothing of the submission was read yet."""


@dataclass(frozen=True)
class Prepared:
    """The harness's kernels ran once. Where the device can have no gate, `missing` says why."""

    gated: bool
    missing: str


@dataclass(frozen=True)
class Probed:
    """It could be opened."""


@dataclass(frozen=True)
class Loaded:
    """`custom_kernel` is there and takes one argument."""

    interprets: bool
    """Triton is in use, through its interpreter."""


@dataclass(frozen=True)
class Mapped:
    """The arena is attached."""


@dataclass(frozen=True)
class Unmapped:
    """The arena was let go."""


@dataclass(frozen=True)
class Inventoried:
    """What one call launched, in order of first launch: names of kernels (on a CPU, of operators), how often each.

    Cut to `MOST_KERNELS` and to names of `MAX_NAME` characters.
    """

    names: tuple[str, ...]
    launches: tuple[int, ...]


@dataclass(frozen=True)
class Called:
    """One call ended and its output lies in the sealed buffer."""

    claim_ns: float


@dataclass(frozen=True)
class Rehearsed:
    """The open batch ended; the events' reading per call."""

    claims_ns: tuple[float, ...]


@dataclass(frozen=True)
class Armed:
    """The whole batch is enqueued. `expired`: the gate gave up before that, so the kernel waited for the GPU."""

    generation: int
    expired: bool


@dataclass(frozen=True)
class Done:
    """A batch released by message has ended."""

    generation: int


@dataclass(frozen=True)
class Claims:
    """The device is idle; the contestant's own event readings per call, in the batch's order, where asked for."""

    generation: int
    claims_ns: tuple[float, ...]


@dataclass(frozen=True)
class Failed:
    """The submission raised, or gave something that is no output."""

    verdict: Literal["bad-output", "load-failed", "compile-failed", "crashed", "out-of-memory"]
    stage: Literal["prepare", "load", "map", "call", "rehearse", "batch"]
    message: str


# --- orders to the oracle, and its reports -----------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """Import the reference laid in `folder` and describe the device."""

    folder: str
    device: Literal["cuda", "cpu"]
    problem: Json
    """What the oracle needs of task.yml: precisions, tolerance, shared inputs."""
    kernels: str = ""
    """A folder to fill with the harness's own compiled kernels first; nothing where that is done."""


@dataclass(frozen=True)
class Stage:
    """Make a case's data and, for each of these seats, an arena of its own: at most `max_sets` input sets."""

    spec: Json
    max_sets: int
    seats: tuple[int, ...]


@dataclass(frozen=True)
class Renew:
    """Make fresh contents for these input sets, in the oracle's own memory."""

    indices: tuple[int, ...]
    seed: int
    keep_first: bool
    """The first set is the case's own, with its very seed."""


@dataclass(frozen=True)
class Deal:
    """Copy the fresh contents into one seat's arena and poison its output buffers.

    `blank`: the same work, but with the case's own contents, which are no secret. Before an empty batch.
    """

    seat: int
    blank: bool = False


@dataclass(frozen=True)
class Judge:
    """Judge the sealed outputs in one seat's arena: of all dealt sets, or as many as fit `budget_ns`, drawn now."""

    seat: int
    budget_ns: int
    published: bool
    """Also ask the competition's published check."""


@dataclass(frozen=True)
class Roof:
    """Find out how fast the device's memory is, and its units for operations of these kinds (roofline.Roofline)."""

    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Examine:
    """Look at what the problem's own generator and check let pass, on these cases."""

    specs: tuple[Json, ...]


@dataclass(frozen=True)
class Examined:
    """What a user should know of them."""

    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Strike:
    """Free the case's data and arenas."""


@dataclass(frozen=True)
class Opened:
    """The reference is imported; the device as torch sees it."""

    device: Json
    software: Json
    probe: str
    """The handle of a small piece of the device's memory that a contestant must be able to open; "" on the CPU."""


@dataclass(frozen=True)
class Staged:
    """Arenas exist, all laid out alike."""

    layout: Json
    handles: tuple[str | None, ...]
    """How to attach each seat's arena; None for a seat that has none."""
    size_bytes: int
    """Of each arena."""
    sets: int

    @property
    def output_bytes(self) -> int:
        """Of one call's output."""
        return _planned_bytes(self.layout["outputs"][0])


def _planned_bytes(plan: Json) -> int:
    """What all tensors of a plan take (sharing.describe makes them)."""
    ((kind, content),) = plan.items()
    if kind == "tensor":
        return int(content["bytes"])
    if kind in ("tuple", "list"):
        return sum(_planned_bytes(item) for item in content)
    return sum(_planned_bytes(item) for _, item in content) if kind == "dict" else 0


@dataclass(frozen=True)
class Renewed:
    """Fresh contents are ready to be dealt; meanwhile the canaries took this long, each, in ns (none on a CPU)."""

    canaries_ns: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dealt:
    """The seat's arena holds the fresh contents; its output buffers are poisoned; the device is idle."""


@dataclass(frozen=True)
class Judged:
    """The worst finding over the judged outputs, and how many were judged."""

    calls: int
    ok: bool
    message: str
    precision: str | None
    row_error: float | None
    row_limit: float | None
    mismatched: float | None
    gpumode: Literal["pass", "fail"] | None
    gpumode_message: str
    modified: bool = False
    """Whether an input no longer has the bits that were dealt."""
    intact_ns: int = 0
    """How long it took to find that out."""


@dataclass(frozen=True)
class Struck:
    """Freed."""


@dataclass(frozen=True)
class RoofFound:
    """The fastest that this device was seen to be: bytes per s, and operations per s of those kinds that can be tried.

    Nothing for what it is not known of: a CPU, or units that torch has no product for.
    """

    bytes_per_s: float | None
    operations_per_s: Json


@dataclass(frozen=True)
class Trouble:
    """The problem's own code, or the device, failed under the oracle."""

    stage: str
    message: str
    cause: Literal["code", "memory", "device"]


CONTESTANT_REPORTS = (
    Started,
    Prepared,
    Probed,
    Loaded,
    Mapped,
    Unmapped,
    Called,
    Inventoried,
    Rehearsed,
    Armed,
    Done,
    Claims,
    Failed,
)
ORACLE_ORDERS = (Open, Stage, Renew, Deal, Judge, Roof, Examine, Strike, Quit)
ORACLE_REPORTS = (Opened, Staged, Renewed, Dealt, Judged, RoofFound, Examined, Struck, Trouble)


def encode(message: Any) -> bytes:
    """The line for a message; WireError when it would be too long to be accepted."""
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    line = json.dumps({"kind": type(message).__name__, **fields}, allow_nan=False, separators=(",", ":")).encode()
    if len(line) >= MAX_LINE_BYTES:
        raise WireError(f"{type(message).__name__} would be {len(line)} bytes long")
    return line + b"\n"


def decode(line: bytes, vocabulary: tuple[type, ...]) -> Any:
    """The message in a line, one of `vocabulary`; WireError says what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"a line of {len(line)} bytes")
    try:
        data = json.loads(line.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a JSON line: {error}") from error
    if not isinstance(data, dict):
        raise WireError("not an object")
    kinds = {kind.__name__: kind for kind in vocabulary}
    name = data.pop("kind", None)
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise WireError(f"unknown kind {str(name)[:80]!r}")
    if missing := set(_hints(kind)) - set(data):
        raise WireError(f"{name}: field {sorted(missing)[0]!r} is missing")
    try:
        return read_dataclass(kind, data, name)
    except ValueError as error:
        raise WireError(str(error)[:500]) from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key occurs twice")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number here")


# --- frozen dataclasses from JSON data ---------------------------------------------------------------------


def read_dataclass(kind: type[D], data: Any, where: str) -> D:
    """The dataclass `kind` from JSON data, types checked field by field; ValueError names what does not fit."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected an object, got {type(data).__name__}")
    hints = _hints(typing.cast(Any, kind))
    if unknown := set(data) - set(hints):
        raise ValueError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    values = {name: _fit(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _fit(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        for option in arguments:
            try:
                return _fit(option, value, where)
            except ValueError:
                continue
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_fit(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    elif origin is dict and isinstance(value, Mapping):
        return {str(key): _fit(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    elif dataclasses.is_dataclass(hint):
        return read_dataclass(typing.cast(type, hint), value, where)
    elif _is_scalar(hint, origin, arguments, value):
        return float(value) if hint is float else value
    raise ValueError(f"{where}: {str(value)[:200]!r} does not fit {getattr(hint, '__name__', hint)}")


def _is_scalar(hint: Any, origin: Any, arguments: tuple[Any, ...], value: Any) -> bool:
    if origin is Literal:
        return isinstance(value, str | int) and value in arguments
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and abs(value) < 1e300
    if hint is type(None):
        return value is None
    return isinstance(hint, type) and isinstance(value, hint)
