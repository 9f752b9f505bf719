"""Parked prompts come back in the order of their numbers, and a prompt's last fate can be asked for (SES-6)."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from tests.stores.builders import NOW
from turnkeeper.models.session.prompts import Fate, FateName, Prompt
from turnkeeper.models.settings.settings import Settings
from turnkeeper.stores.archive import Prompts
from turnkeeper.stores.database.database import Database
from turnkeeper.stores.stores import Stores


@pytest.fixture
def prompts(database: Database) -> Prompts:
    return Prompts(database)


def waiting(first: int, last: int, *, text: str = "hello") -> list[Prompt]:
    return [Prompt(id=f"m{number}", text=text, received_at=NOW) for number in range(first, last + 1)]


def fate(message_id: str, name: FateName, *, seconds: float = 0) -> Fate:
    return Fate(id=message_id, fate=name, at=NOW + timedelta(seconds=seconds), reason="why")


async def parked(
    prompts: Prompts, *, session: str = "s1", first: int = 1, max_prompts: int = 100, max_bytes: int = 10**6
) -> list[str]:
    stored = await prompts.parked(session, first=first, max_prompts=max_prompts, max_bytes=max_bytes)
    return [prompt.id for prompt in stored]


async def test_ses_6_parked_prompts_are_read_back_unchanged_and_in_order(prompts: Prompts):
    steered = Prompt(id="m4", text='naïve "🎉"\n', received_at=NOW, sent_at=NOW, mode="steer")
    await prompts.park("s1", first=4, prompts=[steered])
    await prompts.park("s1", first=1, prompts=waiting(1, 3))
    assert await prompts.parked("s1", first=1, max_prompts=9, max_bytes=10**6) == [*waiting(1, 3), steered]
    assert await parked(prompts, first=2, max_prompts=2) == ["m2", "m3"]
    assert await parked(prompts, first=5) == []


async def test_ses_6_a_batch_of_parked_prompts_is_bounded_and_has_at_least_one(prompts: Prompts):
    await prompts.park("s1", first=1, prompts=waiting(1, 5, text="x" * 98))
    assert await parked(prompts, max_bytes=250) == ["m1", "m2"]
    assert await parked(prompts, max_bytes=0) == ["m1"]


async def test_ses_6_parking_the_same_prompts_again_changes_nothing(prompts: Prompts):
    await asyncio.gather(*(prompts.park("s1", first=1, prompts=waiting(1, 5)) for _ in range(5)))
    assert await parked(prompts) == ["m1", "m2", "m3", "m4", "m5"]


async def test_ses_6_parked_prompts_are_deleted_only_below_a_number(prompts: Prompts):
    await prompts.park("s1", first=1, prompts=waiting(1, 300))
    await prompts.park("s2", first=1, prompts=waiting(1, 2))
    for _ in range(2):
        await prompts.forget_parked("s1", below=299)
    assert await parked(prompts) == ["m299", "m300"]
    assert await parked(prompts, session="s2") == ["m1", "m2"]


async def test_ses_6_of_several_fates_of_an_id_the_latest_wins_in_any_write_order(prompts: Prompts):
    await prompts.put_fates("s1", [fate("m1", "rejected"), fate("m2", "steered"), fate("m1", "withdrawn")])
    assert await prompts.fate_of("s1", "m1") == fate("m1", "withdrawn")
    later = fate("m1", "discarded", seconds=9)
    await prompts.put_fates("s1", [later])
    await prompts.put_fates("s1", [fate("m1", "rejected"), fate("m2", "steered")])
    assert await prompts.fate_of("s1", "m1") == later
    assert await prompts.fate_of("s1", "m2") == fate("m2", "steered")
    assert await prompts.fate_of("s1", "m3") is None
    assert await prompts.fate_of("s2", "m1") is None


async def test_ses_6_storing_no_fates_and_no_prompts_does_nothing(prompts: Prompts):
    await prompts.put_fates("s1", [])
    await prompts.park("s1", first=1, prompts=[])
    assert await parked(prompts) == []


async def test_api_1_a_deleted_session_leaves_no_prompt_and_no_fate(tmp_path: Path):
    async with Stores.of(Settings(state_dir=tmp_path)) as stores:
        for session in ("s1", "s2"):
            await stores.prompts.park(session, first=1, prompts=waiting(1, 250))
            await stores.prompts.put_fates(session, [fate(f"f{number}", "rejected") for number in range(250)])
        await stores.delete("s1")
        assert await parked(stores.prompts) == []
        assert await stores.prompts.fate_of("s1", "f7") is None
        assert await parked(stores.prompts, session="s2", first=250) == ["m250"]
        assert await stores.prompts.fate_of("s2", "f7") is not None
