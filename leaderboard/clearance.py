"""Doubts that a board's owner looked into and cleared: the record stays as it was measured, and is ranked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import StoreError
from harness.record import Doubt, Record


@dataclass(frozen=True)
class Clearance:
    """One doubt of one record, cleared."""

    doubt: Doubt
    reason: str
    author: str
    """Who cleared it."""
    created: str
    """UTC, ISO 8601."""

    def __str__(self) -> str:
        return f"by {self.author} on {self.created[:16].replace('T', ' ')} UTC: {self.reason}"


def open_doubts(doubts: Iterable[Doubt], clearances: Iterable[Clearance]) -> tuple[Doubt, ...]:
    """Those that are not cleared."""
    cleared = {each.doubt for each in clearances}
    return tuple(doubt for doubt in doubts if doubt not in cleared)


def is_ranked(record: Record, clearances: Iterable[Clearance]) -> bool:
    """Whether a record stands on a board, with what was cleared of it."""
    return record.is_rankable and not open_doubts(record.doubts, clearances)


def standing(record: Record, clearances: Sequence[Clearance]) -> dict[str, Any]:
    """Whether a record is ranked, and why, as JSON-ready data."""
    return {
        "doubts": list(record.doubts),
        "clearances": [asdict(each) for each in clearances],
        "is_ranked": is_ranked(record, clearances),
    }


def check_clear(record: Record, doubts: Iterable[Doubt], clearances: Iterable[Clearance]) -> None:
    """StoreError for what cannot be cleared: that would not rank the record, or there is no such doubt (any more)."""
    if not record.is_rankable:
        raise StoreError(f"record {record.id} {_lack(record)}: no clearance would put it on a board")
    _check_has(record, doubts)
    known = {each.doubt: each for each in clearances}
    for doubt in doubts:
        if doubt in known:
            raise StoreError(
                f"{doubt} of record {record.id} is cleared already, {known[doubt]}; --undo takes that back"
            )


def check_undo(record: Record, doubts: Iterable[Doubt], clearances: Iterable[Clearance]) -> None:
    """StoreError for a doubt that is not cleared."""
    _check_has(record, doubts)
    known = {each.doubt for each in clearances}
    for doubt in doubts:
        if doubt not in known:
            raise StoreError(f"{doubt} of record {record.id} is not cleared, so there is nothing to undo")


def _lack(record: Record) -> str:
    """Why a record is not rankable, whatever its doubts."""
    if record.mode != "leaderboard":
        return f"is of a {record.mode} run"
    if record.replay_of is not None:
        return f"is a replay of {record.replay_of}"
    if record.outcome.verdict != "passed":
        return f"did not pass ({record.outcome.verdict})"
    return "has no times"


def _check_has(record: Record, doubts: Iterable[Doubt]) -> None:
    for doubt in doubts:
        if doubt not in record.doubts:
            own = f"its doubts are {', '.join(record.doubts)}" if record.doubts else "it has none at all"
            raise StoreError(f"record {record.id} has no doubt {doubt}; {own}")
