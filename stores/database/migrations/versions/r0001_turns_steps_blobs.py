"""The first tables: turns, the early steps of long turns, large texts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("turn_id", sa.String(255), nullable=False),
        sa.Column("shown_bytes", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "number", name="pk_turns"),
    )
    op.create_index("ix_turns_session_id_turn_id", "turns", ["session_id", "turn_id"])
    op.create_table(
        "steps",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("turn_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "turn_number", "position", name="pk_steps"),
    )
    op.create_table(
        "blobs",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "hash", name="pk_blobs"),
    )
