"""Where records are kept: an SQLite file of the user's, or any database that SQLAlchemy reaches by URL.

A record is there, whole, when `add` returns, whatever happens to the process or the machine afterwards.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from harness.errors import StoreError
from harness.record import Record, from_dict, to_dict
from leaderboard import migrations

BUSY_S = 30.0
"""How long one writer waits for another."""

_METADATA = sa.MetaData()
SOURCES = sa.Table("sources", _METADATA, sa.Column("sha256", sa.String), sa.Column("source", sa.Text))
RECORDS = sa.Table(
    "records",
    _METADATA,
    *(
        sa.Column(name, sa.Boolean if name == "ranked" else sa.Text)
        for name in (
            "id",
            "created",
            "mode",
            "problem",
            "problem_hash",
            "device_model",
            "timing_class",
            "verdict",
            "ranked",
            "author",
            "filename",
            "sha256",
            "record",
        )
    ),
)


def open_store(url: str | None, *, home: Path) -> Store:
    """The database at `url`, by default `podium.db` in `home`, made and brought up to date; StoreError otherwise."""
    where = url or f"sqlite:///{home / 'podium.db'}"
    try:
        if url is None:
            home.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(where, connect_args={"timeout": BUSY_S} if where.startswith("sqlite") else {})
    except OSError as error:
        raise StoreError(f"{home} cannot be made: {error.strerror}; set PODIUM_HOME to a folder of yours") from None
    except (ArgumentError, NoSuchModuleError):
        raise StoreError(f"--db {where!r} is no database URL; sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    except ModuleNotFoundError as error:
        raise StoreError(f"--db {where!r} needs the Python package {error.name}: pip install {error.name}") from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    store = Store(engine)
    store.migrate()
    return store


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Readers never wait (WAL); a commit is on the disk when it returns (synchronous FULL)."""
    connection.isolation_level = None  # transactions are begun by the listener above, so that writers queue up
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        cursor.execute("PRAGMA journal_mode = WAL")
    cursor.close()


class Store:
    """Records by id and by board."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """One transaction; whatever the database says becomes one line for a person."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError as error:
            raise StoreError(f"this record is in the database already ({error.orig})") from None
        except SQLAlchemyError as error:
            raise StoreError(_explain(error, self._place())) from None

    def _place(self) -> str:
        return self._engine.url.database or str(self._engine.url)

    def migrate(self) -> None:
        """Bring the schema to HEAD; two processes may do so at once, and the later one finds nothing to do."""
        with self._transaction() as connection:
            version = migrations.version_of(connection)
            if version is None:
                migrations.upgrade(connection)
            elif version != migrations.HEAD:
                if version > migrations.HEAD:
                    raise StoreError(f"{self._place()} was written by a newer Podium ({version}): upgrade this one")
                migrations.upgrade(connection)

    def add(self, record: Record) -> None:
        """Keep a record. It is durable when this returns."""
        data = to_dict(record)
        source = data["submission"].pop("source")
        row = {
            "id": record.id,
            "created": record.created,
            "mode": record.mode,
            "problem": record.problem.name,
            "problem_hash": record.problem.content_hash,
            "device_model": record.device.model,
            "timing_class": record.timing_class,
            "verdict": record.outcome.verdict,
            "ranked": record.is_ranked,
            "author": record.submission.author,
            "filename": record.submission.filename,
            "sha256": record.submission.sha256,
            "record": json.dumps(data, separators=(",", ":")),
        }
        with self._transaction() as connection:
            known = sa.select(SOURCES.c.sha256).where(SOURCES.c.sha256 == record.submission.sha256)
            if connection.execute(known).first() is None:
                connection.execute(SOURCES.insert().values(sha256=record.submission.sha256, source=source))
            connection.execute(RECORDS.insert().values(**row))

    def get(self, record_id: str) -> Record:
        """The record whose id is, or uniquely begins with, `record_id`."""
        if not record_id or not record_id.isalnum():
            raise StoreError(f"{record_id!r} is no record's id; `podium board` shows ids")
        query = self._query().where(RECORDS.c.id.startswith(record_id)).limit(6)
        with self._transaction() as connection:
            rows = connection.execute(query).all()
        if not rows:
            raise StoreError(f"there is no record {record_id!r}; `podium board` shows ids")
        exact = [row for row in rows if row.id == record_id]
        if len(rows) > 1 and not exact:
            raise StoreError(f"{record_id!r} is the beginning of {', '.join(row.id for row in rows)}; give more of it")
        return _record(exact[0] if exact else rows[0])

    def entries(self, problem: str | None = None, *, ranked_only: bool = True) -> list[Record]:
        """Records, newest first: those that may stand on a board, or all."""
        query = self._query().order_by(RECORDS.c.created.desc(), RECORDS.c.id)
        if problem is not None:
            query = query.where(RECORDS.c.problem == problem)
        if ranked_only:
            query = query.where(RECORDS.c.ranked)
        with self._transaction() as connection:
            return [_record(row) for row in connection.execute(query)]

    def _query(self) -> sa.Select[Any]:
        joined = RECORDS.join(SOURCES, RECORDS.c.sha256 == SOURCES.c.sha256)
        return sa.select(RECORDS.c.id, RECORDS.c.record, SOURCES.c.source).select_from(joined)


def _record(row: Any) -> Record:
    data = json.loads(row.record)
    data["submission"]["source"] = row.source
    try:
        return from_dict(Record, data)
    except ValueError as error:
        raise StoreError(f"record {row.id} cannot be read by this version of Podium: {error}") from None


_HINTS = {
    "readonly": "cannot be written: check its permissions, or set PODIUM_HOME to a folder of yours",
    "unable to open": "cannot be opened: check its folder's permissions, or set PODIUM_HOME to a folder of yours",
    "permission denied": "cannot be opened: check its permissions, or set PODIUM_HOME to a folder of yours",
    "disk is full": "has no room: the disk is full; free some, or set PODIUM_HOME to another disk",
    "disk i/o error": "cannot be written: the disk is full or failing; set PODIUM_HOME to another disk",
    "not a database": "is no Podium database: move it away, or name another with --db",
    "malformed": "is damaged: move it away, and keep it if its records matter",
    "locked": f"was locked by another process for {BUSY_S:.0f} s: see what else is using it",
}


def _explain(error: SQLAlchemyError, place: str) -> str:
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    hint = next((hint for words, hint in _HINTS.items() if words in text.lower()), None)
    return f"the database {place} {hint}" if hint else f"the database {place} failed: {text.splitlines()[0]}"
