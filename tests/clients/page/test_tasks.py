"""A session's tasks on its page: how far they are, and the calls in them that need a decision (TSK-5, API-5)."""

from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.features.tasks.workflow.test_sub_tasks import DELEGATE, calls_then, delegating
from tests.harness import Environment


async def test_tsk_5_a_call_of_a_task_is_approved_on_the_page_of_its_parent(tab: Tab, env: Environment) -> None:
    report = ("report_progress", {"message": "Half of it", "percent": 50})
    env.vendor.answer = delegating(agent=calls_then(report, ("pay", {"to": "Registrar"})), title="Pay the fees")
    await tab.open()
    await tab.send(DELEGATE)

    panel = tab.page.locator("#tasks-panel")
    await expect(panel).to_contain_text("1 task is running")
    await expect(panel).to_contain_text("needs approval · 50 % · Half of it")
    await expect(panel.get_by_label("What you decide on", exact=True)).to_contain_text('to: "Registrar"')
    await expect(tab.state).to_have_text("A tool call of a task needs your approval.")
    assert env.tools.calls == []
    await panel.get_by_role("button", name="Approve").click()
    await tab.shows(1)
    assert [call.name for call in env.tools.calls] == ["pay"]
    await expect(panel).to_be_hidden()
    await expect(tab.page.locator("#turns")).to_contain_text("pay done")


async def test_tsk_5_the_page_of_a_task_links_back_to_its_parent(tab: Tab, env: Environment) -> None:
    env.vendor.answer = delegating(agent=calls_then(("look", {})), title="Look around")
    env.tools.gate.close()
    await tab.open()
    await tab.send(DELEGATE)
    await tab.page.locator("#tasks-panel").get_by_role("link", name="Look around").click()
    await expect(tab.page.locator("#session-title")).to_have_text("Look around")
    back = tab.page.get_by_role("link", name="Open the session that started this task")
    env.tools.gate.open()
    await expect(tab.page.locator("#turns")).to_contain_text("look done")
    await back.click()
    await expect(tab.page.locator("#turns")).to_contain_text("look done")
