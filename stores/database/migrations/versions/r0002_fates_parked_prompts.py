"""Fates of prompts that a session no longer remembers, and prompts that wait outside of it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fates",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("message_id", sa.String(255), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.Column("fate", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "message_id", name="pk_fates"),
    )
    op.create_table(
        "parked_prompts",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("message_id", sa.String(255), nullable=False),
        sa.Column("text_bytes", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "number", name="pk_parked_prompts"),
    )
    op.create_index("ix_parked_prompts_session_id_message_id", "parked_prompts", ["session_id", "message_id"])
