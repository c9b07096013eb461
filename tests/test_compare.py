"""Who is faster, and is that real? Verdicts on samples whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from records import spec

from harness.compare import (
    CaseSamples,
    Entry,
    Question,
    answer,
    is_settled,
    judge_control,
    judge_pairs,
    pairings,
    question_of,
    standings,
)
from harness.record import Batch, Outcome, TimingClass

PASSED = Outcome("passed")


def samples(per_call_ns: Sequence[Sequence[float]], void: set[tuple[int, int]] = frozenset()) -> tuple[Batch, ...]:  # type: ignore[assignment]
    """Batches of a thousand calls, by heat and block."""
    return tuple(
        Batch(1000, round(1000 * each) + 7, 7, process=heat, block=block, is_voided=(heat, block) in void)
        for heat, blocks in enumerate(per_call_ns)
        for block, each in enumerate(blocks)
    )


def entry(
    label: str,
    *cases: Sequence[Sequence[float]],
    outcome: Outcome = PASSED,
    timing_class: TimingClass = "gated",
) -> Entry:
    own = tuple(
        CaseSamples(f"m={index}", spec(index), outcome, timing_class, samples(each)) for index, each in enumerate(cases)
    )
    return Entry(label, label, "00", None, outcome, timing_class, own)


def level(time_ns: float, *heats: float, blocks: int = 4) -> list[list[float]]:
    """The same in every block of a heat, each heat off by a share of its own."""
    return [[time_ns * (1 + share)] * blocks for share in heats]


STEADY = (0.0, 0.001, -0.001)


def verdict(first: Entry, second: Entry) -> str:
    return judge_pairs([first, second])[0].overall.verdict


def test_blocks_are_paired_and_the_voided_left_out() -> None:
    first = samples([[100.0, 110.0], [100.0]])
    second = samples([[50.0, 55.0, 60.0], [200.0]], void={(1, 0)})
    assert [len(heat) for heat in pairings(first, second).values()] == [2]
    assert pairings(first, second)[0] == pytest.approx((0.6931, 0.6931), abs=1e-4)


def test_what_drifts_for_both_cancels() -> None:
    drift = [[100.0, 130.0, 170.0, 90.0], [200.0, 210.0, 150.0, 99.0], [80.0, 99.0, 120.0, 130.0]]
    first = entry("a", drift)
    second = entry("b", [[each * 1.02 for each in heat] for heat in drift])
    (pair,) = judge_pairs([first, second])
    assert pair.overall.verdict == "FASTER"
    assert pair.overall.ratio == pytest.approx(1 / 1.02, rel=1e-4)
    assert (pair.overall.heats, pair.overall.blocks) == (3, 12)


def test_faster_and_slower_are_of_the_first_against_the_second() -> None:
    fast, slow = entry("fast", level(10_000, *STEADY)), entry("slow", level(10_200, 0.0, 0.0, 0.0))
    assert verdict(fast, slow) == "FASTER"
    assert verdict(slow, fast) == "SLOWER"


def test_a_sure_difference_below_a_quarter_percent_is_a_tie() -> None:
    first = entry("a", level(10_000_000, 0.0, 0.0, 0.0))
    second = entry("b", level(10_020_000, 0.0, 0.00001, -0.00001))
    assert verdict(first, second) == "TIE"


def test_a_tie_must_be_shown_and_is_not_what_noise_leaves() -> None:
    noisy = entry("b", level(10_000, 0.02, -0.02, 0.001))
    (pair,) = judge_pairs([entry("a", level(10_000, 0.0, 0.0, 0.0)), noisy])
    assert pair.overall.verdict == "UNRESOLVED"
    assert pair.overall.more_blocks is not None and pair.overall.more_blocks > 12
    assert pair.overall.low is not None and pair.overall.high is not None
    assert pair.overall.low < 1 < pair.overall.high


def test_one_heat_resolves_nothing() -> None:
    (pair,) = judge_pairs([entry("a", level(100, 0.0)), entry("b", level(200, 0.0))])
    assert (pair.overall.verdict, pair.overall.low, pair.overall.more_blocks) == ("UNRESOLVED", None, None)


def test_a_kernel_that_failed_or_another_clock_makes_a_pair_invalid() -> None:
    good = entry("good", level(100, *STEADY))
    dead = entry("dead", level(100, *STEADY), outcome=Outcome("crashed", "SIGSEGV"))
    waits = entry("waits", level(100, *STEADY), timing_class="host-synchronising")
    pairs = {(pair.first, pair.second): pair.overall for pair in judge_pairs([good, dead, waits])}
    assert {ratio.verdict for ratio in pairs.values()} == {"INVALID"}
    assert pairs["good", "dead"].reason == "dead crashed: SIGSEGV"
    assert "no common scale" in pairs["good", "waits"].reason


def test_clocks_are_held_against_each_other_case_by_case() -> None:
    """Each waits for the GPU on one case, and not on the same one."""
    first, second = (entry(label, *[level(100, *STEADY)] * 3, timing_class="host-synchronising") for label in "ab")
    first = replace(
        first, cases=tuple(replace(each, timing_class="gated") for each in first.cases[:2]) + first.cases[2:]
    )
    second = replace(
        second, cases=(second.cases[0], *(replace(each, timing_class="gated") for each in second.cases[1:]))
    )
    (pair,) = judge_pairs([first, second])
    assert [ratio.verdict for _, ratio in pair.cases] == ["INVALID", "TIE", "INVALID"]
    assert pair.overall.verdict == "INVALID"
    assert pair.overall.reason.startswith("on m=0, a is timed as gated, b as host-synchronising: ")
    assert pair.cases[2][1].reason.startswith("on m=2, a is timed as host-synchronising, b as gated: ")
    assert is_settled([first, second], 0.0025)  # no further heat would help


def test_a_case_without_a_block_left_is_named_and_waited_for() -> None:
    first, second = (entry(label, level(100, *STEADY), level(100, *STEADY)) for label in "ab")
    gone = replace(second.cases[1], batches=tuple(replace(each, is_voided=True) for each in second.cases[1].batches))
    second = replace(second, cases=(second.cases[0], gone))
    (pair,) = judge_pairs([first, second])
    assert [ratio.verdict for _, ratio in pair.cases] == ["TIE", "INVALID"]
    assert pair.overall.reason == "on m=1, every block was voided: the referee's own kernels moved"
    assert not is_settled([first, second], 0.0025)


def test_a_doubt_about_the_run_makes_everything_invalid() -> None:
    both = [entry("a", level(100, *STEADY)), entry("b", level(200, *STEADY))]
    (pair,) = judge_pairs(both, "another process used the GPU during 31 % of the batches")
    assert (pair.overall.verdict, pair.cases[0][1].verdict) == ("INVALID", "INVALID")
    assert "31 %" in pair.overall.reason


def test_cases_have_verdicts_of_their_own_beside_the_geometric_mean_s() -> None:
    first = entry("a", level(1000, 0.0, 0.0, 0.0), level(1000, *STEADY))
    second = entry("b", level(1100, *STEADY), level(900, 0.0, 0.0, 0.0))
    (pair,) = judge_pairs([first, second])
    assert [(name, ratio.verdict) for name, ratio in pair.cases] == [("m=0", "FASTER"), ("m=1", "SLOWER")]
    assert pair.overall.ratio == pytest.approx((1000 / 1100 * 1000 / 900) ** 0.5, rel=1e-3)


def test_many_pairs_are_held_to_more_than_one_is() -> None:
    """Two heats apart by a margin that passes alone at 5 % and not among six."""
    close = Question((0.010, 0.012, 0.0065, 0.0155), blocks=4)
    alone = answer([close])[0]
    assert alone.verdict == "FASTER" or alone.verdict == "SLOWER"
    noise = [Question((0.01, -0.01, 0.012, -0.012), blocks=4)] * 20
    crowded = answer([close, *noise])[0]
    assert crowded.verdict == "UNRESOLVED"
    assert crowded.low is not None and alone.low is not None and crowded.low < alone.low


def test_overall_verdicts_do_not_pay_for_the_number_of_cases() -> None:
    close = [[100 * (1 + share)] * 2 for share in (0.010, 0.012, 0.0065, 0.0155)]
    same = level(100, 0.0, 0.0, 0.0, 0.0)
    one, many = (judge_pairs([entry("a", *[close] * count), entry("b", *[same] * count)])[0] for count in (1, 10))
    assert one.overall == replace(many.overall, blocks=one.overall.blocks)
    assert one.overall.verdict == one.cases[0][1].verdict == "SLOWER"
    assert many.overall.verdict == "SLOWER"
    assert {ratio.verdict for _, ratio in many.cases} == {"UNRESOLVED"}


def test_any_of_ten_equal_cases_is_seldom_called_different() -> None:
    """Held to 5 % each, 38 % of such comparisons called at least one of them faster or slower."""
    draw = random.Random(12)

    def one(label: str) -> Entry:
        return entry(label, *([[draw.gauss(20_000, 200)] for _ in range(4)] for _ in range(10)))

    pairs = [judge_pairs([one("a"), one("b")])[0] for _ in range(300)]
    alarms = sum(any(ratio.verdict in ("FASTER", "SLOWER") for _, ratio in pair.cases) for pair in pairs)
    assert alarms <= 18


def test_ranks_are_ranges_where_kernels_are_not_told_apart() -> None:
    entries = [
        entry("slow", level(2000, *STEADY)),
        entry("a", level(1000, 0.0, 0.0, 0.0)),
        entry("b", level(1001, 0.0, 0.0, 0.0)),
        entry("dead", level(1, *STEADY), outcome=Outcome("wrong", "off")),
    ]
    found = standings(entries, judge_pairs(entries))
    assert [(each.label, each.rank, each.rank_to) for each in found] == [
        ("a", 1, 2),
        ("b", 1, 2),
        ("slow", 3, 3),
        ("dead", None, None),
    ]
    assert found[0].time_ns == pytest.approx(1000.0)


def test_settled_looks_at_the_width_and_not_at_what_it_says() -> None:
    wide = level(1000, 0.01, -0.01, 0.0)
    same, far = entry("same", level(1000, 0.0, 0.0, 0.0)), entry("far", level(5000, 0.0, 0.0, 0.0))
    assert not is_settled([entry("a", wide), same], 0.0025)
    assert not is_settled([entry("a", wide), far], 0.0025)
    assert is_settled([same, far], 0.0025)
    more = [entry(label, [[100.0]] * 5) for label in "ab"]
    assert not is_settled(more, 0.0025)  # five heats are no look


def settled(draw: random.Random, difference: float, spread: float, precision: float) -> Question:
    """Heats of two kernels as the referee adds them, until they are settled: `spread` is that of their difference."""
    times = [100_000 * math.exp(draw.gauss(difference, spread)) for _ in range(12)]
    for count in range(3, 13):
        first = entry("a", [[each] for each in times[:count]])
        second = entry("b", [[100_000.0]] * count)
        if count == 12 or is_settled([first, second], precision):
            return question_of(first, second)
    raise AssertionError


def test_heats_that_end_on_an_interval_s_width_leave_it_true() -> None:
    """Asked after every heat, and for a plain interval of 95 %, 91 % held the truth and 9 % of equal pairs differed."""
    draw = random.Random(8)
    found = [answer([settled(draw, 0.0, 0.0075, 0.005)])[0] for _ in range(800)]
    covered = sum(each.low is not None and each.high is not None and each.low <= 1 <= each.high for each in found)
    false = sum(each.verdict in ("FASTER", "SLOWER") for each in found)
    assert covered >= 752
    assert false <= 48


def test_a_difference_that_only_just_counts_is_hardly_ever_called_the_wrong_way_round() -> None:
    draw = random.Random(9)
    found = [answer([settled(draw, 0.003, 0.0075, 0.005)])[0].verdict for _ in range(500)]
    assert found.count("FASTER") <= 5
    assert found.count("SLOWER") >= 25


def test_the_hidden_copy_cries_wolf_about_once_in_a_hundred() -> None:
    draw = random.Random(7)

    def heats() -> list[list[float]]:
        return [[20_000 * (1 + offset + draw.gauss(0, 0.003)) for _ in range(4)]
                for offset in (draw.gauss(0, 0.004) for _ in range(4))]  # fmt: skip

    verdicts = [judge_control(entry("a", heats()), entry("copy", heats())).verdict for _ in range(600)]
    assert sum(each in ("FASTER", "SLOWER") for each in verdicts) <= 15


def test_a_true_difference_is_called_right_and_its_twin_seldom_anything() -> None:
    draw = random.Random(11)

    def heats(time_ns: float) -> list[list[float]]:
        return [[time_ns * (1 + offset + draw.gauss(0, 0.003)) for _ in range(4)]
                for offset in (draw.gauss(0, 0.001) for _ in range(5))]  # fmt: skip

    right = [verdict(entry("a", heats(20_000)), entry("b", heats(20_200))) for _ in range(200)]
    assert right.count("FASTER") >= 180 and right.count("SLOWER") == 0
    same = [verdict(entry("a", heats(20_000)), entry("b", heats(20_000))) for _ in range(400)]
    assert sum(each in ("FASTER", "SLOWER") for each in same) <= 30  # 5 % of 400, with room for luck


def test_a_question_over_all_cases_needs_heats_that_have_them_all() -> None:
    first = entry("a", level(100, 0.0, 0.0, 0.0), level(100, 0.0, 0.0))
    second = entry("b", level(100, 0.0, 0.0, 0.0), level(100, 0.0, 0.0))
    assert len(question_of(first, second).means) == 2
    assert len(question_of(first, second, case=0).means) == 3
