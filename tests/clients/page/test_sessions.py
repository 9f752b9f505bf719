"""Many sessions and long ones: the list, the links, what can be done to a session as a whole (API-5)."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx
from playwright.async_api import Route, expect

from tests.clients.conftest import TEMPORAL_UI
from tests.clients.page.tab import Tab, http_client
from tests.harness import Environment, Gate, says
from tests.waiting import until
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.transcript.model_call import ModelResponse, RespondPart


async def started(url: str, *prompts: str, **start: object) -> str:
    """Return the id of a session in which each of `prompts` is answered."""
    session = f"s-{uuid4()}"
    async with http_client(url) as http:
        (await http.post("/workflow", json={"id": session, **start})).raise_for_status()
        for prompt in prompts:
            answer = await http.post(f"/workflow/{session}/prompt?wait=30", json={"message": prompt})
            assert answer.status_code == 200
    return session


PAGE = Path(__file__).parents[3] / "clients" / "page"
FOUR_MESSAGES = {"max_messages": 4, "preserve_first_n": 0, "preserve_last_n": 2, "evict_block": 0}


async def _states(http: httpx.AsyncClient, stem: str) -> list[str]:
    listed = (await http.get("/workflow", params={"q": stem})).json()["sessions"]
    return sorted(session["status"] for session in listed)


async def test_api_5_sessions_are_listed_with_title_and_status_searched_and_filtered(
    tab: Tab, env: Environment
) -> None:
    stem = uuid4().hex[:8]
    await started(tab.url, title=f"{stem} Apples")
    pears = await started(tab.url, title=f"{stem} Pears")
    async with http_client(tab.url) as http:
        (await http.post(f"/workflow/{pears}/end")).raise_for_status()

        async def are_listed() -> bool:
            return await _states(http, stem) == ["ended", "open"]

        await until(are_listed)  # Temporal's visibility is a moment late
    await tab.open()
    entries = tab.page.locator("#sessions li:not(.group)")
    await tab.page.get_by_label("Search sessions").fill(stem)
    await expect(entries).to_have_count(2)
    await tab.page.get_by_label("Filter sessions by status").select_option("ended")
    await expect(entries).to_have_count(1)
    await expect(entries).to_contain_text(f"{stem} Pears")
    await expect(entries).to_contain_text("ended")
    await tab.page.get_by_label("Search sessions").fill("no such thing")
    await expect(tab.page.get_by_text("No matching sessions")).to_be_visible()


async def test_api_5_a_session_without_turns_shows_a_hint(tab: Tab, env: Environment) -> None:
    session = await started(tab.url)
    await tab.open(session)
    note = tab.page.locator("#no-turns")
    await expect(note).to_have_text("No prompts yet. Write the first one below.")
    await tab.send("Hi")
    await expect(note).to_be_hidden()
    await tab.shows(1)


async def test_api_5_every_session_has_a_url_and_back_works(tab: Tab, env: Environment) -> None:
    first = await started(tab.url, "one", title="First")
    second = await started(tab.url, "two", title="Second")
    await tab.open(first)
    await expect(tab.answers).to_have_text("echo: one")
    await tab.page.get_by_label("Search sessions").fill("Second")
    await tab.page.locator(f'#sessions a[href="/?session={second}"]').click()
    await expect(tab.answers).to_have_text("echo: two")
    assert tab.session == second
    await expect(tab.page).to_have_title("Second · Turnkeeper")
    await tab.page.go_back()
    await expect(tab.answers).to_have_text("echo: one")
    await tab.page.get_by_role("link", name="New session").click()
    await expect(tab.page.get_by_role("heading", name="What would you like to do?")).to_be_visible()
    await expect(tab.turns).to_have_count(0)


async def test_api_5_the_session_menu_links_to_temporal_renames_switches_model_and_ends(
    tab: Tab, env: Environment
) -> None:
    session = await started(tab.url, "one")
    await tab.open(session)
    more = tab.page.get_by_role("button", name="More about this session")
    await more.click()
    link = tab.page.get_by_role("link", name="Open in Temporal")
    await expect(link).to_have_attribute("href", f"{TEMPORAL_UI}/namespaces/default/workflows/{session}")
    await tab.button("Rename…").click()
    await tab.page.get_by_label("Title", exact=True).fill("Renamed")
    await tab.button("Rename").click()
    await expect(tab.page.locator("#session-title")).to_have_text("Renamed")
    await more.click()
    await tab.button("Change the model…").click()
    await tab.page.locator("#model-name").fill("anthropic:claude-x")
    await tab.button("Change").click()
    await expect(tab.page.locator("#session-model")).to_have_text("anthropic:claude-x")
    await more.click()
    await tab.button("End the session…").click()
    await tab.button("End session").click()
    await expect(tab.state).to_contain_text("This session has ended")
    await more.click()
    await expect(tab.button("Rename…")).to_be_disabled()


async def test_api_5_an_error_notice_stays_until_it_is_dismissed(clock_tab: Tab, env: Environment) -> None:
    """U12: it neither covers the status nor disappears unread."""
    session = await started(clock_tab.url, "one")
    clock_tab.may_be_cut_off = True  # the browser notes the 422
    await clock_tab.open(session)
    await clock_tab.page.get_by_role("button", name="More about this session").click()
    await clock_tab.button("Change the model…").click()
    await clock_tab.page.locator("#model-name").fill("nonsense")
    await clock_tab.button("Change").click()
    await expect(clock_tab.notice).to_contain_text("nonsense")
    await expect(clock_tab.page.locator("#session-model")).to_have_text("offline:")
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Half"), gate, says("Half and half.")]]
    await clock_tab.send("two")
    await expect(clock_tab.state).to_have_text("Working on it")
    await clock_tab.page.clock.run_for(60_000)
    await expect(clock_tab.notice).to_contain_text("nonsense")
    gate.open()
    await clock_tab.shows(2)
    await clock_tab.button("Dismiss").click()
    await expect(clock_tab.notice).to_have_count(0)
    await expect(clock_tab.text).to_be_focused()


async def test_api_5_an_old_session_opened_by_its_link_is_listed_by_its_age(tab: Tab, env: Environment) -> None:
    """U4: beyond the list's first page."""
    session = await started(tab.url, "one", title="An old one")

    def listed(number: int, hour: int) -> dict[str, object]:
        at = datetime(2099 if hour else 2000, 1, 1, hour, tzinfo=UTC).isoformat()
        return {"workflow_id": f"s{number}", "title": f"Session {number}", "user": None, "model": None,
                "status": "open", "turn_count": 1, "started_at": at, "closed_at": None}  # fmt: skip

    async def page_one(route: Route) -> None:
        await route.fulfill(json={"sessions": [listed(1, 2), listed(2, 1), listed(3, 0)], "next_cursor": "more"})

    await tab.page.route(re.compile(r"/workflow(\?|$)"), page_one)
    began = datetime.now(UTC) - timedelta(hours=3)

    async def described(route: Route) -> None:
        answer = await route.fetch()
        await route.fulfill(json={**await answer.json(), "created_at": began.isoformat()})

    await tab.page.route(re.compile(rf"/workflow/{session}$"), described)
    await tab.load(session)
    rows = tab.page.locator("#sessions li:not(.group)")
    await expect(rows).to_have_count(4)
    titles = [text.split("\n")[0] for text in await rows.all_inner_texts()]
    assert titles == ["Session 1", "Session 2", "An old one", "Session 3"]
    await expect(rows.nth(2)).to_contain_text("3 h")


async def test_api_5_the_session_list_shows_days_previews_turns_and_costs(tab: Tab, env: Environment) -> None:
    now = datetime.now(UTC)

    def listed(number: int, *, days: float, **fields: object) -> dict[str, object]:
        at = (now - timedelta(days=days)).isoformat()
        return {"workflow_id": f"s{number}", "title": f"Session {number}", "preview": None, "turn_count": 0,
                "cost": None, "status": "open", "started_at": at, "last_activity_at": at, "closed_at": None,
                **fields}  # fmt: skip

    async def page_one(route: Route) -> None:
        rows = [
            listed(1, days=0, preview="And the weather?", turn_count=12, cost=0.25),
            listed(2, days=0, preview="Session 2 and so on", turn_count=1),
            listed(3, days=5),
            listed(4, days=400, status="ended"),
        ]
        await route.fulfill(json={"sessions": rows, "next_cursor": None})

    await tab.page.route(re.compile(r"/workflow(\?|$)"), page_one)
    await tab.open()
    rows = tab.page.locator("#sessions li")
    await expect(rows).to_have_count(7)
    assert [text.split("\n")[0] for text in await rows.all_inner_texts()] == [
        *("Today", "Session 1", "Session 2"),
        *("Last 7 days", "Session 3", "Older", "Session 4"),
    ]
    await expect(rows.nth(1)).to_contain_text("And the weather?")
    await expect(rows.nth(1)).to_contain_text("12 turns · $0.25")
    await expect(rows.nth(2)).to_contain_text("1 turn")
    await expect(rows.nth(2).locator(".preview")).to_be_hidden()


async def test_api_5_the_page_explains_the_demo_model_and_accepts_another_one(tab: Tab, env: Environment) -> None:
    await tab.open()
    await expect(tab.page.locator("#demo-model")).to_contain_text("This is the built-in demo model. It works offline")
    await expect(tab.page.locator("#session-model")).to_have_text("offline:")
    await tab.page.get_by_role("textbox", name="Model").fill("openai:gpt-x")
    await tab.send("Hi")
    await tab.shows(1)
    await expect(tab.page.locator("#session-model")).to_have_text("openai:gpt-x")


async def test_api_5_the_page_shows_what_the_model_still_remembers(tab: Tab, env: Environment) -> None:
    session = await started(tab.url, *(f"prompt {n}" for n in range(4)), history=FOUR_MESSAGES)
    await tab.open(session)
    await tab.shows(4)
    forgotten = tab.turns.first.locator(".seen")
    await expect(forgotten).to_have_text("The model no longer sees this turn")
    await expect(tab.turns.last.locator(".seen")).to_have_count(0)
    await tab.page.get_by_role("button", name="What the model remembers").click()
    rows = tab.page.locator(".turns-in-context li")
    await expect(rows).to_have_count(4)
    await expect(rows.first).to_contain_text("prompt 3")
    await expect(rows.first).to_contain_text("in full")
    await expect(rows.last).to_contain_text("no longer sent")


async def test_ctx_7_the_page_shows_the_limit_after_an_overflow_and_refused_turns(tab: Tab, env: Environment) -> None:
    too_long = ModelError("context_too_long", "200001 tokens")
    env.vendor.script = [says("hello"), too_long, says("again"), ModelError("refusal", "no")]
    session = await started(tab.url, "prompt 0", "prompt 1", "a bad prompt")
    await tab.open(session)
    await tab.shows(3)
    await tab.page.get_by_role("button", name="What the model remembers").click()
    body = tab.page.locator("#context-body")
    await expect(body).to_contain_text("An earlier request was too long, so now at most ")
    await expect(tab.page.locator('.turns-in-context li[data-seen="refused"]')).to_contain_text("left out")


async def with_short_pages(route: Route) -> None:
    """Let the page fetch six turns at a time, where it fetches 30."""
    module = (PAGE / "conversation" / "conversation.js").read_text()
    short = module.replace("PAGE_TURNS = 30", "PAGE_TURNS = 6")
    assert short != module
    await route.fulfill(content_type="text/javascript", body=short)


async def test_api_5_older_turns_of_a_long_session_load_without_a_jump(tab: Tab, env: Environment) -> None:
    env.vendor.answer = lambda request: ModelResponse(
        parts=[RespondPart(kind="respond", text="\n\n".join(["A paragraph of the answer."] * 8))], model="test"
    )
    await tab.page.route("**/conversation/conversation.js", with_short_pages)
    tab.is_altered = True
    session = await started(tab.url, *(f"prompt {n}" for n in range(15)))
    await tab.load(session)
    await expect(tab.turns).to_have_count(6)
    await expect(tab.turns.last).to_be_in_viewport()
    await expect(tab.turns.first.locator(".bubble")).to_have_text("prompt 9")
    first = tab.turns.filter(has_text="prompt 9")
    top = "(turn) => turn.getBoundingClientRect().top"
    await tab.log.hover()
    await tab.page.mouse.wheel(0, -600)
    await expect(tab.button("Jump to latest")).to_be_visible()
    before = await first.evaluate(top)
    await tab.page.locator("#older").evaluate("(button) => button.click()")
    await expect(tab.turns).to_have_count(12)
    assert abs(await first.evaluate(top) - before) <= 2
    await tab.page.locator("#log").evaluate("(log) => { log.scrollTop = 0; }")
    await expect(tab.turns).to_have_count(15)
    await expect(tab.page.locator("#older")).to_be_hidden()
    assert [turn["asked"] for turn in await tab.shown_turns()] == [f"prompt {n}" for n in range(15)]


async def test_api_5_the_scroll_position_is_preserved_except_at_the_end(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.answer = lambda request: says("\n\n".join(["A paragraph of the answer."] * 20))
    session = await started(tab.url, "one", "two")
    await tab.open(session)
    await tab.shows(2)
    env.vendor.script = [[Delta("respond", "more\n" * 60), gate, says("more\n" * 60)]]
    await tab.send("three")
    await expect(tab.growing).to_contain_text("more")
    distance = "(log) => log.scrollHeight - log.scrollTop - log.clientHeight"
    assert await tab.log.evaluate(distance) <= 2
    await tab.log.hover()
    await tab.page.mouse.wheel(0, -600)
    await expect(tab.button("Jump to latest")).to_be_visible()
    place = await tab.log.evaluate("(log) => log.scrollTop")
    gate.open()
    await tab.shows(3)
    assert abs(await tab.log.evaluate("(log) => log.scrollTop") - place) <= 2
    await tab.button("Jump to latest").click()
    await expect(tab.button("Jump to latest")).to_be_hidden()
    assert await tab.log.evaluate(distance) <= 2
    shrunken = await tab.log.evaluate(
        """async (log) => {
          const turn = document.querySelector("#turns > .turn:last-child");
          turn.remove();
          log.scrollTop; // as a layout in the middle of an update: the browser moves the log back
          document.querySelector("#turns").append(turn, turn.cloneNode(true));
          await null;
          log.dispatchEvent(new Event("scroll")); // as the browser does before anything of the next frame
          for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
          return log.scrollHeight - log.scrollTop - log.clientHeight;
        }"""
    )
    assert shrunken <= 2
    await expect(tab.button("Jump to latest")).to_be_hidden()


async def test_api_5_an_update_touches_only_the_turns_that_changed(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    session = await started(tab.url, "one", "two")
    await tab.open(session)
    await tab.shows(2)
    await expect(tab.page.locator("#session-title")).to_have_text("one")
    env.vendor.script = [[Delta("respond", "begun"), gate, Delta("respond", ", and on"), says("begun, and on")]]
    await tab.page.evaluate(
        """() => {
          window.touched = [];
          new MutationObserver((changes) => changes.forEach((change) => {
            const element = change.target.nodeType === 1 ? change.target : change.target.parentElement;
            window.touched.push(element.closest(".turn")?.querySelector(".bubble").textContent ?? "");
          })).observe(document.querySelector("#turns"), {subtree: true, childList: true, characterData: true});
        }"""
    )
    await tab.send("three")
    await expect(tab.growing).to_have_text("begun")
    gate.open()
    await tab.shows(3)
    assert set(await tab.page.evaluate("window.touched")) == {"", "three"}  # the list of turns, and the new one


async def test_api_5_the_theme_is_the_systems_unless_one_is_selected(tab: Tab) -> None:
    await tab.emulate(color_scheme="light")
    await tab.open()
    paper = "getComputedStyle(document.body).backgroundColor"
    light = await tab.page.evaluate(paper)
    await tab.page.get_by_label("Theme").select_option("dark")
    dark = await tab.page.evaluate(paper)
    assert dark != light
    await tab.page.reload()
    assert await tab.page.evaluate(paper) == dark
    await tab.page.get_by_label("Theme").select_option("")
    assert await tab.page.evaluate(paper) == light


async def test_api_5_a_long_prompt_is_folded_until_show_all(tab: Tab, env: Environment) -> None:
    await tab.open()
    await tab.send("a line\n" * 100)
    await tab.shows(1)
    bubble = tab.turns.locator(".bubble")
    height = "(bubble) => bubble.getBoundingClientRect().height"
    assert await bubble.evaluate(height) < 300
    await tab.button("Show all").click()
    assert await bubble.evaluate(height) > 1_000


async def test_api_5_a_session_that_waits_for_a_vendor_shows_the_time_left(tab: Tab, env: Environment) -> None:
    env.vendor.script = [ModelError("overloaded", "busy", retry_after=300.0)]
    await tab.open()
    await tab.send("Hi")
    await expect(tab.state).to_have_text("The model's provider is overloaded: busy. Trying again")
    await expect(tab.page.locator("#state")).to_contain_text(re.compile(r"Trying again\s+in 4 min \d+ s"))
    await tab.stop.click()
    await expect(tab.page.locator(".turn-error")).to_contain_text("You stopped this answer.")


FAKE_EVENTS = """() => {
  const encoder = new TextEncoder();
  const events = new ReadableStream({
    start: (controller) => {
      window.sendEvent = (name, data) =>
        controller.enqueue(encoder.encode(`event: ${name}\\ndata: ${JSON.stringify(data)}\\n\\n`));
    },
  });
  const send = window.fetch;
  window.fetch = async (resource, options) =>
    String(resource).includes("/events") ? new Response(events) : send(resource, options);
}"""


async def test_api_5_a_problem_in_the_stream_is_shown_until_the_session_can_be_read_again(
    tab: Tab, env: Environment
) -> None:
    session = await started(tab.url, "one")
    await tab.open()
    tab.is_altered = True
    await tab.page.evaluate(FAKE_EVENTS)
    await tab.open(session)
    await tab.shows(1)
    stuck = {"type": "urn:turnkeeper:problem:session-stuck", "status": 504, "detail": "It is stuck."}
    await tab.page.evaluate("problem => sendEvent('problem', problem)", stuck)
    await expect(tab.state).to_contain_text("This session is stuck")
    await tab.page.evaluate("sendEvent('queue', {waiting: []})")
    await expect(tab.state).to_have_text("")


async def test_api_5_a_hidden_tab_closes_its_connection_and_reconnects_when_visible(
    clock_tab: Tab, env: Environment
) -> None:
    await clock_tab.open()
    await clock_tab.send("one")
    await clock_tab.shows(1)
    await clock_tab.page.evaluate(SEEN.format(state="hidden"))
    async with clock_tab.page.expect_event("requestfailed", lambda request: "/events" in request.url):
        await clock_tab.page.clock.run_for(61_000)
    async with http_client(clock_tab.url) as http:
        await http.post(f"/workflow/{clock_tab.session}/prompt?wait=30", json={"message": "two"})
    await expect(clock_tab.turns).to_have_count(1)
    await clock_tab.page.evaluate(SEEN.format(state="visible"))
    await clock_tab.shows(2)
    await clock_tab.shows_the_transcript()


SEEN = """() => {{
  Object.defineProperty(document, "visibilityState", {{value: "{state}", configurable: true}});
  document.dispatchEvent(new Event("visibilitychange"));
}}"""


async def test_agn_4_the_agent_of_a_new_session_is_chosen_and_its_turns_name_it(tab: Tab, env: Environment) -> None:
    async with http_client(tab.url) as http:
        agent = {"instructions": "Be brief.", "tools": ["look"]}
        (await http.put("/agents/page-weather", json=agent)).raise_for_status()
    await tab.open()
    await tab.page.locator("#new-agent").select_option("page-weather")
    await tab.send("Hi")
    await expect(tab.answers).to_have_text("echo: Hi")
    await expect(tab.page.locator("#turns .response .facts")).to_contain_text("page-weather@1")
    await expect(tab.page.locator("#session-model")).to_contain_text("page-weather@1")
