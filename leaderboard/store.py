"""Keeps records: what was acknowledged is there after a kill, and any number of processes may write at once.

SQLAlchemy Core, on SQLite by default and on PostgreSQL by URL. Sources are kept once per content; a record's
other data is one JSON text beside the columns that it is found by. Scores are a cache, worked out from records
again whenever the code that works them out has changed; which doubts are cleared is no part of them, and joined
to them whenever they are asked for.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    DateTime,
    Engine,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    and_,
    delete,
    false,
    insert,
    select,
    update,
)  # fmt: skip
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

import harness.record
import harness.statistics
from harness.errors import StoreError
from harness.record import Doubt, Record, from_dict, to_dict
from harness.statistics import Summary
from leaderboard import migrations, ranking
from leaderboard.clearance import Clearance, check_clear, check_undo, is_ranked
from leaderboard.database import connect, explained, locate
from leaderboard.ranking import BoardKey, CaseScore, Score

METADATA = MetaData()
SOURCES = Table(
    "sources",
    METADATA,
    Column("sha256", String, primary_key=True),
    Column("text", Text, nullable=False),
)
RECORDS = Table(
    "records",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("created", DateTime, nullable=False),
    Column("mode", String, nullable=False),
    Column("problem", String, nullable=False),
    Column("problem_hash", String, nullable=False),
    Column("device_model", String, nullable=False),
    Column("timing_class", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("author", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("sha256", String, ForeignKey("sources.sha256"), nullable=False),
    Column("body", Text, nullable=False),
    Index("records_by_created", "created"),
    Index("records_by_board", "problem", "problem_hash", "device_model", "timing_class"),
    Index("records_by_outcome", "mode", "verdict"),
    Index("records_by_entry", "author", "filename"),
    Index("records_by_source", "sha256"),
)
SCORES = Table(
    "scores",
    METADATA,
    Column("number", Integer, ForeignKey("records.number"), primary_key=True),
    Column("code", String, nullable=False),
    Column("body", Text, nullable=False),
)
CLEARANCES = Table(
    "clearances",
    METADATA,
    Column("number", Integer, ForeignKey("records.number"), primary_key=True),
    Column("doubt", String, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("author", String, nullable=False),
    Column("created", DateTime, nullable=False),
)
_MAYBE_RANKED = and_(RECORDS.c.mode == "leaderboard", RECORDS.c.verdict == "passed")
"""What SQL can tell of Record.is_rankable."""
_NEAR_AMONG = 1000
"""A mistyped id is compared with this many of the newest."""


def open_store(url: str | None = None, *, home: Path | None = None, writing: bool = False) -> Store:
    """The store at this SQLAlchemy URL, else podium.db in `home`, PODIUM_HOME or the user's data folder.

    Made if it is not there, brought to this version's schema if it is older. `writing` also makes sure, now rather
    than after a long measurement, that it may be written. StoreError when it cannot be used.
    """
    engine = connect(locate(url, home))
    with explained(engine.url):
        migrations.upgrade(engine)
    store = Store(engine)
    if writing:
        with store.writes() as connection:  # SQLite lets a writer begin even where it may not write
            connection.execute(update(SCORES).where(false()).values(code=""))
    return store


class Store:
    """Records in a database. Every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()

    def add(self, record: Record) -> None:
        """Keep a record; when this returns, it is on the disk. StoreError when one with its id is there already."""
        submission = record.submission
        if hashlib.sha256(submission.source.encode("utf-8", "surrogatepass")).hexdigest() != submission.sha256:
            raise StoreError(f"record {record.id} names another sha256 than its source has; evaluate the file again")
        row = _row(record)
        for is_last in (False, True):
            try:
                with self.writes() as connection:
                    _keep_source(connection, submission.sha256, submission.source)
                    connection.execute(insert(RECORDS).values(row))
                return
            except StoreError as error:
                if not isinstance(error.__cause__, IntegrityError):
                    raise
                # Either the id is taken, or another process kept the same source in this very moment: then once more.
                if is_last or self._has(record.id):
                    raise StoreError(f"a record with the id {record.id} is there already") from error

    def _has(self, record_id: str) -> bool:
        with self.reads() as connection:
            return connection.scalar(select(RECORDS.c.number).where(RECORDS.c.id == record_id)) is not None

    def get(self, prefix: str) -> Record:
        """The record whose id this is, or begins with this; StoreError naming near ids when it is not one."""
        with self.reads() as connection:
            found = connection.execute(_whole().where(RECORDS.c.id == self._id(connection, prefix))).one()
        return _record(found)

    def _id(self, connection: Connection, prefix: str) -> str:
        if not prefix:
            raise StoreError("an id is empty; `podium board` shows them")
        query = select(RECORDS.c.id).order_by(RECORDS.c.number.desc())
        matching = connection.scalars(query.where(RECORDS.c.id.startswith(prefix, autoescape=True)))
        ids = [each for each in matching if each.startswith(prefix)]  # SQLite's LIKE takes A for a
        if prefix in ids:
            return prefix
        if len(ids) == 1:
            return str(ids[0])
        if ids:
            raise StoreError(f"{prefix!r} begins the ids of {len(ids)} records: {_listed(ids)}; give more of it")
        newest = list(connection.scalars(query.limit(_NEAR_AMONG)))
        near = difflib.get_close_matches(prefix, newest, n=3, cutoff=0.5)
        hint = f"did you mean {_listed(near)}?" if near else f"the newest are {_listed(newest[:3])}"
        raise StoreError(f"there is no record {prefix!r}; {hint if newest else 'there are none at all yet'}")

    def entries(
        self, problem: str | None = None, problem_hash: str | None = None, ranked_only: bool = False
    ) -> list[Record]:
        """All records, or those of a problem, of one version of it, or that are ranked; newest first."""
        query = _whole().where(*_of(problem, problem_hash), *([_MAYBE_RANKED] if ranked_only else []))
        with self.reads() as connection:
            rows = connection.execute(query.order_by(*_NEWEST_FIRST)).all()
            cleared = _cleared(connection, *_of(problem, problem_hash)) if ranked_only else {}
        records = [(row.number, _record(row)) for row in rows]
        return [each for number, each in records if not ranked_only or is_ranked(each, cleared.get(number, ()))]

    def boards(self) -> list[BoardKey]:
        """What boards there are entries for, by problem."""
        return sorted({score.board for score in self.scores()})

    # --- doubts ------------------------------------------------------------------------------------------

    def clearances(self, record_id: str) -> tuple[Clearance, ...]:
        """Which doubts of a record (its whole id) are cleared, oldest first."""
        with self.reads() as connection:
            found = _cleared(connection, RECORDS.c.id == record_id)
        return next(iter(found.values()), ())

    def clear(self, prefix: str, doubts: Sequence[Doubt], reason: str, author: str) -> tuple[Clearance, ...]:
        """Clear these doubts of a record, all or none of them; what is cleared then.

        StoreError for a doubt that it hasn't or that is cleared already, and for a record that no clearance would rank.
        """
        words = {"reason": reason, "author": author}
        row: dict[str, Any] = {key: _text(" ".join(value.split())) for key, value in words.items()}
        if not row["reason"]:
            raise StoreError("a reason is empty; say why the doubt is none: whoever reads the board sees it")
        row["created"] = datetime.now(UTC).replace(tzinfo=None)
        with self.writes() as connection:
            number, record, before = self._locked(connection, prefix)
            check_clear(record, doubts, before)
            rows = [{**row, "number": number, "doubt": doubt} for doubt in dict.fromkeys(doubts)]
            connection.execute(insert(CLEARANCES), rows)
            return _cleared(connection, RECORDS.c.number == number)[number]

    def undo_clear(self, prefix: str, doubts: Sequence[Doubt]) -> tuple[Clearance, ...]:
        """Take clearances of a record back, all or none of them; what is cleared then. StoreError for one not there."""
        with self.writes() as connection:
            number, record, before = self._locked(connection, prefix)
            check_undo(record, doubts, before)
            own = and_(CLEARANCES.c.number == number, CLEARANCES.c.doubt.in_(doubts))
            connection.execute(delete(CLEARANCES).where(own))
            return _cleared(connection, RECORDS.c.number == number).get(number, ())

    def _locked(self, connection: Connection, prefix: str) -> tuple[int, Record, tuple[Clearance, ...]]:
        """A record, and what is cleared of it: until the transaction ends, no other one changes that."""
        query = _whole().where(RECORDS.c.id == self._id(connection, prefix)).with_for_update(of=RECORDS)
        row = connection.execute(query).one()
        return row.number, _record(row), _cleared(connection, RECORDS.c.number == row.number).get(row.number, ())

    # --- scores ------------------------------------------------------------------------------------------

    def scores(self, problem: str | None = None, problem_hash: str | None = None) -> list[Score]:
        """ranking.score of all records that are ranked (or a problem's, or of one version of it), newest first.

        Much faster than to work them out from `entries`: only new records are, and all after a change of that code.
        A score is kept whatever is cleared of its record, which is looked up each time.
        """
        code = _scoring_code()
        cached = and_(SCORES.c.number == RECORDS.c.number, SCORES.c.code == code)
        query = select(RECORDS.c.number, SCORES.c.body).select_from(RECORDS.outerjoin(SCORES, cached))
        query = query.where(_MAYBE_RANKED, *_of(problem, problem_hash)).order_by(*_NEWEST_FIRST)
        with self.reads() as connection:
            bodies: dict[int, str] = {number: body for number, body in connection.execute(query)}
            missing = [number for number, body in bodies.items() if body is None]
            fresh = {number: _scored(connection, number) for number in missing}
            cleared = _cleared(connection, *_of(problem, problem_hash))
        self._cache(fresh, code)
        found = (_score(body, cleared.get(number, ())) for number, body in (bodies | fresh).items())
        return [each for each in found if each is not None and each.is_ranked]

    def _cache(self, bodies: dict[int, str], code: str) -> None:
        if not bodies:
            return
        try:
            with self.writes() as connection:
                connection.execute(delete(SCORES).where(SCORES.c.number.in_(bodies)))
                rows = [{"number": number, "code": code, "body": body} for number, body in bodies.items()]
                connection.execute(insert(SCORES), rows)
        except StoreError:
            pass  # a database that may only be read, or another process that was first: nothing is lost

    # --- transactions ------------------------------------------------------------------------------------

    @contextmanager
    def reads(self) -> Iterator[Connection]:
        """One consistent view."""
        with explained(self.engine.url), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writes(self) -> Iterator[Connection]:
        """One transaction, durable when the block has ended."""
        with explained(self.engine.url), self.engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                yield connection


_NEWEST_FIRST = (RECORDS.c.created.desc(), RECORDS.c.number.desc())


def _of(problem: str | None, problem_hash: str | None) -> list[Any]:
    wanted = ((RECORDS.c.problem, problem), (RECORDS.c.problem_hash, problem_hash))
    return [column == value for column, value in wanted if value is not None]


def _whole() -> Select[Any]:
    return select(RECORDS.c.number, RECORDS.c.id, RECORDS.c.body, SOURCES.c.text).select_from(RECORDS.join(SOURCES))


def _row(record: Record) -> dict[str, Any]:
    data = to_dict(record)
    del data["submission"]["source"]
    columns = {
        "id": record.id,
        "mode": record.mode,
        "problem": record.problem.name,
        "problem_hash": record.problem.content_hash,
        "device_model": record.device.model,
        "timing_class": record.timing_class,
        "verdict": record.outcome.verdict,
        "author": record.submission.author,
        "filename": record.submission.filename,
        "sha256": record.submission.sha256,
    }
    row: dict[str, Any] = {key: _text(value) for key, value in columns.items()}
    return row | {"created": ranking.utc(record.created), "body": json.dumps(data, allow_nan=False)}


def _text(value: str) -> str:
    """What a database takes: a file's name or an argument may hold bytes that are no text; the body keeps them."""
    return value.encode("utf-8", "replace").decode()


def _keep_source(connection: Connection, sha256: str, text: str) -> None:
    if connection.scalar(select(SOURCES.c.sha256).where(SOURCES.c.sha256 == sha256)) is None:
        connection.execute(insert(SOURCES).values(sha256=sha256, text=text))


def _record(row: Any) -> Record:
    try:
        data = json.loads(row.body)
        data["submission"]["source"] = row.text
        return from_dict(Record, data)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"record {row.id} was written by another Podium, try updating this one: {error}") from error


def _cleared(connection: Connection, *wanted: Any) -> dict[int, tuple[Clearance, ...]]:
    """The clearances of the wanted records, by the record's number, oldest first."""
    query = select(CLEARANCES).select_from(CLEARANCES.join(RECORDS)).where(*wanted)
    found: defaultdict[int, tuple[Clearance, ...]] = defaultdict(tuple)
    for row in connection.execute(query.order_by(CLEARANCES.c.created, CLEARANCES.c.doubt)):
        created = row.created.replace(tzinfo=UTC).isoformat(timespec="seconds")
        found[row.number] += (Clearance(row.doubt, row.reason, row.author, created),)
    return dict(found)


def _scored(connection: Connection, number: int) -> str:
    row = connection.execute(_whole().where(RECORDS.c.number == number)).one()
    found = ranking.score(_record(row))
    return json.dumps(None if found is None else to_dict(found), allow_nan=False)


def _score(body: str, clearances: tuple[Clearance, ...]) -> Score | None:
    """What `_scored` wrote, by this very code: there is no need to check each field, and many to read."""
    data = json.loads(body)
    if data is None:
        return None
    cases = tuple(CaseScore(**{**each, "time": Summary(**each["time"])}) for each in data["cases"])
    kept = {**data, "board": BoardKey(**data["board"]), "cases": cases, "time": Summary(**data["time"])}
    return Score(**{**kept, "doubts": tuple(data["doubts"]), "clearances": clearances})


def _scoring_code() -> str:
    """A fingerprint of the code that turns a record into a score."""
    files = (harness.record.__file__, harness.statistics.__file__, ranking.__file__)
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")


__all__ = ["BoardKey", "Score", "Store", "StoreError", "open_store"]
