"""When is an output right? Pure functions over tensors; nothing here ever met a submission.

An output is right when it has no element left at the poison, is finite wherever the reference is, and is
within the problem's limits of the reference at one of the declared precisions: each row's relative error
||out - ref|| / ||ref|| (a row is the last dimension), and each element's |err| <= atol + atol_rms * rms(ref
row) + rtol * |ref|. Problems may leave out a small share of outlier rows, each of which has a limit too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from harness.problem import RowLimits


@dataclass(frozen=True)
class Finding:
    """How one output compares with the reference it is nearest to."""

    ok: bool
    message: str = ""
    precision: str | None = None
    row_error: float | None = None
    row_limit: float | None = None
    mismatched: float | None = None

    @property
    def error(self) -> float:
        """Worst row error, infinite where there was nothing to compare: the reference with the least is nearest."""
        return math.inf if self.row_error is None else self.row_error

    @property
    def distance(self) -> float:
        """Worst row error over its limit: of several outputs the one with the largest is the worst."""
        if self.row_error is None or self.row_limit is None:
            return math.inf
        return self.row_error / self.row_limit if self.row_limit else math.inf


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with the bits that no kernel computes: a NaN with a payload, or 0xA5 bytes for integers."""
    _bits(tensor).fill_(_poison_bits(tensor))


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements still have the poison's bits: bool, same shape. All False for one-byte types and bool,
    where any bits are an honest value."""
    if tensor.element_size() == 1:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    return _bits(tensor) == _poison_bits(tensor)


_COMPARED_AT_ONCE = 8 << 20


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of the same shape and dtype have the same bits, NaNs and all. Large ones in pieces, since a
    comparison takes memory."""
    if one.is_contiguous() and other.is_contiguous():
        flat = [_bits(each).reshape(-1).view(torch.uint8) for each in (one, other)]
        if flat[0].numel() % 8 == 0 and all(each.data_ptr() % 8 == 0 for each in flat):
            flat = [each.view(torch.int64) for each in flat]
        pieces = zip(*(each.split(_COMPARED_AT_ONCE) for each in flat), strict=True)
        return all(bool(torch.equal(*pair)) for pair in pieces)
    return bool(torch.equal(_bits(one), _bits(other)))


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAN_PAYLOADS = {
    torch.float16: 0x7EA5,
    torch.bfloat16: 0x7FE5,
    torch.float32: 0x7FE5A5A5,
    torch.float64: 0x7FFCA5A5A5A5A5A5,
}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return _real(tensor).view(_INTEGERS[_real(tensor).element_size()])


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor


def _poison_bits(tensor: torch.Tensor) -> int:
    tensor = _real(tensor)
    if tensor.dtype in _NAN_PAYLOADS:
        return _NAN_PAYLOADS[tensor.dtype]
    size = tensor.element_size()
    return int.from_bytes(b"\xa5" * size, "little", signed=size > 1)


def judge(
    output: torch.Tensor, references: Mapping[str | None, torch.Tensor], limits: Mapping[str | None, RowLimits]
) -> Finding:
    """Compare one output with the reference at each declared precision; the nearest decides.

    `output` [..., columns] in its own dtype, `references` float32 of the same shape, `limits` with the same
    keys (the precision's name, None where the problem declares none).
    """
    left = poisoned(output)
    if bool(left.any()):
        return Finding(False, f"{_share(left)} never written{_where(left)}")
    findings = [
        replace(_compare(output, reference, limits[name]), precision=name) for name, reference in references.items()
    ]
    passed = [finding for finding in findings if finding.ok]
    return min(passed or findings, key=lambda finding: finding.error)


@dataclass(frozen=True)
class Errors:
    """How far an output is from one reference, and how far it may be; R rows of C columns."""

    relative: torch.Tensor
    """float64 [R]: each row's ||out - ref|| / ||ref||."""
    absolute: torch.Tensor
    """[R, C]: |out - ref|."""
    allowed: torch.Tensor
    """[R, C]: what an element may be off."""
    kept: torch.Tensor
    """bool [R]: the rows that the limits speak of, all but the excused outliers."""


def errors_of(got: torch.Tensor, want: torch.Tensor, limits: RowLimits) -> Errors:
    """All that a verdict is made of, for an output and a reference as `rows_of` gives them."""
    same = got == want  # infinities that agree have no error
    error = torch.where(same, 0.0, got - want).abs()
    # One norm of a row of zeros would make any error infinite: such a row is measured by the largest norm instead.
    norms = want.norm(dim=1)
    scale = torch.where(norms > 0, norms, norms.max().clamp_min(torch.finfo(torch.float32).tiny))
    relative = error.norm(dim=1, dtype=torch.float64) / scale  # wrong values may overflow float32 when squared
    allowed = limits.atol + limits.atol_rms * scale[:, None] / math.sqrt(want.shape[1]) + limits.rtol * want.abs()
    return Errors(relative, error, allowed, _without_outliers(relative, limits))


def _compare(output: torch.Tensor, reference: torch.Tensor, limits: RowLimits) -> Finding:
    got, want = rows_of(output), rows_of(reference)
    stray = torch.isfinite(want) & ~torch.isfinite(got)
    if bool(stray.any()):
        return Finding(
            False, f"{_share(stray)} {_kinds(got[stray])} where the reference is finite{_where(stray, output)}"
        )
    errors = errors_of(got, want, limits)
    relative, kept = errors.relative, errors.kept
    outside = errors.absolute > errors.allowed

    worst_row = float(relative[kept].max()) if bool(kept.any()) else 0.0
    mismatched = float(outside[kept].float().mean()) if bool(kept.any()) else 0.0
    worst_outlier = float(relative.max())
    finding = Finding(True, "", None, worst_row, limits.row_relative, mismatched)
    if math.isfinite(worst_outlier) and worst_row <= limits.row_relative and mismatched <= limits.mismatched:
        if bool(kept.all()) or worst_outlier <= limits.outlier_row_relative:
            return finding
        bad = relative > limits.outlier_row_relative
    else:
        bad = relative > limits.row_relative
    return replace(
        finding,
        ok=False,
        message=_explain(output, got, want, errors.absolute - errors.allowed, relative, bad, outside, limits),
    )


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, columns] float32 (float64 for 64-bit types); a scalar is one row of one."""
    wide = torch.float64 if tensor.dtype in (torch.float64, torch.int64) else torch.float32
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1).to(wide)


def _without_outliers(relative: torch.Tensor, limits: RowLimits) -> torch.Tensor:
    """Rows that the limits speak of: all but the allowed share of the worst ones above the row limit."""
    kept = torch.ones_like(relative, dtype=torch.bool)
    if limits.outlier_rows > 0:
        count = max(1, int(limits.outlier_rows * relative.numel()))
        worst = relative.topk(min(count, relative.numel())).indices
        kept[worst] = relative[worst] <= limits.row_relative
    return kept


# --- what is wrong, in words -------------------------------------------------------------------------------


def _explain(
    output: torch.Tensor,
    got: torch.Tensor,
    want: torch.Tensor,
    excess: torch.Tensor,
    relative: torch.Tensor,
    bad: torch.Tensor,
    outside: torch.Tensor,
    limits: RowLimits,
) -> str:
    row = int(relative.argmax())
    column = int(excess[row].argmax())
    parts = [
        f"row {_index(output.shape[:-1], row)} is {float(relative[row]):.3g} off (limit {limits.row_relative:.3g})",
        f"element {_index(output.shape, row * got.shape[1] + column)} is {float(got[row, column]):.6g}, "
        f"expected {float(want[row, column]):.6g}",
    ]
    damage = outside if not bool(bad.any()) else bad[:, None].expand_as(outside) & outside
    if bool(damage.any()):
        parts.append(f"{_share(damage)} outside the elementwise limit{_where(damage, output)}")
    return "; ".join(parts)


def _share(mask: torch.Tensor) -> str:
    count, total = int(mask.sum()), mask.numel()
    return f"all {total} elements" if count == total else f"{count} of {total} elements ({_percent(count, total)})"


def _percent(count: int, total: int) -> str:
    """A share of some but not all, never rounded to none or all."""
    percent = 100 * count / total
    if percent < 0.001:
        return "< 0.001 %"
    return "> 99.9 %" if percent > 99.9 else f"{percent:.{3 if percent >= 99 else 2}g} %"


def _kinds(values: torch.Tensor) -> str:
    kinds = [name for name, test in (("NaN", torch.isnan), ("infinite", torch.isinf)) if bool(test(values).any())]
    return " or ".join(kinds)


def _where(mask: torch.Tensor, shaped: torch.Tensor | None = None) -> str:
    """The shape of the damage: whole rows, a tail of rows or columns, or a box around it."""
    flat = mask.reshape(-1, mask.shape[-1] if mask.dim() else 1)
    rows, columns = flat.any(dim=1).nonzero().flatten(), flat.any(dim=0).nonzero().flatten()
    shape = (shaped if shaped is not None else mask).shape[:-1]
    row_text = _span("rows", rows, flat.shape[0], lambda index: _index(shape, index))
    column_text = _span("columns", columns, flat.shape[1], str)
    return f", {row_text}, {column_text}" if flat.numel() > 1 else ""


def _span(name: str, indices: torch.Tensor, size: int, show: object) -> str:
    assert callable(show)
    first, last, count = int(indices[0]), int(indices[-1]), indices.numel()
    if count == size:
        return f"all {name}"
    if count == 1:
        return f"{name[:-1]} {show(first)}"
    if count == last - first + 1:
        return f"the last {count} {name}" if last == size - 1 else f"{name} {show(first)} to {show(last)}"
    return f"{count} {name} between {show(first)} and {show(last)}"


def _index(shape: torch.Size, flat: int) -> str:
    """The index of a flattened position, as [a, b, c]."""
    parts = []
    for size in reversed(shape):
        parts.append(flat % size)
        flat //= size
    return str(list(reversed(parts))) if len(parts) != 1 else str(parts[0])
