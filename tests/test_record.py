"""Records: they come back from JSON as they were, and impossible ones cannot be made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.record import Batch, CaseResult, Outcome, Record, Secret, Timing, from_dict, to_dict

BATCH = Batch(4, 5000, 1000, (900.0, 1100.5), "REER", (2400, 500, 500, 2600))
PASSED = CaseResult("n=1", "benchmark", {"n": 1, "causal": True}, Outcome("passed"), None, Timing((BATCH,), 100.0))


def data(**changes: Any) -> dict[str, Any]:
    plain = {
        "id": "abcd1234",
        "created": "2026-12-01T12:00:00+00:00",
        "mode": "leaderboard",
        "problem": {"name": "p", "content_hash": "0" * 64},
        "submission": {"filename": "k.py", "author": "ada", "sha256": "1" * 64, "source": "x", "is_baseline": False},
        "device": {"kind": "cpu", "model": "EPYC", "memory_bytes": 1, "units": 2},
        "software": {"podium": "0", "python": "3", "torch": "2", "triton": None, "runtime": None, "system": "Linux"},
        "timing_class": "cpu",
        "isolation": [{"name": "own session", "applied": True, "detail": ""}],
        "outcome": {"verdict": "passed", "message": "", "stage": ""},
        "cases": [to_dict(PASSED)],
        "stages_ns": {"test": 5},
    }  # fmt: skip
    return plain | changes


def test_a_record_comes_back_from_json_as_it_was() -> None:
    record = from_dict(Record, data())
    assert from_dict(Record, json.loads(json.dumps(to_dict(record)))) == record
    assert record.cases == (PASSED,)


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"mode": "race"}, "record.mode: 'race' does not fit"),
        ({"extra": 1}, "record: unknown field 'extra'"),
        ({"stages_ns": {"test": 1.5}}, "record.stages_ns.test: '1.5' does not fit int"),
        ({"cases": [{"name": "x"}]}, r"record.cases\[0\]: .*missing"),
        ({"cases": {}}, "record.cases: '{}' does not fit"),
        ({"outcome": {"verdict": "passed", "message": 3, "stage": ""}}, "record.outcome.message: '3' does not fit str"),
        ({"problem": None}, "record.problem: expected an object, got NoneType"),
    ],
)
def test_what_is_no_record_names_the_field(changes: dict[str, Any], because: str) -> None:
    with pytest.raises(ValueError, match=because):
        from_dict(Record, data(**changes))


def test_a_record_from_before_there_were_secrets_is_read() -> None:
    record = from_dict(Record, data())
    assert (record.secret, record.replay_of, record.cases[0].is_hidden) == (None, None, False)


def test_a_secret_is_a_run_s_own_or_a_file_s() -> None:
    for secret in (Secret(master="ab"), Secret(commitment="cd")):
        assert from_dict(Record, data(secret=to_dict(secret))).secret == secret
    for impossible in ({}, {"master": "ab", "commitment": "cd"}):
        with pytest.raises(ValueError, match="a secret is either a run's own or a seed file's"):
            Secret(**impossible)


def test_a_missing_field_is_named() -> None:
    plain = data()
    del plain["outcome"]
    with pytest.raises(ValueError, match="outcome"):
        from_dict(Record, plain)


def test_a_batch_s_time_per_call_is_what_the_calls_added() -> None:
    assert BATCH.per_call_ns == 1000.0


@pytest.mark.parametrize("arguments", [(0, 5, 1), (1, 0, 0), (1, 5, -1), (1, 5, 1, (), "RE", (5,))])
def test_an_impossible_batch_cannot_be_made(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="impossible batch"):
        Batch(*arguments)


def test_a_failure_says_why_and_has_no_time() -> None:
    with pytest.raises(ValueError, match="needs a message"):
        Outcome("wrong")
    with pytest.raises(ValueError, match="a time is only shown for a case that passed"):
        CaseResult("n=1", "benchmark", {}, Outcome("wrong", "no"), None, PASSED.timing)


@pytest.mark.parametrize(
    ("changes", "ranked"),
    [
        ({}, True),
        ({"mode": "benchmark"}, False),
        ({"outcome": {"verdict": "wrong", "message": "no", "stage": ""}}, False),
        ({"cases": [to_dict(PASSED) | {"doubts": ["clocks-disagree"]}]}, False),
        ({"cases": [to_dict(PASSED) | {"timing": None}]}, False),
        ({"replay_of": "0000abcd"}, False),
    ],
)
def test_only_a_whole_passed_undoubted_leaderboard_run_is_ranked(changes: dict[str, Any], ranked: bool) -> None:
    assert from_dict(Record, data(**changes)).is_ranked is ranked
