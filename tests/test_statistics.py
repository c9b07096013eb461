"""Numbers from readings, against values worked out by hand and distributions whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from records import batch, timing

from harness.record import Batch, Timing
from harness.statistics import (
    Summary,
    claimed_ns,
    geometric_mean,
    hierarchical_interval,
    holm,
    interval,
    is_precise,
    p_value,
    percentiles,
    resampled_means,
    score,
    student_t,
    summarise,
    t_interval,
    trimmed_mean,
)


def batches(times_ns: Sequence[float], calls: int = 1000) -> list[Batch]:
    return [batch(time, calls) for time in times_ns]


# --- the mean ----------------------------------------------------------------------------------------------


def test_a_trimmed_mean_drops_a_tenth_at_each_end() -> None:
    assert trimmed_mean([1000, 1, 2, 3, 4, 5, 6, 7, 8, -500]) == 4.5
    assert trimmed_mean([5, 1, 9, 3], share=0.25) == 4.0


def test_nine_values_are_too_few_to_trim_a_tenth() -> None:
    assert trimmed_mean([0, 0, 0, 0, 0, 0, 0, 0, 9]) == 1.0


# --- one case ----------------------------------------------------------------------------------------------


def test_the_time_of_a_case_is_a_geometric_mean() -> None:
    assert summarise(batches([100, 400])).time_ns == pytest.approx(200)
    ten = [1.0, 100, 100, 100, 100, 400, 400, 400, 400, 1e6]
    assert summarise(batches(ten)).time_ns == pytest.approx(200)


def test_an_empty_batch_beside_it_is_subtracted() -> None:
    readings = [Batch(4, 1400, 1000), Batch(4, 1800, 1400)]
    assert summarise(readings).time_ns == pytest.approx(100)


def test_few_batches_get_student_s_t_on_their_logs() -> None:
    found = summarise(batches([100, 110, 121]))
    margin = 4.302653 * math.log(1.1) / math.sqrt(3)
    assert found.time_ns == pytest.approx(110)
    assert found.low_ns == pytest.approx(110 * math.exp(-margin), rel=1e-6)
    assert found.high_ns == pytest.approx(110 * math.exp(margin), rel=1e-6)
    assert found.high_ns == pytest.approx(139.39, abs=0.01)
    assert found.batches == 3


def test_a_single_batch_bounds_nothing() -> None:
    found = summarise(batches([100]))
    assert found == Summary(pytest.approx(100), 0.0, None, 1)
    assert found.half_width is None


def test_batches_that_agree_have_no_width() -> None:
    found = summarise(batches([250.0] * 8))
    assert (found.low_ns, found.high_ns) == (pytest.approx(250), pytest.approx(250))
    assert found.half_width == pytest.approx(0, abs=1e-12)


def test_the_same_readings_in_any_order_give_the_same_numbers() -> None:
    draw = random.Random(5)
    times = [draw.lognormvariate(9, 0.01) for _ in range(24)]
    first = summarise(batches(times))
    draw.shuffle(times)
    assert summarise(batches(times)) == first


def test_half_a_width_is_a_share_of_the_time() -> None:
    assert Summary(200.0, 190.0, 214.0, 8).half_width == pytest.approx(0.06)


# --- readings that are no longer than nothing ----------------------------------------------------------------


def test_a_batch_faster_than_its_empty_one_makes_the_low_end_zero_and_the_mean_arithmetic() -> None:
    found = summarise(batches([-2.0, 4.0, 10.0]))
    assert found.time_ns == pytest.approx(4.0)
    assert found.low_ns == 0.0
    assert found.high_ns == pytest.approx(4 + 4.302653 * 6 / math.sqrt(3), rel=1e-6)


def test_a_reading_of_exactly_nothing_has_no_logarithm_either() -> None:
    assert summarise(batches([0.0, 3.0, 6.0])).time_ns == pytest.approx(3.0)


def test_mostly_negative_readings_say_only_how_long_it_is_at_most() -> None:
    found = summarise(batches([-5.0, -4.0, 3.0]))
    assert (found.time_ns, found.low_ns) == (0.0, 0.0)
    assert found.high_ns == pytest.approx(-2 + 4.302653 * math.sqrt(19) / math.sqrt(3), rel=1e-6)
    assert found.half_width is None


def test_readings_that_are_all_clearly_negative_say_nothing() -> None:
    assert summarise(batches([-100.0] * 9)) == Summary(0.0, 0.0, None, 9)


# --- intervals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    [
        (0.95, 1, 12.7062), (0.95, 2, 4.3027), (0.95, 3, 3.1824), (0.95, 7, 2.3646), (0.95, 30, 2.0423),
        (0.99, 1, 63.6567), (0.99, 2, 9.9248), (0.99, 7, 3.4995), (0.90, 10, 1.8125), (0.95, 120, 1.9799),
    ],
)  # fmt: skip
def test_student_s_t_is_the_table_s(confidence: float, freedom: int, quantile: float) -> None:
    assert student_t(confidence, freedom) == pytest.approx(quantile, abs=6e-5)


def test_percentiles_leave_out_as_many_at_each_end() -> None:
    assert percentiles(range(1000), 0.95) == (25, 974)
    assert percentiles(range(1000), 0.99) == (5, 994)
    assert percentiles([7.0], 0.95) == (7.0, 7.0)


def test_resampled_means_scatter_like_a_mean_does() -> None:
    draw = random.Random(2)
    values = [draw.gauss(0, 1) for _ in range(64)]
    means = resampled_means(values)
    spread = math.sqrt(sum((mean - trimmed_mean(values)) ** 2 for mean in means) / len(means))
    assert len(means) == 1000
    assert spread == pytest.approx(1 / 8, rel=0.25)
    assert resampled_means(values) == means


def test_an_interval_of_one_value_is_none() -> None:
    assert interval([3.0], 0.95) is None


DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 1),
    "flat": lambda draw: draw.uniform(-1, 1),
    "peaked": lambda draw: draw.expovariate(1) * draw.choice((-1, 1)),
    "two clock states": lambda draw: draw.choice((-1, 1)) + draw.gauss(0, 0.1),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("count", "least"), [(5, 0.90), (8, 0.92), (12, 0.92), (24, 0.92)])
def test_intervals_cover_the_truth_as_often_as_they_say(name: str, count: int, least: float) -> None:
    draw = random.Random(f"{name} {count}")
    tries = 400
    found = [interval([DISTRIBUTIONS[name](draw) for _ in range(count)], 0.95) for _ in range(tries)]
    covered = sum(each is not None and each[0] <= 0 <= each[1] for each in found) / tries
    assert least <= covered <= 0.985


def test_a_higher_confidence_is_wider() -> None:
    draw = random.Random(3)
    for count in (4, 16):
        values = [draw.gauss(0, 1) for _ in range(count)]
        narrow, wide = interval(values, 0.95), interval(values, 0.99)
        assert narrow is not None and wide is not None
        assert wide[0] < narrow[0] < narrow[1] < wide[1]


# --- when to stop ------------------------------------------------------------------------------------------


def test_seven_batches_are_never_precise() -> None:
    assert not is_precise(batches([100.0] * 3))
    assert is_precise(batches([100.0] * 4))


def test_precision_is_the_width_at_99_percent() -> None:
    times = [1000 * (1 + (0.001 if index % 2 else -0.001)) for index in range(16)]
    width = summarise(batches(times), 0.99).half_width
    assert width is not None
    assert is_precise(batches(times), half_width=width * 1.001)
    assert not is_precise(batches(times), half_width=width * 0.999)


def test_precision_asks_how_wide_and_never_what() -> None:
    draw = random.Random(11)
    times = [draw.gauss(1e5, 250) for _ in range(24)]
    answers = {is_precise(batches([time * scale for time in times])) for scale in (0.01, 1, 100)}
    assert len(answers) == 1


def test_readings_near_nothing_are_never_precise() -> None:
    assert not is_precise(batches([0.0] + [100.0] * 63))


# --- claims ------------------------------------------------------------------------------------------------


def test_a_claim_is_a_trimmed_mean_less_what_events_read_around_nothing() -> None:
    claims = Batch(5, 10_000, 1, (11.0, 12.0, 13.0, 14.0, 900.0)), Batch(5, 10_000, 1, (11.0, 12.0, 13.0, 14.0, 1.0))
    assert claimed_ns(Timing(claims, 2.5)) == pytest.approx(10.0)
    assert claimed_ns(Timing(claims)) == pytest.approx(12.5)
    assert claimed_ns(timing(5000.0, claimed=0.9)) == pytest.approx(4500.0)


def test_without_events_there_is_no_claim() -> None:
    assert claimed_ns(Timing((batch(100.0),), 2.5)) is None


# --- several cases -----------------------------------------------------------------------------------------


def test_the_score_is_the_geometric_mean_and_its_interval_adds_in_quadrature() -> None:
    three = Summary(100.0, 100 * math.exp(-0.03), 100 * math.exp(0.03), 8)
    four = Summary(400.0, 400 * math.exp(-0.04), 400 * math.exp(0.08), 12)
    found = geometric_mean([three, four])
    assert found.time_ns == pytest.approx(200)
    assert found.low_ns == pytest.approx(200 * math.exp(-0.05 / 2))
    assert found.high_ns == pytest.approx(200 * math.exp(math.hypot(0.03, 0.08) / 2))
    assert found.batches == 20


def test_the_score_of_one_case_is_its_time() -> None:
    only = Summary(100.0, 90.0, 120.0, 8)
    found = geometric_mean([only])
    assert (found.time_ns, found.low_ns, found.high_ns) == pytest.approx((100.0, 90.0, 120.0))


def test_a_case_that_may_take_no_time_takes_the_low_end_to_zero() -> None:
    found = geometric_mean([Summary(100.0, 0.0, 200.0, 8), Summary(100.0, 90.0, 110.0, 8)])
    assert (found.time_ns, found.low_ns) == (pytest.approx(100), 0.0)
    assert found.high_ns is not None and math.isfinite(found.high_ns)


def test_a_case_without_a_time_leaves_the_score_only_a_bound() -> None:
    found = geometric_mean([Summary(0.0, 0.0, 25.0, 8), Summary(100.0, 90.0, 400.0, 8)])
    assert (found.time_ns, found.low_ns, found.high_ns) == (0.0, 0.0, pytest.approx(100.0))
    assert geometric_mean([Summary(0.0, 0.0, None, 8), Summary(100.0, 90.0, 400.0, 8)]).high_ns is None


def test_a_case_without_a_bound_leaves_the_score_without_one() -> None:
    found = geometric_mean([Summary(100.0, 0.0, None, 1), Summary(400.0, 390.0, 410.0, 8)])
    assert (found.time_ns, found.low_ns, found.high_ns) == (pytest.approx(200), 0.0, None)


# --- several processes ---------------------------------------------------------------------------------------


def in_processes(*processes: Sequence[float]) -> list[Batch]:
    return [
        Batch(1000, round(1000 * time) + 7, 7, process=number)
        for number, times in enumerate(processes)
        for time in times
    ]


def test_the_interval_comes_from_the_processes_and_not_from_their_batches() -> None:
    found = summarise(in_processes([100.0] * 50, [110.0] * 50, [121.0] * 50))
    margin = 6.205347 * math.log(1.1) / math.sqrt(3)
    assert found.time_ns == pytest.approx(110.0)  # the quantile of 97.5 %: half of the errors is left to the looks
    assert found.low_ns == pytest.approx(110.0 * math.exp(-margin), rel=1e-5)
    assert found.high_ns == pytest.approx(110.0 * math.exp(margin), rel=1e-5)


@pytest.mark.parametrize(
    ("processes", "between", "within"), [(3, 1.0, 1.0), (3, 0.2, 1.0), (5, 1.0, 0.2), (12, 1.0, 1.0)]
)
def test_the_interval_between_processes_covers_the_truth_as_often_as_it_says(
    processes: int, between: float, within: float
) -> None:
    draw = random.Random(processes)

    def groups() -> list[list[float]]:
        offsets = [draw.gauss(0, between) for _ in range(processes)]
        return [[offset + draw.gauss(0, within) for _ in range(4)] for offset in offsets]

    found = [hierarchical_interval(groups(), 0.95) for _ in range(1000)]
    covered = sum(low <= 0 <= high for low, high in (each for each in found if each is not None))
    assert 930 <= covered <= 985


def test_what_a_process_does_to_all_its_cases_does_not_average_out_over_them() -> None:
    """Four cases, each off by the same share in the same process: the score is no surer than one case."""
    offsets = (1.0, 1.1, 1.21)
    cases = [in_processes(*([time * offset] * 4 for offset in offsets)) for time in (100.0, 200.0, 400.0, 800.0)]
    whole, single = score(cases), summarise(cases[0])
    assert whole.time_ns == pytest.approx(110.0 * 2**1.5)
    assert whole.half_width == pytest.approx(single.half_width)
    independent = geometric_mean([summarise(each) for each in cases])
    assert independent.half_width is not None and whole.half_width is not None
    assert whole.half_width > 1.8 * independent.half_width


def test_a_process_that_lost_a_case_is_left_out_and_the_interval_stays_one_between_processes() -> None:
    offsets = (1.0, 1.1, 1.21, 1.331)
    cases = [in_processes(*([time * offset] * 2 for offset in offsets)) for time in (100.0, 200.0, 400.0, 800.0)]
    lost = [cases[0][:6] + [Batch(1000, 999_007, 7, process=3, is_voided=True)] * 2, *cases[1:]]
    three = [[batch for batch in case if batch.process < 3] for case in cases]
    assert score(lost) == score(three)
    nothing = [cases[0][:6] + [Batch(1000, 7, 7, process=3)] * 2, *cases[1:]]
    assert score(nothing) == score(three)
    alone = score([cases[0][:4], cases[1][2:]])
    assert alone.half_width is None and alone.high_ns is None


def test_voided_batches_count_nowhere_unless_nothing_else_is_left() -> None:
    voided = [Batch(1000, 999_007, 7, is_voided=True)] * 3
    assert summarise([*in_processes([100.0] * 4), *voided]).time_ns == pytest.approx(100.0)
    assert summarise(voided).time_ns == pytest.approx(999.0)


# --- tests of a difference -----------------------------------------------------------------------------------


def test_p_values_against_tables() -> None:
    # t = 2.0 with 4 degrees of freedom: p = 0.1161; t = 4.302653 with 2: p = 0.05.
    five = [2.0 / math.sqrt(5) * math.sqrt(2.5) + each for each in (-2, -1, 0, 1, 2)]
    assert p_value(five) == pytest.approx(0.1161, abs=1e-4)
    three = [4.302653 / math.sqrt(3) + each for each in (-1, 0, 1)]
    assert p_value(three) == pytest.approx(0.05, abs=1e-6)
    assert (p_value([1.0]), p_value([0.0, 0.0]), p_value([1.0, 1.0])) == (1.0, 1.0, 0.0)


def test_the_interval_and_the_test_say_the_same() -> None:
    values = [0.3, 0.5, 0.1, 0.6]
    edge = t_interval(values, 1 - p_value(values))
    assert edge is not None
    assert edge[0] == pytest.approx(0.0, abs=1e-9)


def test_holm_by_hand() -> None:
    # 0.01 <= 0.05/4, 0.014 <= 0.05/3, 0.03 > 0.05/2: from there on nothing is rejected.
    found = holm([0.03, 0.01, 0.04, 0.014])
    assert [rejected for rejected, _ in found] == [False, True, False, True]
    assert [level for _, level in found] == pytest.approx([0.025, 0.0125, 0.025, 0.05 / 3])
    assert holm([0.04]) == [(True, 0.05)]
    assert holm([]) == []


def test_holm_keeps_the_share_of_false_alarms_among_many() -> None:
    draw = random.Random(3)
    alarms = sum(any(rejected for rejected, _ in holm([draw.random() for _ in range(10)])) for _ in range(2000))
    assert 60 <= alarms <= 140
