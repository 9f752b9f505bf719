"""Sockets between workers and gateways of one machine: AGT-5."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness import BOUND
from tests.stores.partials.test_carriers import seen
from tests.waiting import until
from turnkeeper.activities.answer_publisher import AnswerPublisher
from turnkeeper.activities.providers.protocol import Delta
from turnkeeper.models.transcript.partial_output import MAX_PARTIAL_BYTES, PartialOutput, PartialTag
from turnkeeper.stores.partials import over_sockets
from turnkeeper.stores.partials.over_sockets import FOLDER, Follow, SocketCarrier

NAMES = {"namespace": "default", "task_queue": "q"}
TAG = PartialTag(message_id="a", turn=1, step=1, request=1, attempt=1)

Opened = Callable[..., "asyncio.Future[SocketCarrier]"]


@pytest.fixture(params=["unix", "loopback"])
def folder(request: pytest.FixtureRequest, state_dir: Path) -> Path:
    return state_dir if request.param == "unix" else state_dir / ("n" * 100)


@pytest.fixture
async def carriers() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def opened(stack: AsyncExitStack, folder: Path, *, listens: bool = False, **names: str) -> SocketCarrier:
    carrier = await stack.enter_async_context(SocketCarrier(folder, **{**NAMES, **names}))
    if listens:
        await carrier.listen()
    return carrier


def is_text(text: str) -> Callable[[PartialOutput], bool]:
    return lambda partial: "".join(part.text for part in partial.parts) == text


def later(attempt: int) -> PartialTag:
    return TAG.model_copy(update={"attempt": attempt})


async def test_agt_5_socket_and_folder_are_private(carriers: AsyncExitStack, folder: Path) -> None:
    old = os.umask(0)
    try:
        await opened(carriers, folder, listens=True)
    finally:
        os.umask(old)
    (file,) = (folder / FOLDER).iterdir()
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in (folder / FOLDER, file)] == ["0o700", "0o600"]


async def test_agt_5_a_stopped_worker_leaves_no_file(state_dir: Path) -> None:
    async with SocketCarrier(state_dir, **NAMES) as worker:
        await worker.listen()
        assert len(list((state_dir / FOLDER).iterdir())) == 1
    assert list((state_dir / FOLDER).iterdir()) == []


async def left_by_a_dead_worker(folder: Path) -> Path:
    """Return the file of a worker that was killed."""
    async with SocketCarrier(folder, **NAMES) as dead:
        await dead.listen()
        file, dead._file = dead._file, None
    assert file is not None
    assert file.exists()
    return file


async def test_agt_5_a_worker_that_starts_removes_the_files_of_dead_ones(
    carriers: AsyncExitStack, folder: Path
) -> None:
    alive = await opened(carriers, folder, listens=True)
    files = [await left_by_a_dead_worker(folder) for _ in range(2)]
    worker = await opened(carriers, folder, listens=True)
    assert set((folder / FOLDER).iterdir()) == {alive._file, worker._file}
    assert not any(file.exists() for file in files)


@pytest.mark.parametrize("length", range(104, 112))
async def test_agt_5_a_path_of_any_length_can_be_connected(
    carriers: AsyncExitStack, state_dir: Path, length: int
) -> None:
    rest = len(f"/{FOLDER}/12345678-12345678.sock")
    folder = state_dir / ("n" * (length - rest - len(str(state_dir)) - 1))
    worker, gateway = await opened(carriers, folder, listens=True), await opened(carriers, folder)
    assert len(str(worker._file)) == length
    with AnswerPublisher(worker, "s", TAG) as answer:
        answer.grow(Delta("respond", "Hel"))
        async with gateway.following("s") as live:
            await seen(live, is_text("Hel"))


async def test_agt_5_a_socket_that_can_not_be_read_is_logged_once(
    carriers: AsyncExitStack, state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(over_sockets, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(over_sockets, "SCAN_SECONDS", 0.01)
    attempts = 0

    async def forbidden(*_: object, **__: object) -> object:
        nonlocal attempts
        attempts += 1
        raise PermissionError

    worker, gateway = await opened(carriers, state_dir, listens=True), await opened(carriers, state_dir)
    monkeypatch.setattr(asyncio, "open_unix_connection", forbidden)

    async def is_retried() -> bool:
        return attempts >= 3

    async with gateway.following("s"):
        await until(is_retried)
    assert worker._file is not None
    assert worker._file.exists(), "its worker may be alive"
    assert [record.levelname for record in caplog.records if "can't be read" in record.message] == ["WARNING"]


async def test_agt_5_the_file_of_a_dead_worker_is_removed(carriers: AsyncExitStack, folder: Path) -> None:
    worker, gateway = await opened(carriers, folder, listens=True), await opened(carriers, folder)
    file = await left_by_a_dead_worker(folder)
    async with gateway.following("s") as live:
        with AnswerPublisher(worker, "s", TAG) as answer:
            answer.grow(Delta("respond", "Hel"))
            await seen(live, is_text("Hel"))

        async def is_removed() -> bool:
            return not file.exists()

        await until(is_removed)


async def test_agt_5_a_program_that_reuses_the_port_of_a_dead_worker_is_not_trusted(
    carriers: AsyncExitStack, state_dir: Path
) -> None:
    folder = state_dir / ("n" * 100)
    dead = await opened(carriers, folder, listens=True)
    file, server, dead._file = dead._file, dead._server, None
    assert file is not None
    assert server is not None
    port = server.sockets[0].getsockname()[1]
    server.close()

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'wrong\n{"id":"s","growth":{}}\n')
        await reader.read()
        writer.close()

    async with await asyncio.start_server(lie, "127.0.0.1", port, reuse_address=True):
        gateway = await opened(carriers, folder)
        async with gateway.following("s") as live:

            async def is_removed() -> bool:
                return not file.exists()

            await until(is_removed)
            assert live.latest is None


async def test_agt_5_a_connection_without_the_token_receives_nothing(carriers: AsyncExitStack, state_dir: Path) -> None:
    worker = await opened(carriers, state_dir / ("n" * 100), listens=True)
    assert worker._server is not None
    with AnswerPublisher(worker, "s", TAG) as answer:
        answer.grow(Delta("respond", "secret"))
        reader, writer = await asyncio.open_connection(*worker._server.sockets[0].getsockname())
        writer.write(b'guess\n{"follow":"s"}\n')
        async with asyncio.timeout(BOUND):
            assert await reader.read() == b""
        writer.close()


async def test_agt_5_with_two_workers_and_two_gateways_the_later_attempt_counts(
    carriers: AsyncExitStack, folder: Path
) -> None:
    outdated, current = [await opened(carriers, folder, listens=True) for _ in range(2)]
    gateways = [await opened(carriers, folder) for _ in range(2)]
    with AnswerPublisher(outdated, "s", TAG) as old, AnswerPublisher(current, "s", later(2)) as new:
        old.grow(Delta("respond", "Never finished"))
        for gateway in gateways:
            async with gateway.following("s") as live:
                await seen(live, is_text("Never finished"))
                new.grow(Delta("respond", "An"))
                old.grow(Delta("respond", ", and longer"))
                await seen(live, lambda partial: partial.attempt == 2)
                new.grow(Delta("respond", "other"))
                await seen(live, lambda partial: partial.parts[0].text.endswith("other"))
                assert live.latest is not None
                assert live.latest.attempt == 2
            old.grow(Delta("respond", "!"))
            break
        async with gateways[1].following("s") as live:
            assert is_text("Another")(await seen(live, lambda partial: partial.attempt == 2))


async def test_agt_5_a_restarted_gateway_gets_all_output_so_far(carriers: AsyncExitStack, folder: Path) -> None:
    worker = await opened(carriers, folder, listens=True)
    with AnswerPublisher(worker, "s", TAG) as answer:
        for text in ("Hel", "lo"):
            async with SocketCarrier(folder, **NAMES) as gateway, gateway.following("s") as live:
                answer.grow(Delta("respond", text))
                await seen(live, lambda partial, text=text: partial.parts[0].text.endswith(text))
        assert live.latest is not None
        assert is_text("Hello")(live.latest)


async def test_agt_5_a_follower_that_leaves_and_returns_at_once_misses_nothing(
    carriers: AsyncExitStack, folder: Path
) -> None:
    worker, gateway = await opened(carriers, folder, listens=True), await opened(carriers, folder)
    with AnswerPublisher(worker, "s", TAG) as answer:
        answer.grow(Delta("respond", "0"))
        for number in range(1, 30):
            async with gateway.following("s") as live:
                await seen(live, lambda partial: True)
                answer.grow(Delta("respond", f" {number}"))
        async with gateway.following("s") as live:
            await seen(live, is_text(" ".join(map(str, range(30)))))


@pytest.mark.parametrize("names", [{"task_queue": "other"}, {"namespace": "other"}])
async def test_agt_5_installations_that_share_a_folder_are_isolated(
    carriers: AsyncExitStack, state_dir: Path, names: dict[str, str]
) -> None:
    foreign = await opened(carriers, state_dir, listens=True, **names)
    worker, gateway = await opened(carriers, state_dir, listens=True), await opened(carriers, state_dir)
    with AnswerPublisher(foreign, "s", later(9)) as foreign_answer, AnswerPublisher(worker, "s", TAG) as answer:
        foreign_answer.grow(Delta("respond", "not ours"))
        answer.grow(Delta("respond", "ours"))
        async with gateway.following("s") as live:
            assert is_text("ours")(await seen(live, lambda partial: True))


async def test_agt_5_a_slow_gateway_gets_the_newest_output_and_delays_no_others(
    carriers: AsyncExitStack, state_dir: Path
) -> None:
    worker, gateway = await opened(carriers, state_dir, listens=True), await opened(carriers, state_dir)
    reader, writer = await asyncio.open_unix_connection(str(worker._file), limit=1024)
    writer.write(Follow(follow="s").model_dump_json().encode() + b"\n")
    with AnswerPublisher(worker, "s", TAG) as answer:
        async with gateway.following("s") as live:
            answer.grow(Delta("respond", "0"))
            await seen(live, lambda partial: True)
            for number in range(1, 40):
                answer.grow(Delta("respond", f" {number}" + "x" * 40_000))
                await seen(live, lambda partial, number=number: f" {number}x" in partial.parts[0].text)
        slow = max(worker._gateways, key=lambda one: one.writer.transport.get_write_buffer_size())
        assert slow.writer.transport.get_write_buffer_size() < 4 * MAX_PARTIAL_BYTES
        assert len(slow._unsent) == 1
        newest = b""
        while b" 39x" not in newest:
            newest = newest[-10:] + await reader.read(65_536)
    writer.close()


@pytest.mark.parametrize("nonsense", [b"nonsense\n", b"x" * 100_000])
async def test_agt_5_a_worker_drops_a_connection_with_an_unknown_protocol(
    carriers: AsyncExitStack, state_dir: Path, nonsense: bytes
) -> None:
    worker = await opened(carriers, state_dir, listens=True)
    reader, writer = await asyncio.open_unix_connection(str(worker._file))
    writer.write(nonsense)
    async with asyncio.timeout(BOUND):
        with_error = await asyncio.gather(reader.read(), return_exceptions=True)
    assert with_error[0] == b"" or isinstance(with_error[0], ConnectionError)
    writer.close()


async def test_agt_5_bytes_grow_linearly_with_the_text(
    carriers: AsyncExitStack, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SocketCarrier, "min_pause", 0.0)
    worker = await opened(carriers, state_dir, listens=True)
    reader, writer = await asyncio.open_unix_connection(str(worker._file), limit=2**20)
    writer.write(Follow(follow="s").model_dump_json().encode() + b"\n")
    with AnswerPublisher(worker, "s", TAG) as answer:
        total = 0
        for _ in range(200):
            answer.grow(Delta("respond", "x" * 100))
            async with asyncio.timeout(BOUND):
                total += len(await reader.readline())
    assert total < 2 * 200 * 300
    writer.close()


async def test_agt_5_without_a_socket_there_is_no_partial_output_and_answers_continue(
    carriers: AsyncExitStack, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (state_dir / FOLDER).write_text("a file in its place")
    worker = await opened(carriers, state_dir, listens=True)
    with AnswerPublisher(worker, "s", TAG) as answer:
        answer.grow(Delta("respond", "Hello"))
    assert "partial output is not shown" in caplog.text
