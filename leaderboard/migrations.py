"""Brings a database to this version's schema, step by step, however many processes start at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Engine, inspect, select, table
from sqlalchemy import column as sql_column
from sqlalchemy.engine import Connection

from harness.errors import StoreError

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

HEAD = "0002"
"""The newest revision in `versions/`, named here so that finding nothing to do costs no import of Alembic."""
VERSION_TABLE = "podium_version"
"""Ours alone: a PostgreSQL database may hold other programs' Alembic tables."""
ADVISORY_LOCK = 0x506F6469756D
"""PostgreSQL's lock for changing the schema: "Podium" in ASCII."""


def upgrade(engine: Engine) -> None:
    """Bring the schema to `HEAD`; StoreError when the database is newer than this version of Podium.

    Each revision is one transaction, begun by taking the database's lock for writers and looking again: of
    processes that start at the same moment, one does the step and the others find it done. The engine's write
    transactions must begin with that lock on SQLite (database.connect sees to it).
    """
    with engine.connect() as connection:
        if current(connection) == HEAD:
            return
    while _step(engine):
        pass


def current(connection: Connection) -> str | None:
    """The revision that the database is at; None for one without our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    versions = table(VERSION_TABLE, sql_column("version_num"))
    found: str | None = connection.execute(select(versions.c.version_num)).scalar()
    return found


def _step(engine: Engine) -> bool:
    """Apply the next revision in a transaction of its own; False when there is none left."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        at = current(connection)
        if at == HEAD:
            return False
        directory = revisions()
        _refuse_newer(directory, at)
        following = list(directory.iterate_revisions("head", at or "base"))[-1]
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        with Operations.context(context):
            following.module.upgrade()
        context.stamp(directory, following.revision)
    return True


def revisions() -> ScriptDirectory:
    """The ordered revisions in `versions/`."""
    from alembic.script import ScriptDirectory

    here = Path(__file__).parent
    return ScriptDirectory(str(here), version_locations=[str(here / "versions")])


def _refuse_newer(directory: ScriptDirectory, at: str | None) -> None:
    known = {script.revision for script in directory.walk_revisions()}
    if at is not None and at not in known:
        raise StoreError(
            f"the leaderboard's database was made by a newer Podium (its schema is {at}, this one knows {HEAD}): "
            "update Podium, or name another database with --db"
        )
