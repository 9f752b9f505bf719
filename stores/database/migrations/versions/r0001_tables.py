"""The tables of the first release.

A store has the tables of all features, whichever are on. Until there is a release, tables are only in the modules
`tables.py`, and databases of earlier code are not migrated (`database.py`). The first migration after it writes them
out here as they were.
"""

from alembic import op

from turnkeeper.features import load_tables
from turnkeeper.stores.database.tables import METADATA

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    load_tables()
    METADATA.create_all(op.get_bind(), checkfirst=False)
