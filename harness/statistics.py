"""From raw readings to numbers with intervals. Pure functions, standard library only.

A case's time is the 10 % trimmed mean of its batches' times per call, worked in logarithms (times vary by
factors, not by differences). Intervals come from resampling whole batches, since calls within a batch share
its flush, its clocks and its contents.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.record import Batch, Timing

RESAMPLES = 1000
MIN_BATCHES = 8
"""Below this many batches a bootstrap is too narrow: Student's t is used."""
_T = {
    0.95: {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447},
    0.99: {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707},
}
"""Two-sided quantiles of Student's t by degrees of freedom (any table; e.g. NIST/SEMATECH e-Handbook 1.3.6.7.2)."""


@dataclass(frozen=True)
class Summary:
    """A time and its interval, ns. `low_ns` is 0 where readings do not exclude that there was no time at all."""

    time_ns: float
    low_ns: float
    high_ns: float
    batches: int

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the time; infinite where the time is not positive."""
        return (self.high_ns - self.low_ns) / 2 / self.time_ns if self.time_ns > 0 else math.inf


def trimmed_mean(values: Sequence[float], share: float = 0.1) -> float:
    """The mean of what is left after dropping `share` of the values at each end, rounded down."""
    ordered = sorted(values)
    cut = int(len(ordered) * share)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def summarise(batches: Sequence[Batch], confidence: float = 0.95) -> Summary:
    """The time per call over these batches, with its interval.

    A batch that read no longer than its empty neighbour has no logarithm: if there is one, the trimmed mean is
    and the interval are taken of the times themselves, not below 0.
    """
    times = [batch.per_call_ns for batch in batches]
    if min(times) <= 0:
        low, high = _interval(times, confidence)
        return Summary(max(0.0, trimmed_mean(times)), max(0.0, low), max(0.0, high), len(times))
    logs = [math.log(time) for time in times]
    low, high = _interval(logs, confidence)
    return Summary(math.exp(trimmed_mean(logs)), math.exp(low), math.exp(high), len(times))


def _interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    count = len(values)
    if count < 2:
        return -math.inf if count == 0 else values[0] - 10.0, values[0] + 10.0
    if count < MIN_BATCHES:
        margin = _T[confidence][count - 1] * statistics.stdev(values) / math.sqrt(count)
        middle = trimmed_mean(values)
        return middle - margin, middle + margin
    return bootstrap(values, trimmed_mean, confidence)


def bootstrap(
    values: Sequence[float], estimate: Callable[[Sequence[float]], float], confidence: float
) -> tuple[float, float]:
    """Percentile bootstrap interval of `estimate`, widened by sqrt(n / (n - 1)) for small samples.

    The widening undoes the bootstrap's known narrowness (its variance is the plug-in one, divided by n). The same
    values always give the same interval.
    """
    draw = random.Random(repr(values))
    count = len(values)
    middle = estimate(values)
    found = sorted(estimate(draw.choices(values, k=count)) for _ in range(RESAMPLES))
    tail = (1 - confidence) / 2
    widen = math.sqrt(count / (count - 1))
    low, high = found[int(tail * RESAMPLES)], found[min(RESAMPLES - 1, math.ceil((1 - tail) * RESAMPLES) - 1)]
    return middle - (middle - low) * widen, middle + (high - middle) * widen


def is_precise(batches: Sequence[Batch], half_width: float = 0.0025, confidence: float = 0.99) -> bool:
    """Whether the interval at this confidence is at most `half_width` of the time to either side.

    Looks only at the width: stopping on what the number says would favour whatever luck brings first.
    """
    if len(batches) < MIN_BATCHES:
        return False
    return summarise(batches, confidence).half_width <= half_width


def claimed_ns(timing: Timing) -> float | None:
    """The contestant's own events per call, 10 % trimmed mean, less what they read around nothing."""
    claims = [claim for batch in timing.batches for claim in batch.claims_ns]
    return trimmed_mean(claims) - (timing.empty_claim_ns or 0.0) if claims else None


def geometric_mean(summaries: Sequence[Summary]) -> Summary:
    """The geometric mean of independent cases; its interval adds their log half-widths in quadrature."""
    if any(each.time_ns <= 0 for each in summaries):
        high = math.exp(statistics.fmean(math.log(max(each.high_ns, 1e-3)) for each in summaries))
        return Summary(0.0, 0.0, high, sum(each.batches for each in summaries))
    middle = statistics.fmean(math.log(each.time_ns) for each in summaries)
    count = len(summaries)
    down = math.sqrt(sum(_log_ratio(each.time_ns, each.low_ns) ** 2 for each in summaries)) / count
    up = math.sqrt(sum(_log_ratio(each.high_ns, each.time_ns) ** 2 for each in summaries)) / count
    return Summary(
        math.exp(middle), math.exp(middle - down), math.exp(middle + up), sum(each.batches for each in summaries)
    )


def _log_ratio(larger: float, smaller: float) -> float:
    return math.log(larger / smaller) if smaller > 0 else 700.0
