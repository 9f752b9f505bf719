"""The tables of the first release.

Until there is one, the tables are only in `tables.py`, and databases of earlier code are not migrated (`revision.py`).
The first migration after it writes them out here as they were.
"""

from alembic import op

from turnkeeper.stores.database.tables import METADATA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    METADATA.create_all(op.get_bind(), checkfirst=False)
