"""Records as JSON with the columns that boards are looked up by; sources once per content."""

import sqlalchemy as sa
from alembic import op

revision = "0001_records_and_sources"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Both tables and their indices."""
    op.create_table(
        "sources",
        sa.Column("sha256", sa.String(64), primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
    )
    op.create_table(
        "records",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created", sa.String(40), nullable=False, index=True),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("problem", sa.String(200), nullable=False),
        sa.Column("problem_hash", sa.String(64), nullable=False),
        sa.Column("device_model", sa.String(200), nullable=False),
        sa.Column("timing_class", sa.String(32), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("ranked", sa.Boolean, nullable=False),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("filename", sa.String(400), nullable=False),
        sa.Column("sha256", sa.String(64), sa.ForeignKey("sources.sha256"), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("ix_records_board", "records", ["problem", "problem_hash", "device_model", "timing_class"])


def downgrade() -> None:
    """Everything away."""
    op.drop_table("records")
    op.drop_table("sources")
