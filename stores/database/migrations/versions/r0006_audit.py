"""The audit: entries of requests that change something, and their outcomes."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(255), nullable=False),
        sa.Column("caller", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255)),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("operation", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("session_id", sa.String(255)),
        sa.Column("message_id", sa.String(255)),
        sa.Column("call_id", sa.String(64)),
        sa.Column("key_id", sa.String(64)),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_tenant_at", "audit", ["tenant", "at"])
    op.create_index("ix_audit_session_id_at", "audit", ["session_id", "at"])
