"""Copies of sessions that were begun and not finished, and logins of browsers."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "unfinished_copies",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_unfinished_copies"),
    )
    op.create_table(
        "logins",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=True),
        sa.Column("caller_id", sa.String(255), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_logins"),
    )
    op.create_index("ix_logins_expires_at", "logins", ["expires_at"])
