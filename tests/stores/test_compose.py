"""The archive's database in the containers is made by a job, and the store can use it (OPS-5, SES-15)."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.stores.builders import turns
from tests.stores.postgresql import HOST, SECONDS, PostgreSQL
from turnkeeper.stores.archive import Archive
from turnkeeper.stores.database.database import Database

COMPOSE = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
JOB = re.search(r"^  archive-database:\n.*?- \|\n(?P<script>(?: {8}[^\n]*\n)+)", COMPOSE, re.MULTILINE | re.DOTALL)
URL = re.search(r"TURNKEEPER_ARCHIVE_URL: (?P<url>.*)", COMPOSE)


def run_job(server: PostgreSQL, password: str) -> None:
    script = dedent(JOB["script"]).replace("$$", "$")
    environment = {**server.environment, "ARCHIVE_PASSWORD": password}
    ran = subprocess.run(["/bin/sh", "-euc", script], env=environment, capture_output=True, timeout=SECONDS, check=True)
    assert ran.stderr == b""


@pytest.fixture
def emptied(server: PostgreSQL) -> Iterator[PostgreSQL]:
    yield server
    server.run_sql("DROP DATABASE turnkeeper WITH (FORCE)")
    server.run_sql("DROP ROLE turnkeeper")


async def test_ops_5_running_the_archive_job_again_changes_only_the_password(emptied: PostgreSQL, monkeypatch):
    for variable in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(variable)
    for password, count in (("it's $1 @/%:\"", 2), ("another", 4)):
        run_job(emptied, password)
        monkeypatch.setenv("PGPASSWORD", password)
        database = Database(URL["url"].replace("postgresql:5432", f"{HOST}:{emptied.port}"))
        await Archive(database).put_turns("s1", turns(1, count))
        assert await Archive(database).count("s1") == count
        await database.close()
    assert emptied.run_sql("SELECT rolsuper, rolcreatedb FROM pg_roles WHERE rolname = 'turnkeeper'") == "f|f"
