"""Who stands where on which board, from hand-written records."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from records import CPU, H200, MI355X, batch, case, cases, judgement, record, spec, submission, timing

from harness.record import Doubt, Record, Timing, from_dict, to_dict
from leaderboard.clearance import Clearance
from leaderboard.ranking import Board, BoardKey, Score, rank, score, utc


def entry(name: str, *times_ns: float, spread: float = 0.001, **changes: object) -> Record:
    """`name`'s entry with these times; an interval of about +- 0.9 spreads of each."""
    changes.setdefault("by", submission(f"{name}.py", author=name))
    return record(f"id-{name}", cases(*times_ns, spread=spread), **changes)  # type: ignore[arg-type]


def only_board(records: Sequence[Record | Score]) -> Board:
    (board,) = rank(records)
    return board


def places(board: Board) -> list[tuple[str, int, int]]:
    return [(row.score.author, row.rank, row.rank_to) for row in board.rows]


# --- scores ------------------------------------------------------------------------------------------------


def test_a_score_is_the_geometric_mean_over_the_timed_cases() -> None:
    found = score(record(results=cases(100_000.0, 400_000.0, spread=0.0)))
    assert found is not None
    assert found.time.time_ns == pytest.approx(200_000)
    assert [each.spec for each in found.cases] == [
        {"m": 16, "n": 2112, "k": 7168},
        {"m": 32, "n": 2112, "k": 7168},
    ]
    assert found.board == BoardKey("fp4_gemm", "9d1c0b7a55e2", "NVIDIA H200", "gated")


def test_the_light_share_is_a_geometric_mean_too() -> None:
    one = case(spec(16), timing(1000.0, roofline_ns=900.0))
    two = case(spec(32), timing(1000.0, roofline_ns=100.0))
    found = score(record(results=[one, two]))
    assert found is not None and found.light_share == pytest.approx(0.3, rel=1e-4)
    without = score(record(results=[one, case(spec(32), timing(1000.0))]))
    assert without is not None and without.light_share is None


def test_the_matched_precisions_are_those_of_the_timed_cases_by_name() -> None:
    def at(m: int, precision: str | None) -> object:
        return case(spec(m), timing(1000.0), judged=judgement(precision=precision))

    results = [case(judged=judgement(precision="bf16")), at(16, "mxfp4"), at(32, "fp8"), at(64, "mxfp4"), at(128, None)]
    found = score(record(results=results))  # type: ignore[arg-type]
    assert found is not None and found.precisions == ("fp8", "mxfp4")


def test_what_may_not_be_ranked_has_no_score() -> None:
    failed = case(spec(32), verdict="wrong", message="row 3 is off")
    for unranked in (
        record(mode="benchmark"),
        record(mode="test"),
        record(results=[case(spec(16), timing(1000.0)), failed]),
        record(results=[case()]),
    ):
        assert score(unranked) is None
        assert rank([unranked]) == []


def test_a_doubt_keeps_a_score_off_the_board_until_it_is_cleared() -> None:
    doubts: tuple[Doubt, ...] = ("clocks-disagree", "async-work")
    doubted = record(results=[case(spec(16), timing(1000.0), doubts=doubts)])
    found = score(doubted)
    assert found is not None
    first, second = (Clearance(each, "the driver's", "ada", "2026-12-03T09:10:11+00:00") for each in doubts)
    ranked = {kept: rank([replace(found, clearances=kept)]) for kept in ((), (first,), (first, second))}
    assert [len(boards) for boards in ranked.values()] == [0, 0, 1]
    assert rank([doubted]) == []
    cleared = replace(found, clearances=(first, second))
    assert from_dict(Score, json.loads(json.dumps(to_dict(cleared)))) == cleared


def test_a_score_goes_to_json_and_comes_back() -> None:
    for results in (cases(8212.0, 28585.0), [case(spec(16), Timing((batch(100.0),)))]):
        found = score(record(results=results))
        assert from_dict(Score, json.loads(json.dumps(to_dict(found), allow_nan=False))) == found


def test_boards_of_scores_are_boards_of_their_records() -> None:
    records = [entry("ada", 100.0), entry("bob", 90.0), entry("cyd", 300.0, device=MI355X)]
    scores = [found for each in records if (found := score(each))]
    assert rank(scores) == rank(records)


# --- boards ------------------------------------------------------------------------------------------------


def test_problem_version_device_and_class_each_make_their_own_board() -> None:
    records = [
        entry("a", 100.0),
        entry("b", 100.0, problem="mla_decode"),
        entry("c", 100.0, problem_hash="another"),
        entry("d", 100.0, device=MI355X),
        entry("e", 100.0, timing_class="host-synchronising"),
        entry("f", 100.0, device=CPU, timing_class="interpreter"),
    ]
    boards = rank(records)
    assert [len(board.rows) for board in boards] == [1] * 6
    assert len({(board.problem, board.problem_hash, board.device_model, board.timing_class) for board in boards}) == 6
    assert [board.problem for board in boards] == ["fp4_gemm"] * 5 + ["mla_decode"]


def test_of_one_problem_the_board_with_the_newest_entry_comes_first() -> None:
    old = entry("ada", 100.0, problem_hash="aa", created="2026-11-01T00:00:00+00:00")
    new = entry("ada", 100.0, problem_hash="bb", created="2026-12-01T00:00:00+00:00")
    assert [board.problem_hash for board in rank([old, new])] == ["bb", "aa"]
    assert [board.problem_hash for board in rank([new, old])] == ["bb", "aa"]


def test_an_author_s_file_has_one_row_its_best() -> None:
    mine = submission("fast.py", "ada")
    slow, fast = entry("slow", 120.0, by=mine), entry("fast", 100.0, by=mine)
    other_file = entry("other", 130.0, by=submission("other.py", "ada"))
    other_author = entry("bob", 110.0, by=submission("fast.py", "bob"))
    board = only_board([slow, other_file, fast, other_author])
    assert [row.score.record_id for row in board.rows] == ["id-fast", "id-bob", "id-other"]


def test_of_equal_times_the_older_comes_first() -> None:
    later = entry("ada", 100.0, created="2026-12-01T12:00:00+02:00")
    earlier = entry("bob", 100.0, created="2026-12-01T09:59:59Z")
    assert [row.score.author for row in only_board([later, earlier]).rows] == ["bob", "ada"]


def test_entries_timed_on_other_cases_than_the_newest_are_left_out() -> None:
    old = entry("ada", 10.0, created="2026-11-01T00:00:00+00:00")
    new = entry("bob", 100.0, 200.0, created="2026-12-01T00:00:00+00:00")
    again = entry("cyd", 90.0, 210.0, created="2026-11-30T00:00:00+00:00")
    assert [row.score.author for row in only_board([old, new, again]).rows] == ["cyd", "bob"]


def test_another_seed_is_not_another_case_and_another_regime_is() -> None:
    base = record("one", [case(spec(16, seed=1), timing(100.0))], by=submission(author="ada"))
    seeded = record("two", [case(spec(16, seed=77), timing(110.0))], by=submission(author="bob"))
    heavy = record("three", [case({**spec(16), "regime": "heavy"}, timing(90.0))], created="2026-01-01T00:00:00Z")
    board = only_board([base, seeded, heavy])
    assert [row.score.record_id for row in board.rows] == ["one", "two"]


def test_the_same_cases_in_another_order_are_the_same() -> None:
    one, two = case(spec(16), timing(100.0)), case(spec(32), timing(200.0))
    board = only_board([record("x", [one, two], by=submission("x.py")), record("y", [two, one], by=submission("y.py"))])
    assert len(board.rows) == 2


# --- places ------------------------------------------------------------------------------------------------


def test_overlapping_intervals_share_a_range_of_ranks() -> None:
    board = only_board(
        [entry("ada", 100_000.0), entry("bob", 200_000.0), entry("cyd", 200_100.0), entry("dan", 300_000.0)]
    )
    assert places(board) == [("ada", 1, 1), ("bob", 2, 3), ("cyd", 2, 3), ("dan", 4, 4)]


def test_a_wide_interval_spans_all_the_ranks_it_may_hold() -> None:
    wide = entry("wide", 200_000.0, spread=0.4)
    board = only_board([entry("ada", 190_000.0), wide, entry("bob", 230_000.0), entry("cyd", 900_000.0)])
    by_author = {author: (low, high) for author, low, high in places(board)}
    assert by_author == {"ada": (1, 2), "wide": (1, 3), "bob": (2, 3), "cyd": (4, 4)}


def test_ranks_agree_with_their_definition_on_random_boards() -> None:
    draw = random.Random(4)
    for _ in range(20):
        records = [
            entry(f"a{index}", draw.uniform(9e4, 11e4), spread=draw.choice((0.001, 0.01, 0.05))) for index in range(7)
        ]
        rows = only_board(records).rows
        for row in rows:
            mine = row.score.time
            assert mine.high_ns is not None
            faster = sum((other.score.time.high_ns or math.inf) < mine.low_ns for other in rows)
            slower = sum(other.score.time.low_ns > mine.high_ns for other in rows)
            assert (row.rank, row.rank_to) == (1 + faster, len(rows) - slower)


def test_a_time_that_cannot_be_told_from_nothing_stands_where_its_bound_does() -> None:
    readings = (batch(-150_000.0, 1), batch(-120_000.0, 1), batch(60_000.0, 1))  # at most 214 µs, with 95 %
    nothing = record("zero", [case(spec(16), Timing(readings, roofline_ns=1.0))], by=submission("zero.py"))
    board = only_board([nothing, entry("ada", 100_000.0), entry("bob", 200_000.0), entry("cyd", 300_000.0)])
    assert [(row.score.record_id, row.rank, row.rank_to) for row in board.rows] == [
        ("id-ada", 1, 2), ("id-bob", 2, 3), ("zero", 1, 3), ("id-cyd", 4, 4),
    ]  # fmt: skip
    assert board.rows[2].speedup is None
    assert board.rows[2].score.light_share is None


def test_a_measured_time_is_better_than_an_unmeasurable_one_that_may_be_longer() -> None:
    mine = submission("kernel.py", "ada")
    nothing = record("zero", [case(spec(16), Timing((batch(-100.0),) * 9))], by=mine)
    assert [row.score.record_id for row in only_board([nothing, entry("real", 100_000.0, by=mine)]).rows] == ["id-real"]


def test_an_entry_without_an_upper_bound_may_hold_any_later_rank() -> None:
    single = record("single", [case(spec(16), Timing((batch(150_000.0),)))], by=submission("single.py"))
    board = only_board([single, entry("ada", 100_000.0), entry("bob", 200_000.0)])
    assert {row.score.record_id: (row.rank, row.rank_to) for row in board.rows} == {
        "id-ada": (1, 2), "single": (1, 3), "id-bob": (2, 3),
    }  # fmt: skip


# --- against the baseline ----------------------------------------------------------------------------------


def test_speed_up_is_over_the_best_baseline_of_the_same_board() -> None:
    torch = submission("torch_reference.py", "ada", is_baseline=True)
    worse = record("base-1", cases(500_000.0), by=torch)
    better = record("base-2", cases(400_000.0), by=replace(torch, author="bob"))
    elsewhere = record("base-3", cases(10_000.0), by=torch, device=MI355X)
    boards = rank([worse, better, elsewhere, entry("cyd", 100_000.0)])
    board = next(each for each in boards if each.device_model == H200.model)
    assert {row.score.record_id: row.speedup for row in board.rows} == {
        "id-cyd": pytest.approx(4.0, rel=1e-4),
        "base-2": pytest.approx(1.0),
        "base-1": pytest.approx(0.8, rel=1e-4),
    }


def test_without_a_baseline_there_is_no_speed_up() -> None:
    assert only_board([entry("ada", 100.0)]).rows[0].speedup is None


# --- times of day ------------------------------------------------------------------------------------------


def test_times_with_and_without_a_zone_compare() -> None:
    assert utc("2026-12-01T12:00:00+02:00") == utc("2026-12-01T10:00:00Z") == utc("2026-12-01T10:00:00")


def test_a_board_is_json_with_nothing_special_in_it() -> None:
    single = record("single", [case(spec(16), Timing((batch(150_000.0),)))])
    board = only_board([single])
    data = json.loads(json.dumps(to_dict(board), allow_nan=False))
    time = data["rows"][0]["score"]["time"]
    assert time == {"time_ns": pytest.approx(150_000), "low_ns": 0.0, "high_ns": None, "batches": 1}
    assert from_dict(Board, data) == board
