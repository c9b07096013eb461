"""Records, their sources, and scores worked out from them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "sources",
        sa.Column("sha256", sa.String, primary_key=True),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "records",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("mode", sa.String, nullable=False),
        sa.Column("problem", sa.String, nullable=False),
        sa.Column("problem_hash", sa.String, nullable=False),
        sa.Column("device_model", sa.String, nullable=False),
        sa.Column("timing_class", sa.String, nullable=False),
        sa.Column("verdict", sa.String, nullable=False),
        sa.Column("author", sa.String, nullable=False),
        sa.Column("filename", sa.String, nullable=False),
        sa.Column("sha256", sa.String, sa.ForeignKey("sources.sha256"), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("records_by_created", "records", ["created"])
    op.create_index("records_by_board", "records", ["problem", "problem_hash", "device_model", "timing_class"])
    op.create_index("records_by_outcome", "records", ["mode", "verdict"])
    op.create_index("records_by_entry", "records", ["author", "filename"])
    op.create_index("records_by_source", "records", ["sha256"])
    op.create_table(
        "scores",
        sa.Column("number", sa.Integer, sa.ForeignKey("records.number"), primary_key=True),
        sa.Column("code", sa.String, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
