"""Handles of tasks are random, their owner's alone, and gone with their session or their time (TSK-6)."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select

from tests.stores.builders import NOW
from turnkeeper.features.tasks.tables import LIFETIME, MAX_EXPIRED_AT_ONCE, TASK_HANDLES, TaskHandles
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.stores import Stores


@pytest.fixture
def handles(database: Database) -> TaskHandles:
    return TaskHandles(database)


async def stored(database: Database) -> int:
    return await database.read(lambda connection: connection.scalar(select(func.count()).select_from(TASK_HANDLES)))


async def test_tsk_6_a_handle_is_found_as_it_was_created_also_by_another_process(handles: TaskHandles, url: str):
    handle = await handles.create("s1", "m1", owner="local", now=NOW)
    assert (handle.session_id, handle.message_id, handle.created_at) == ("s1", "m1", NOW)
    elsewhere = Database(url)
    assert await TaskHandles(elsewhere).find(handle.id, owner="local", now=NOW) == handle
    await elsewhere.close()


async def test_tsk_6_a_handle_cannot_be_guessed_and_differs_from_all_ids(handles: TaskHandles):
    created = [(await handles.create("a-session", "a-prompt", owner="local", now=NOW)).id for _ in range(20)]
    assert len(set(created)) == 20
    assert all(len(handle) == 32 and "session" not in handle and "prompt" not in handle for handle in created)


async def test_tsk_6_a_handle_is_not_found_by_another_owner(handles: TaskHandles):
    handle = await handles.create("s1", "m1", owner="local", now=NOW)
    assert await handles.find(handle.id, owner="ada", now=NOW) is None
    assert await handles.find("s1", owner="local", now=NOW) is None


async def test_tsk_6_an_expired_handle_is_deleted_when_the_next_one_is_created(
    handles: TaskHandles, database: Database
):
    expiring = [await handles.create("s1", f"m{number}", owner="local", now=NOW) for number in range(3)]
    end = NOW + LIFETIME
    assert await handles.find(expiring[0].id, owner="local", now=end - timedelta(seconds=1)) == expiring[0]
    assert await handles.find(expiring[0].id, owner="local", now=end) is None
    await handles.create("s1", "m4", owner="local", now=end)
    assert await stored(database) == 1 < MAX_EXPIRED_AT_ONCE


async def test_tsk_6_a_deleted_session_leaves_no_handle(tmp_path):
    async with Stores.of(Settings(state_dir=tmp_path)) as stores:
        mine = await TaskHandles(stores.database).create("s1", "m1", owner="local", now=NOW)
        other = await TaskHandles(stores.database).create("s2", "m1", owner="local", now=NOW)
        await stores.delete("s1")
        assert await TaskHandles(stores.database).find(mine.id, owner="local", now=NOW) is None
        assert await TaskHandles(stores.database).find(other.id, owner="local", now=NOW) == other
