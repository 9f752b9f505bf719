"""Handles of tasks, by which clients of the Model Context Protocol ask for them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "task_handles",
        sa.Column("handle", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("message_id", sa.String(255)),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("handle", name="pk_task_handles"),
    )
    op.create_index("ix_task_handles_session_id", "task_handles", ["session_id"])
    op.create_index("ix_task_handles_expires_at", "task_handles", ["expires_at"])
