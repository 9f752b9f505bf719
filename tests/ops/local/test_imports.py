"""What `turnkeeper up` loads: it only starts and watches other programs (OPS-11)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_ops_11_the_process_that_starts_the_others_does_not_load_the_database() -> None:
    script = """if True:
        import sys
        import turnkeeper.cli, turnkeeper.ops.local.supervisor
        print([name for name in ("alembic", "mcp", "sqlalchemy") if name in sys.modules])
    """
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
