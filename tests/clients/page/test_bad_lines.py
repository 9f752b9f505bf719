"""A line that goes dead without a word, or breaks in the middle of an answer, is noticed and got over (API-5)."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.clients.page.conftest import reset_after
from tests.clients.page.line import Line, line_to
from tests.clients.page.tab import Tab, http_client, tabs_of
from tests.clients.page.test_sessions import SEEN, started
from tests.harness import Environment, Gate, says
from turnkeeper.activities.providers.protocol import Delta


@pytest.fixture(scope="module")
async def line(shared_url: str) -> AsyncIterator[Line]:
    async with line_to(shared_url) as line:
        yield line


@pytest.fixture(scope="module")
async def tab_of_file(browser: Browser, line: Line) -> AsyncIterator[Tab]:
    async with tabs_of(browser, line.url) as open_tab:
        tab = await open_tab()
        await tab.page.clock.install()
        yield tab


@pytest.fixture
async def tab(tab_of_file: Tab, url: str) -> AsyncIterator[Tab]:
    """A tab whose line to the gateway is not to be relied on, and whose clock a test can put forward."""
    async with reset_after(tab_of_file):
        tab_of_file.may_be_cut_off = True
        yield tab_of_file


async def prompt_elsewhere(url: str, session: str, prompt: str) -> None:
    async with http_client(url) as http:
        await http.post(f"/workflow/{session}/prompt?wait=30", json={"message": prompt})


async def test_api_5_a_silently_dead_stream_is_reopened(tab: Tab, line: Line, env: Environment) -> None:
    await tab.open()
    await tab.send("one")
    await tab.shows(1)
    line.kill_streams()
    await prompt_elsewhere(line.target, tab.session, "two")
    await tab.page.clock.run_for(20_000)
    await expect(tab.turns).to_have_count(1)
    await tab.page.clock.run_for(30_000)
    await tab.shows(2)
    await tab.shows_the_transcript()


async def test_api_5_a_tab_that_becomes_visible_is_updated_at_once(tab: Tab, line: Line, env: Environment) -> None:
    await tab.open()
    await tab.send("one")
    await tab.shows(1)
    await tab.page.evaluate(SEEN.format(state="hidden"))
    line.kill_streams()
    await prompt_elsewhere(line.target, tab.session, "two")
    await tab.page.clock.run_for(10_000)
    await expect(tab.turns).to_have_count(1)
    await tab.page.evaluate(SEEN.format(state="visible"))
    await tab.shows(2)


async def test_api_5_an_answer_lost_by_a_dead_stream_is_fetched(tab: Tab, line: Line, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Half of"), gate, says("Half of it, and the rest.")]]
    await tab.open()
    await tab.send("one")
    await expect(tab.growing).to_have_text("Half of")
    line.kill_streams()
    gate.open()
    await prompt_elsewhere(line.target, tab.session, "two")  # it is answered after the first
    await tab.page.clock.run_for(7_000)
    await tab.shows(2)
    await tab.shows_the_transcript()


async def test_api_5_a_response_that_is_cut_off_is_requested_again(tab: Tab, line: Line, env: Environment) -> None:
    session = await started(line.target, "one")
    for request_line in ("GET /workflow/[^/]+/conversation/full", "GET /workflow/[^/]+ ", "GET /workflow[? ]"):
        line.cuts.append(request_line)
        await tab.load(session)
        await tab.shows(1)
        await expect(tab.state).to_have_text("")
        assert line.cuts == []


async def test_api_5_a_prompt_becomes_one_turn_if_its_response_is_cut_off(
    tab: Tab, line: Line, env: Environment
) -> None:
    session = await started(line.target, "one")
    await tab.open(session)
    await tab.shows(1)
    line.cuts.append("POST /workflow/[^/]+/prompt")
    await tab.send("two")
    await tab.shows(2)
    assert line.cuts == []


async def test_api_5_an_event_stream_that_arrives_byte_by_byte_is_parsed_correctly(tab: Tab) -> None:
    await tab.open()
    events = await tab.page.evaluate(
        """async () => {
          const { eventsOf } = await import(new URL("conversation/event_stream.js", document.scripts[0].src));
          const sent = ": alive\\r\\n\\r\\n"
            + "event: update\\r\\nid: 1.a\\r\\ndata: {\\"ä\\":\\r\\ndata: \\"🦊\\"}\\r\\n\\r\\n"
            + "data:x\\n\\nevent: half";
          const bytes = [...new TextEncoder().encode(sent)].map((byte) => new Uint8Array([byte]));
          let signs = 0;
          const read = [];
          const body = new ReadableStream({
            pull: (stream) => (bytes.length ? stream.enqueue(bytes.shift()) : stream.close()),
          });
          const count = bytes.length;
          for await (const event of eventsOf(body, () => { signs += 1; })) read.push(event);
          return { read, areAllSigns: signs === count };
        }"""
    )
    read = [{"name": "update", "text": '{"ä":\n"🦊"}'}, {"name": "", "text": "x"}]
    assert events == {"read": read, "areAllSigns": True}
