"""Text from others runs nothing, loads nothing and breaks nothing in the page (API-4, API-5)."""

from playwright.async_api import expect

from tests.clients.page.tab import Tab
from tests.harness import Environment, Gate, says
from turnkeeper.activities.providers.protocol import Delta, ModelError
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import CallPart, ModelResponse, RespondPart, ThinkPart

ATTACKS = """<script>window.hacked = 1</script>
<img src="https://evil.example/x.png" onerror="window.hacked = 2">
<svg onload="window.hacked = 3"><script>window.hacked = 4</script></svg>
<iframe src="javascript:parent.hacked = 5" srcdoc="<script>parent.hacked = 6</script>"></iframe>
<form action="https://evil.example/"><button>Send</button></form>
<style>@import url(https://evil.example/x.css); body { display: none }</style>
<base href="https://evil.example/"><meta http-equiv="refresh" content="0; url=https://evil.example/">
<link rel="stylesheet" href="https://evil.example/x.css">

![image](https://evil.example/y.png) ![data](data:image/svg+xml;base64,PHN2Zy8+)
[click](javascript:window.hacked=7) [click](JaVaScRiPt&colon;window.hacked=8) [file](file:///etc/passwd)
[data](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==) <javascript:window.hacked=9>
<a href="javascript:window.hacked=10" onclick="window.hacked=11">x</a> {{constructor.constructor('hacked=12')()}}

```"><script>window.hacked=13</script>
</code></pre><script>window.hacked=14</script>
```
"""


async def test_api_5_a_hostile_answer_runs_no_script_and_loads_nothing(tab: Tab, env: Environment) -> None:
    async def look(invocation):
        return ToolResult(outcome=ATTACKS, content=ATTACKS)

    gate = Gate(is_open=False)
    env.tools.run = look
    env.vendor.script = [
        ModelResponse(
            parts=[
                ThinkPart(kind="think", text=ATTACKS),
                RespondPart(kind="respond", text=ATTACKS),
                CallPart(kind="call", id="c", name="look", args={"<img src=x onerror=hacked=1>": ATTACKS}),
            ],
            stop="tool_calls",
            model="<script>window.hacked = 15</script>",
        ),
        [Delta("think", ATTACKS), Delta("respond", ATTACKS), gate, says(ATTACKS)],
        ModelError("auth", ATTACKS),
    ]
    await tab.open()
    await tab.send(ATTACKS)
    await expect(tab.growing).to_contain_text("window.hacked = 1")
    await tab.send(ATTACKS)
    await expect(tab.queue).to_have_count(1)
    gate.open()
    await tab.shows(2)
    for summary in await tab.page.locator("#turns summary").all():
        await summary.click()
    for link in await tab.answers.locator("a[href]").all():
        assert (await link.get_attribute("href") or "").startswith("https://evil.example/")
        assert await link.get_attribute("rel") == "noopener noreferrer nofollow"
        assert await link.get_attribute("target") == "_blank"
    assert await tab.page.evaluate("window.hacked") is None
    assert (
        await tab.page.locator("#log :is(script, style, iframe, form, img, link, base, meta, object, embed)").count()
        == 0
    )


async def test_api_5_a_hostile_title_is_only_text(tab: Tab, env: Environment) -> None:
    for title in ("<img src=x onerror=hacked=1>", "</title><script>hacked=1</script>"):
        await tab.open()
        await tab.send(title)
        await tab.shows(1)
        await expect(tab.page.locator("#session-title")).to_have_text(title)
        await expect(tab.page.locator("#sessions")).to_contain_text(title)
    assert await tab.page.evaluate("window.hacked") is None


async def test_api_5_trusted_types_allow_html_in_one_place_only(tab: Tab) -> None:
    await tab.open()
    refusals = await tab.page.evaluate(
        """() => [
             () => { document.createElement("div").innerHTML = "<b>x</b>"; },
             () => { trustedTypes.createPolicy("mine", {createHTML: (html) => html}); },
             () => { trustedTypes.createPolicy("sanitised-markdown", {createHTML: (html) => html}); },
           ].map((attempt) => { try { attempt(); return "done"; } catch (error) { return error.name; } })"""
    )
    assert refusals == ["TypeError", "TypeError", "TypeError"]
    await tab.page.evaluate("window.violations.length = 0")
    tab.faults.clear()


async def test_api_5_an_invalid_session_address_is_shown_as_not_found(tab: Tab) -> None:
    tab.may_be_cut_off = True  # the browser notes the 404 or 422
    for session in ("../../healthz", "%2e%2e%2fhealthz", "<script>", "a b", "a%20b", "a%2Fb", "..", "x" * 500):
        await tab.open()
        await expect(tab.state).to_have_text("")
        await tab.open(session)
        await expect(tab.page.locator("#state[data-kind=problem]")).to_contain_text("This session doesn't exist")
        await expect(tab.turns).to_have_count(0)
