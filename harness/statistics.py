"""From raw readings to numbers with intervals. Pure functions, standard library only.

In one process, a case's time is the 10 % trimmed mean of its batches' times per call, worked in logarithms (times vary
by factors, not by differences). Intervals come from whole batches, since the calls of a batch share its flush, its
clocks and its contents. Over several processes it is the mean of theirs, and the interval comes from the processes
first: each has its own luck with where its memory landed, and no number of batches in one of them shows that. Such an
interval is wide enough for a run that ended when it was narrow enough (`looked`). Batches that were voided count
nowhere. Equal readings give equal numbers on every machine: nothing here draws from outside.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from harness.record import Batch, Timing

RESAMPLES = 1000
MIN_BATCHES = 8
"""Below this many batches a bootstrap knows too little: Student's t alone gives the interval."""
MIN_LOOK = 4
"""Fewer batches than this are never called precise."""
LOOKS = (3, 4, 8, 12, 16, 24)
"""Numbers of processes after which a run may end because its interval is narrow enough, and after no others."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Summary:
    """A time and its interval, ns, with 0 <= low <= time <= high."""

    time_ns: float
    """0 where the readings say no more than "not measurably longer than nothing"."""
    low_ns: float
    """0 where the readings do not exclude that there was no time at all."""
    high_ns: float | None
    """None where nothing bounds it: a single batch, or batches that all read less than nothing."""
    batches: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval as a share of the time; None where there is no such share."""
        if self.high_ns is None or self.time_ns <= 0:
            return None
        return (self.high_ns - self.low_ns) / 2 / self.time_ns


# --- one case ----------------------------------------------------------------------------------------------


def summarise(batches: Sequence[Batch], confidence: float = 0.95) -> Summary:
    """The time per call over at least one batch, with its two-sided interval.

    A batch that read no longer than the empty one beside it has no logarithm. If there is one, mean and interval
    are those of the times themselves, and the low end is 0: such readings do not tell the call from nothing.
    Between several processes the interval covers so often whichever look ended the run (`looked`).
    """
    kept = counted(batches)
    times = [batch.per_call_ns for batch in kept]
    if min(times) <= 0:
        return _near_nothing(times, confidence)
    processes = [[math.log(batch.per_call_ns) for batch in each] for each in by_process(kept)]
    middle = trimmed_mean([trimmed_mean(logs) for logs in processes])
    nominal = looked(confidence) if len(processes) > 1 else confidence
    return _from_logs(middle, hierarchical_interval(processes, nominal), len(times))


def counted(batches: Sequence[Batch]) -> list[Batch]:
    """The batches that were not voided; all of them where none is left."""
    return [batch for batch in batches if not batch.is_voided] or list(batches)


def is_lost(batches: Sequence[Batch]) -> bool:
    """Whether there are batches and every one of them was voided: a time is then one of voided batches."""
    return bool(batches) and all(batch.is_voided for batch in batches)


def by_process(batches: Sequence[Batch]) -> list[list[Batch]]:
    """The batches of each process, in order of the processes."""
    found: dict[int, list[Batch]] = {}
    for batch in batches:
        found.setdefault(batch.process, []).append(batch)
    return [found[number] for number in sorted(found)]


def _from_logs(middle: float, found: Interval | None, count: int) -> Summary:
    time_ns = math.exp(middle)
    if found is None:
        return Summary(time_ns, 0.0, None, count)
    return Summary(time_ns, min(time_ns, math.exp(found[0])), max(time_ns, math.exp(found[1])), count)


def _near_nothing(times: Sequence[float], confidence: float) -> Summary:
    time_ns = max(0.0, trimmed_mean(times))
    found = interval(times, confidence)
    high_ns = None if found is None or found[1] <= 0 else max(time_ns, found[1])
    return Summary(time_ns, 0.0, high_ns, len(times))


def is_precise(batches: Sequence[Batch], half_width: float = 0.0025, confidence: float = 0.99) -> bool:
    """Whether the interval at this confidence reaches at most `half_width` of the time to either side.

    Never with fewer than `MIN_LOOK` batches. Looks only at the width: stopping on what a number says favours
    whatever luck brings first.
    """
    if len(batches) < MIN_LOOK:
        return False
    found = summarise(batches, confidence).half_width
    return found is not None and found <= half_width


def claimed_ns(timing: Timing) -> float | None:
    """The contestant's own events per call, 10 % trimmed mean, on the scale of the external clock. None without any.

    What they read in empty batches is subtracted, and `START_NS` added where those had an empty kernel in each place.
    """
    batches = timing.claimed or timing.batches
    claims = [claim for batch in batches for claim in batch.claims_ns]
    return trimmed_mean(claims) - (timing.empty_claim_ns or 0.0) + batches[0].start_ns if claims else None


# --- several cases -----------------------------------------------------------------------------------------


def score(cases: Sequence[Sequence[Batch]], confidence: float = 0.95) -> Summary:
    """The geometric mean of at least one case's time over its batches, with its interval.

    Over processes that timed all cases it is hierarchical: a process is right or wrong in all its cases together; and
    it covers as often as `confidence` says, whichever look ended the run (`looked`). A process that lost one of them
    (all its batches voided, or one not told from nothing) is left out; where only one is left of several, nothing
    bounds the score. In one process, cases are taken as independent (`geometric_mean`).
    """
    kept = [{each[0].process: each for each in by_process(counted(batches))} for batches in cases]
    several = any(len(by_process(batches)) > 1 for batches in cases)
    if not several:
        return geometric_mean([summarise(batches, confidence) for batches in cases])
    whole = sorted(
        number
        for number in set.intersection(*(set(each) for each in kept))
        if all(batch.per_call_ns > 0 for each in kept for batch in each[number])
    )
    if len(whole) < 2:
        found = geometric_mean([summarise(batches, confidence) for batches in cases])
        return Summary(found.time_ns, 0.0, None, found.batches)
    chosen = [[each[number] for number in whole] for each in kept]
    means = process_means(chosen)
    count = sum(len(each) for processes in chosen for each in processes)
    return _from_logs(trimmed_mean(means), interval(means, looked(confidence)), count)


def process_means(cases: Sequence[Sequence[Sequence[Batch]]]) -> list[float]:
    """Per process, the mean over the cases of the logarithm of its time (cases, processes, batches; all positive)."""
    return [
        statistics.fmean(trimmed_mean([math.log(batch.per_call_ns) for batch in case[index]]) for case in cases)
        for index in range(len(cases[0]))
    ]


def geometric_mean(summaries: Sequence[Summary]) -> Summary:
    """The geometric mean of at least one case's time, with its interval.

    Cases are taken as independent: distances to the ends of their intervals, in logs, add in quadrature and are
    divided by the number of cases, low ends and high ends apart. A case without a time leaves none to the mean,
    and only the mean of the high ends to bound it.
    """
    count = len(summaries)
    batches = sum(each.batches for each in summaries)
    times = [each.time_ns for each in summaries]
    highs = [each.high_ns for each in summaries if each.high_ns is not None]
    is_bounded = len(highs) == count
    if min(times) <= 0:
        return Summary(0.0, 0.0, math.exp(_mean_log(highs)) if is_bounded else None, batches)
    time_ns = math.exp(_mean_log(times))
    down = math.hypot(*(_log_ratio(time, each.low_ns) for time, each in zip(times, summaries, strict=True))) / count
    if not is_bounded:
        return Summary(time_ns, time_ns * math.exp(-down), None, batches)
    up = math.hypot(*(_log_ratio(high, time) for time, high in zip(times, highs, strict=True))) / count
    return Summary(time_ns, time_ns * math.exp(-down), time_ns * math.exp(up), batches)


def _mean_log(values: Sequence[float]) -> float:
    return statistics.fmean(math.log(value) for value in values)


def _log_ratio(larger: float, smaller: float) -> float:
    return math.log(larger / smaller) if smaller > 0 else math.inf


# --- estimates and their intervals -------------------------------------------------------------------------


def trimmed_mean(values: Sequence[float], share: float = 0.1) -> float:
    """The mean of what is left after dropping `share` of the values at each end (rounded down, so 0 of 9)."""
    return statistics.fmean(sorted(values)[_kept(len(values), share)])


def _kept(count: int, share: float = 0.1) -> slice:
    cut = int(count * share)
    return slice(cut, count - cut)


def interval(values: Sequence[float], confidence: float) -> Interval | None:
    """A two-sided interval for the 10 % trimmed mean of independent values; None for fewer than two.

    Up to 7 values: mean -+ t * s / sqrt(n). From 8 on: percentile bootstrap, its distances from the estimate
    stretched by t / z * sqrt(n / (n - 1)), with as many degrees of freedom as values are kept, less one. A plain
    percentile interval is too narrow by just that when values are few (Hesterberg, "What Teachers Should Know
    About the Bootstrap", The American Statistician 69 (2015), section 3.1).
    """
    count = len(values)
    if count < 2:
        return None
    middle = trimmed_mean(values)
    if count < MIN_BATCHES:
        return t_interval(values, confidence)
    kept = _kept(count)
    low, high = percentiles(resampled_means(values), confidence)
    normal = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    stretch = student_t(confidence, kept.stop - kept.start - 1) / normal * math.sqrt(count / (count - 1))
    return middle - (middle - low) * stretch, middle + (high - middle) * stretch


def hierarchical_interval(groups: Sequence[Sequence[float]], confidence: float) -> Interval | None:
    """A two-sided interval for the mean of the groups' trimmed means (groups: processes; values: their batches).

    Groups are drawn, the values of a drawn group are all kept: that is `interval` of the groups' means. Drawing
    again within the groups counts the scatter of batches twice (Davison and Hinkley, "Bootstrap Methods and their
    Application" (1997), section 3.8); simulated with 3 groups of 6, 95 % intervals made so covered 99 to 100 %.
    One group: the interval of its values.
    """
    if len(groups) == 1:
        return interval(groups[0], confidence)
    return interval([trimmed_mean(values) for values in groups], confidence)


def looked(confidence: float) -> float:
    """What to ask of an interval between processes, so that it covers `confidence` after a run that ended on its width.

    Such a run ends when its values happen to lie close together, which is when an interval misses: half of the errors
    is left for that. Simulated with normal values of every spread, looks at `LOOKS` up to 12 or 24 and a run ended by
    this interval's own width, what is called 95 % covers 94.5 % at the least. A plain 95 % interval covers 90 % at the
    least where every count is a look, and 91 % where the run ends on one of 99 %: that only moves the worst spread.
    """
    return (1 + confidence) / 2


def t_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """Student's interval for the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    margin = student_t(confidence, len(values) - 1) * standard_error(values)
    middle = statistics.fmean(values)
    return middle - margin, middle + margin


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values."""
    return statistics.stdev(values) / math.sqrt(len(values))


def p_value(values: Sequence[float]) -> float:
    """Student's two-sided test of a mean of zero; 1 for fewer than two values."""
    if len(values) < 2:
        return 1.0
    error, middle = standard_error(values), statistics.fmean(values)
    if error == 0:
        return 1.0 if middle == 0 else 0.0
    freedom = len(values) - 1
    return 1 - _within_angle(math.atan(abs(middle) / error / math.sqrt(freedom)), freedom)


def holm(p_values: Sequence[float], level: float = 0.05) -> list[tuple[bool, float]]:
    """For each test, whether it is rejected, and the level it was held against, all of them together at `level`.

    Step down: the smallest p against level / m, the next against level / (m - 1), … until one is not rejected; all
    further ones are not either, and are held against that last level (S. Holm, Scandinavian Journal of Statistics 6
    (1979), 65-70).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    found: list[tuple[bool, float]] = [(False, level)] * len(p_values)
    held, rejecting = level, True
    for step, index in enumerate(order):
        held = level / (len(order) - step) if rejecting else held
        rejecting = rejecting and p_values[index] <= held
        found[index] = (rejecting, held)
    return found


def resampled_means(values: Sequence[float]) -> list[float]:
    """The 10 % trimmed means of `RESAMPLES` resamples of at least two values, in the order drawn."""
    ordered = sorted(values)
    kept = _kept(len(ordered))
    count = kept.stop - kept.start
    return [sum(pick(ordered)) / count for pick in _picks(len(ordered))]


@functools.lru_cache(maxsize=64)
def _picks(count: int) -> tuple[Callable[[Sequence[float]], tuple[float, ...]], ...]:
    """What resamples of `count` ordered values keep. Drawn once per count: ordered ranks are ordered values."""
    draw = random.Random(count)
    kept = _kept(count)
    ranks = range(count)
    return tuple(itemgetter(*sorted(draw.choices(ranks, k=count))[kept]) for _ in range(RESAMPLES))


def percentiles(values: Sequence[float], confidence: float) -> Interval:
    """The two values that leave out (1 - confidence) / 2 of at least one value at each end, rounded outwards."""
    ordered = sorted(values)
    out = int(len(ordered) * (1 - confidence) / 2 + 1e-9)
    return ordered[out], ordered[len(ordered) - 1 - out]


@functools.lru_cache(maxsize=256)
def student_t(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t: P(|T| <= it) = confidence, for `freedom` >= 1 degrees of freedom.

    Bisection of the finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _within_angle(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.tan(high) * math.sqrt(freedom)


def _within_angle(angle: float, freedom: int) -> float:
    """P(|T| <= tan(angle) * sqrt(freedom))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for k in range(2 if is_odd else 1, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return (angle + sine * total) * 2 / math.pi if is_odd else sine * total
