"""Speed of light: the least time that a device's peak rates allow for a case."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import ProblemError
from harness.record import Scalar

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, exponent: float(base) ** exponent,  # whole numbers could grow for ever
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "ceil": math.ceil}
_MAX_LENGTH, _MAX_EXPONENT = 500, 4096
FALLBACKS = {"fp4": ("fp4", "fp8", "bf16", "fp32"), "fp8": ("fp8", "bf16", "fp32"), "bf16": ("bf16", "fp32")}
"""Units that can do the work exactly, the narrowest first: E2M1 values are exact in FP8 and bfloat16."""


@dataclass(frozen=True)
class Roofline:
    """Least traffic and operations of a case, as arithmetic in its names."""

    bytes: str
    operations: dict[str, str]
    """By kind of unit: fp4, fp8, bf16, fp32."""


@dataclass(frozen=True)
class PeakRates:
    """Vendor's dense peak rates."""

    bytes_per_s: float
    operations_per_s: dict[str, float]


@dataclass(frozen=True)
class Floor:
    """The least time for a case, and what bounds it."""

    time_ns: float
    bound: Literal["memory", "compute"]


def evaluate(expression: str, names: Mapping[str, Scalar]) -> float:
    """The value of an arithmetic expression: + - * / // % ** ( ), numbers, names, min, max, ceil.

    ProblemError for anything else; nothing is ever executed.
    """
    if len(expression) > _MAX_LENGTH:
        raise ProblemError(f"an expression of {len(expression)} characters; at most {_MAX_LENGTH}")
    try:
        value = _value(ast.parse(expression, mode="eval").body, names)
        if not math.isfinite(value):
            raise ValueError("it is not finite")
        return float(value)
    except (SyntaxError, ZeroDivisionError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ProblemError(f"{expression!r} is not arithmetic: {getattr(error, 'msg', error)}") from None


def _value(node: ast.expr, names: Mapping[str, Scalar]) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ProblemError(f"{node.id!r} is no key of the case; it has {', '.join(names)}")
        value = names[node.id]
        if isinstance(value, str):
            raise ProblemError(f"{node.id!r} is text, not a number")
        return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Pow) and abs(right) > _MAX_EXPONENT:
            raise ValueError(f"an exponent above {_MAX_EXPONENT}")
        return float(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.args:
        if node.keywords:
            raise ValueError("a named argument")
        return float(_FUNCTIONS[node.func.id](*(_value(argument, names) for argument in node.args)))
    raise ValueError(f"{type(node).__name__} is not allowed; use + - * / // % ** ( ) min max ceil")


def floor_for(roofline: Roofline, spec: Mapping[str, Scalar], rates: PeakRates) -> Floor:
    """The larger of bytes over bandwidth and the operations' summed times over their units' rates."""
    memory_s = evaluate(roofline.bytes, spec) / rates.bytes_per_s
    compute_s = 0.0
    for kind, expression in roofline.operations.items():
        unit = next((unit for unit in FALLBACKS.get(kind, (kind,)) if unit in rates.operations_per_s), None)
        if unit is not None:
            compute_s += evaluate(expression, spec) / rates.operations_per_s[unit]
    return Floor(max(memory_s, compute_s) * 1e9, "memory" if memory_s >= compute_s else "compute")


MEMORY_SLACK, COMPUTE_SLACK = 1.10, 1.25
"""What a submission may be faster than the fastest way that the oracle knows: to move bytes, to multiply."""


def hard_floor_ns(roofline: Roofline, seen: PeakRates, spec: Mapping[str, Scalar], resident_bytes: float) -> float:
    """A time below which a case cannot be, on a device that was `seen` to be so fast.

    `resident_bytes` of what it writes may still lie in the cache when it ends.
    """
    moved = max(0.0, evaluate(roofline.bytes, spec) - resident_bytes)
    rest = Roofline("0", roofline.operations)
    compute_ns = floor_for(rest, spec, PeakRates(1.0, seen.operations_per_s)).time_ns
    return max(moved / seen.bytes_per_s * 1e9 / MEMORY_SLACK, compute_ns / COMPUTE_SLACK)


# Dense rates from the vendors' data sheets (no sparsity), bytes/s and operations/s. fp32: without tensor cores.
PEAK_RATES: dict[str, PeakRates] = {
    # NVIDIA H200 and H100 Tensor Core GPU data sheets (SXM).
    "H200": PeakRates(4.8e12, {"fp8": 1979e12, "bf16": 989e12, "fp32": 67e12}),
    "H100": PeakRates(3.35e12, {"fp8": 1979e12, "bf16": 989e12, "fp32": 67e12}),
    # NVIDIA Blackwell architecture technical brief and HGX B200 data sheet (per GPU).
    "B200": PeakRates(8.0e12, {"fp4": 9000e12, "fp8": 4500e12, "bf16": 2250e12, "fp32": 75e12}),
    # NVIDIA A100 80 GB SXM data sheet; L40S data sheet; Ada GPU architecture white paper (RTX 4090).
    "A100": PeakRates(2.039e12, {"bf16": 312e12, "fp32": 19.5e12}),
    "L40S": PeakRates(0.864e12, {"fp8": 733e12, "bf16": 362e12, "fp32": 91.6e12}),
    "RTX 4090": PeakRates(1.008e12, {"fp8": 660e12, "bf16": 165e12, "fp32": 82.6e12}),
    # AMD Instinct MI300X, MI325X and MI355X data sheets.
    "MI300X": PeakRates(5.3e12, {"fp8": 2615e12, "bf16": 1307e12, "fp32": 163e12}),
    "MI325X": PeakRates(6.0e12, {"fp8": 2615e12, "bf16": 1307e12, "fp32": 163e12}),
    "MI355X": PeakRates(8.0e12, {"fp4": 10100e12, "fp8": 5030e12, "bf16": 2500e12, "fp32": 157e12}),
}


_OTHER_BOARD = re.compile(r"\b(PCIE|NVL|MIG|Laptop|40GB|D)\b", re.IGNORECASE)
"""Boards and slices that share a model's name and not its rates."""


def rates_for(model: str) -> PeakRates | None:
    """Peak rates of a device by the name that its driver gives; None for one that is not in the table."""
    if _OTHER_BOARD.search(model):
        return None
    return next((rates for name, rates in PEAK_RATES.items() if re.search(rf"\b{name}\b", model)), None)
