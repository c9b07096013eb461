"""Alembic's entry; all of it is in leaderboard.migrations."""

from alembic import context

from leaderboard.migrations import run_environment

run_environment(context)
