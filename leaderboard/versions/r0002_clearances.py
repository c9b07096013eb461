"""Doubts that a board's owner has cleared, and why: beside the records, which stay as they were measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "clearances",
        sa.Column("number", sa.Integer, sa.ForeignKey("records.number"), primary_key=True),
        sa.Column("doubt", sa.String, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("author", sa.String, nullable=False),
        sa.Column("created", sa.DateTime, nullable=False),
    )
