"""The index of sessions, by which they are listed, and how far it was compared with Temporal."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("title", sa.Text()),
        sa.Column("user", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("turn_count", sa.Integer(), nullable=False),
        sa.Column("cost", sa.Float()),
        sa.Column("preview", sa.Text()),
        sa.Column("parent", sa.String(255)),
        sa.Column("hand_off", sa.Text()),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("last_activity_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger()),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("searched_text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
    )
    op.create_index(
        "ix_sessions_tenant_last_activity_at_session_id", "sessions", ["tenant", "last_activity_at", "session_id"]
    )
    op.create_table(
        "index_repairs",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("compared_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_index_repairs"),
    )
