"""The database's schema, as an ordered list of named steps that Alembic applies, one transaction each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "0001_records_and_sources"
"""The newest step: a database that is here needs no Alembic."""


def version_of(connection: Connection) -> str | None:
    """The step a database is at; None for a new one."""
    import sqlalchemy as sa

    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection) -> None:
    """Bring a database to HEAD, inside the caller's transaction."""
    from pathlib import Path

    from alembic.command import upgrade as run
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "schema"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    run(config, "head")


def run_environment(context: Any) -> None:
    """What Alembic's env.py does here: use the connection that was handed over."""
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
