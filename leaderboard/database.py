"""Opens the database behind the store, and says in one line what is wrong when it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from harness.errors import StoreError

BUSY_S = 30
"""How long a writer waits for its turn."""
_SQLITE = {
    "SQLITE_BUSY": f"another program has kept it locked for {BUSY_S} s; try again when that has ended",
    "SQLITE_NOTADB": "this file is not a database; move it away, or name another one with --db",
    "SQLITE_CORRUPT": "it is damaged; bring back a copy, or move it away to begin a new one",
    "SQLITE_FULL": "the disk is full; free some space there and run this again",
    "SQLITE_READONLY": "it may not be written; check the permissions of the file and of its folder",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and may be written",
    "SQLITE_PERM": "it may not be opened; check the permissions of the file and of its folder",
    "SQLITE_IOERR": "the disk failed to read or write; check that it is there and has space left",
}


def locate(url: str | None, home: Path | None) -> URL:
    """The database to use: this URL, else podium.db in `home`, else in PODIUM_HOME or the user's data folder.

    The folder is made if need be, unless a URL named it. PostgreSQL URLs without a driver mean psycopg.
    """
    if url is not None:
        return _parsed(url)
    folder = home or _default_home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the leaderboard's folder {folder} cannot be made ({error.strerror}); "
            "set PODIUM_HOME to a folder that you may write to"
        ) from error
    return URL.create("sqlite", database=str(folder / "podium.db"))


def _default_home() -> Path:
    import platformdirs

    return Path(os.environ.get("PODIUM_HOME") or platformdirs.user_data_dir("podium"))


def _parsed(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise StoreError(
            "--db is not a database URL; it looks like sqlite:///boards.db or postgresql://user@host/name"
        ) from error
    return url.set(drivername="postgresql+psycopg") if url.drivername in ("postgres", "postgresql") else url


def connect(url: URL) -> Engine:
    """An engine for this URL, connected when first used; StoreError for a kind of database that is not known here."""
    try:
        engine = create_engine(url)
    except NoSuchModuleError as error:
        raise StoreError(
            f"no database is called {url.drivername!r}; --db takes sqlite:///FILE or postgresql://…"
        ) from error
    except ImportError as error:
        hint = "pip install 'podium[postgresql]'" if url.get_backend_name() == "postgresql" else "install it"
        raise StoreError(f"the driver for {url.drivername} is missing ({error.name}): {hint}") from error
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise StoreError(f"the database {place(url)} cannot be used: {_first_line(error)}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions at moments of its own choosing
    connection.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000}")
    connection.execute("PRAGMA foreign_keys = ON")
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged outlives a power cut, too


def _write_ahead(connection: Any) -> None:
    """WAL, for good. The busy timeout does not cover this change, which processes that start at once all ask for."""
    deadline = time.monotonic() + BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_READONLY"):
                return  # it can still be read as it is
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    """Writers queue before they read, since a reader that turns writer may find that it read too early."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn whatever the database raises inside into a StoreError that says what to do."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise StoreError(f"the leaderboard's database {place(url)}: {_advice(error, url)}") from error


def place(url: URL) -> str:
    """Where it is, for a person: a file's path, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or "in memory"
    return url.render_as_string(hide_password=True)


def _advice(error: BaseException, url: URL) -> str:
    cause = getattr(error, "orig", None) or error
    name = str(getattr(cause, "sqlite_errorname", ""))
    known = next((advice for prefix, advice in _SQLITE.items() if name.startswith(prefix)), None)
    if name.startswith("SQLITE_CANTOPEN") and url.database and Path(url.database).is_dir():
        return "this is a folder; name the file in it"
    return known or _first_line(cause)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
