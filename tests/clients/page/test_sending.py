"""Prompts reach the session in the order in which they were written in a tab, whatever fails on the way."""

import asyncio

from playwright.async_api import Route, expect

from tests.clients.page.tab import Tab
from tests.harness import Environment, Gate, says
from turnkeeper.activities.providers.protocol import Delta

PROMPTS = ["one", "two", "three", "four"]


async def prompts_of(tab: Tab) -> list[str]:
    return [turn["asked"] for turn in await tab.shown_turns()]


async def test_api_5_prompts_sent_in_quick_succession_become_turns_in_order(tab: Tab, env: Environment) -> None:
    first_may_go = asyncio.Event()
    posted = list[str]()

    async def slow_at_first(route: Route) -> None:
        posted.append(route.request.post_data_json["message"])
        if len(posted) == 1:
            await first_may_go.wait()
        await route.continue_()

    await tab.page.route("**/prompt", slow_at_first)
    await tab.open()
    for prompt in PROMPTS:
        await tab.send(prompt)
    await expect(tab.queue).to_have_count(len(PROMPTS) - 1)
    assert posted in ([], ["one"])
    first_may_go.set()
    await tab.shows(len(PROMPTS))
    assert await prompts_of(tab) == PROMPTS
    await tab.shows_the_transcript()


async def test_api_5_a_prompt_is_sent_before_the_user_is_loaded(tab: Tab, env: Environment) -> None:
    is_known = asyncio.Event()

    async def slow(route: Route) -> None:
        await is_known.wait()
        await route.continue_()

    await tab.page.route("**/me", slow)
    await tab.load()
    await tab.send("one")
    await tab.shows(1)
    is_known.set()
    await tab.shows_the_transcript()


async def test_api_5_an_unsent_prompt_blocks_later_ones_but_not_steering(tab: Tab, env: Environment) -> None:
    gate = Gate(is_open=False)
    env.vendor.script = [[Delta("respond", "Half of"), gate, says("Half of it, and the rest.")]]
    await tab.open()
    await tab.send("one")
    await expect(tab.growing).to_have_text("Half of")
    tab.may_be_cut_off = True

    async def abort_queued_prompts(route: Route) -> None:
        if route.request.post_data_json["mode"] == "enqueue":
            await route.abort()
        else:
            await route.continue_()

    await tab.page.route("**/prompt", abort_queued_prompts)
    await tab.send("two")
    await tab.send("three")
    await expect(tab.page.locator("#queue-title")).to_have_text("2 prompts not sent")
    await tab.page.get_by_role("radio", name="Steer").check()
    await tab.send("steered")
    await expect(tab.page.locator("#queue-title")).to_have_text("1 prompt queued, 2 prompts not sent")
    await tab.page.unroute("**/prompt")
    await tab.button("Retry").last.click()
    await expect(tab.page.locator("#queue-title")).to_have_text("3 prompts queued")
    gate.open()
    await tab.shows(4)
    assert await prompts_of(tab) == [
        "one",
        "steered",
        "two",
        "three",
    ]  # there was no step that it could join: it runs next


async def test_api_5_prompts_written_offline_are_sent_in_order_when_online_again(tab: Tab, env: Environment) -> None:
    await tab.open()
    await tab.send("zero")
    await tab.shows(1)
    tab.may_be_cut_off = True
    await tab.page.context.set_offline(True)
    for prompt in PROMPTS:
        await tab.send(prompt)
    await expect(tab.page.locator("#queue-title")).to_have_text("4 prompts not sent")
    await tab.page.context.set_offline(False)
    await tab.shows(1 + len(PROMPTS))
    assert await prompts_of(tab) == ["zero", *PROMPTS]


async def test_api_5_a_failed_prompt_is_sent_again_while_the_stream_stays_live(
    clock_tab: Tab, env: Environment
) -> None:
    await clock_tab.open()
    await clock_tab.send("one")
    await clock_tab.shows(1)
    clock_tab.may_be_cut_off = True
    await clock_tab.page.route("**/prompt", lambda route: route.abort())
    await clock_tab.send("two")
    for _ in range(4):
        await clock_tab.page.clock.run_for(2_500)
    await expect(clock_tab.page.locator("#queue-title")).to_have_text("1 prompt not sent")
    await clock_tab.page.unroute("**/prompt")
    await clock_tab.page.clock.run_for(60_000)
    await clock_tab.shows(2)


async def test_api_5_a_closed_session_offers_no_retry_and_returns_a_rejected_prompt(tab: Tab, env: Environment) -> None:
    env.vendor.script = [[Delta("respond", "Half of"), Gate(is_open=False), says("Half of it.")]]
    await tab.open()
    await tab.send("one")
    await expect(tab.growing).to_have_text("Half of")
    await tab.stop.click()
    await expect(tab.button("Retry")).to_be_visible()
    await tab.page.get_by_role("button", name="More about this session").click()
    await tab.button("End the session…").click()
    await tab.button("End session").click()
    await expect(tab.state).to_contain_text("This session has ended")
    await expect(tab.button("Retry")).to_have_count(0)
    tab.may_be_cut_off = True  # the browser logs the rejection
    await tab.send("too late")
    await expect(tab.page.locator("#queue-title")).to_have_text("1 prompt not sent")
    await expect(tab.queue).to_contain_text("too late")
    await expect(tab.queue).to_contain_text("Not sent")
    await expect(tab.button("Retry")).to_have_count(0)
    await tab.button("Edit").click()
    await expect(tab.text).to_have_value("too late")
    await expect(tab.queue).to_have_count(0)
