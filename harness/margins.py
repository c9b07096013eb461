"""How far from the limits: of a problem's tolerance, what its own wrong and honest variants leave on either side.

A measure is what the limit it belongs to would have to be multiplied by to just accept the output: at most 1 passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from harness.judge import errors_of, judge, rows_of
from harness.problem import RowLimits

WANTED = 1.5
"""Every variant should be this factor away from the limit, on its side."""


@dataclass(frozen=True)
class Distance:
    """How far an output is from one precision's limits, by measure; at most 1 is inside."""

    row: float
    """The worst row's relative error."""
    element: float
    """The worst element, but for the share of elements that may be outside."""
    outlier: float = 0.0
    """The worst row of those that are excused from the other two."""

    @property
    def worst(self) -> float:
        """Of the measure that decides."""
        return max(self.row, self.element, self.outlier)

    @property
    def measure(self) -> str:
        """The one that decides."""
        found = {"row": self.row, "element": self.element, "outlier": self.outlier}
        return max(found, key=lambda name: found[name])


@dataclass(frozen=True)
class Trial:
    """One variant's output on one case."""

    case: str
    ok: bool
    """The judge's verdict."""
    distance: float
    """From the limits of the precision it is nearest to."""
    measure: str
    precision: str | None
    published: bool | None = None
    """Whether the check published for the competition accepts it; None where there is none."""


@dataclass(frozen=True)
class Margin:
    """One variant on all cases that leave it something to do, and how sure its verdict is."""

    name: str
    sentence: str
    """What it does."""
    honest: bool
    precision: str | None
    """The declared one that it was asked to work at; None where it chooses, or where none is declared."""
    trials: tuple[Trial, ...]
    """At least one."""

    @property
    def as_it_should(self) -> bool:
        """An honest variant passes everywhere; a wrong one fails somewhere, since some are right on most cases."""
        return all(trial.ok for trial in self.trials) if self.honest else not all(trial.ok for trial in self.trials)

    @property
    def deciding(self) -> Trial:
        """The trial that is farthest out: where an honest variant has least room, and where a wrong one shows most."""
        return max(self.trials, key=lambda trial: trial.distance)

    @property
    def factor(self) -> float:
        """By how much the limits could be tightened (honest) or widened (wrong) before the verdict turns."""
        distance = self.deciding.distance
        if not self.honest:
            return distance
        return 1 / distance if distance else math.inf

    @property
    def near(self) -> bool:
        """Whether it is nearer to the limit than it should be."""
        return self.factor < WANTED


def distance_of(output: torch.Tensor, reference: torch.Tensor, limits: RowLimits) -> Distance:
    """The measures of one output [..., columns] against one float32 reference of the same shape."""
    got, want = rows_of(output), rows_of(reference)
    if bool((torch.isfinite(want) & ~torch.isfinite(got)).any()):
        return Distance(math.inf, math.inf)
    errors = errors_of(got, want, limits)
    rows, excused = errors.relative[errors.kept], errors.relative[~errors.kept]
    ratios = torch.where(errors.absolute > 0, errors.absolute / errors.allowed, 0.0)[errors.kept].flatten()
    spared = int(limits.mismatched * ratios.numel())
    return Distance(
        _largest(rows) / limits.row_relative,
        float(ratios.topk(spared + 1).values[-1]) if ratios.numel() else 0.0,
        _largest(excused) / limits.outlier_row_relative if excused.numel() else 0.0,
    )


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def try_out(
    case: str,
    output: torch.Tensor,
    references: Mapping[str | None, torch.Tensor],
    limits: Mapping[str | None, RowLimits],
    published: bool | None = None,
) -> Trial:
    """Judge an output as a submission's would be, and measure it against the precision it is nearest to."""
    finding = judge(output, references, limits)
    distances = {name: distance_of(output, reference, limits[name]) for name, reference in references.items()}
    nearest = min(distances, key=lambda name: distances[name].worst)
    found = distances[nearest]
    return Trial(case, finding.ok, found.worst, found.measure, nearest, published)
