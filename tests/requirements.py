"""Writes `docs/requirements.md`, what is promised and which tests show it: `python -m tests.requirements`.

The names of tests begin with the ids of their requirements: `test_ses_6_…`, `test_ctx_2_ctx_3_…`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.named_tests import NamedTest, named_tests

PAGE = Path(__file__).parents[1] / "docs" / "requirements.md"

AREAS = {
    "SES": "Sessions",
    "CTX": "What the model sees",
    "AGT": "Models and tools",
    "TSK": "Tasks",
    "API": "Gateway and clients",
    "OPS": "Operation",
    "AGN": "Agents and tools of one's own",
}

SENTENCES = {
    "SES-1": "A turn is one `ConversationMessage` that holds the request and the whole response.",
    "SES-2": "A prompt becomes a message only when its processing starts.",
    "SES-3": "`ConversationState` and `ConversationUpdate` have all that a client needs to show a conversation.",
    "SES-4": "A session starts from one input, and its state exists before the first signal arrives.",
    "SES-5": "The signal `prompt` accepts any JSON value and gives each a fate.",
    "SES-6": "Accepted prompts are processed in order, each at most once, and each has exactly one fate.",
    "SES-7": "A prompt that arrives during a turn waits for it, interrupts it or steers it.",
    "SES-8": "Updates reject invalid input without writing to the history.",
    "SES-9": "A stopped turn ends within seconds and keeps its partial text.",
    "SES-10": "Neither a failing turn nor any input can end or block a session.",
    "SES-11": "The query `get_conversation_state` returns the newest turns, at most about 1 MB.",
    "SES-12": "A client that follows `get_conversation_updates` has a transcript without gaps or repetitions.",
    "SES-13": "Queries show the queue, the model's request, the context and the pending approvals.",
    "SES-14": "A session continues as new between turns or inside one, and loses nothing.",
    "SES-15": "Old turns move to an archive and large texts to a store, so that the carried state stays small.",
    "SES-16": "Nothing that exceeds Temporal's limits is ever scheduled.",
    "SES-17": "Temporal's Web UI shows what a session is doing and why.",
    "SES-18": "A session can be exported, imported, and forked at a completed turn.",
    "SES-19": "Sessions that are running survive an update: each release replays recorded histories.",
    "CTX-1": "The window of messages that the model sees is configurable per session.",
    "CTX-2": "A conversation that exceeds its window keeps its first and its latest messages.",
    "CTX-3": "Trimming never separates a tool call from its results.",
    "CTX-4": "Messages are evicted in blocks, so that the prefix of requests stays the same for many calls.",
    "CTX-5": "With `summarize_on_trim`, one summary stands for what was evicted.",
    "CTX-6": "The size of a conversation is estimated in tokens, and is shown and logged.",
    "CTX-7": "A request that is too long for the model is halved and repeated, and the limit is remembered.",
    "CTX-8": "The query `get_context_view` shows how much of each turn the model still sees.",
    "CTX-9": "A history policy decides which messages of a conversation a task receives, and how much of each.",
    "CTX-10": "The history for a task is validated, and every error and warning names its field.",
    "CTX-11": "A validated history has one stored form.",
    "CTX-12": "Replay text is a conversation as text that can be parsed back exactly.",
    "CTX-13": "Replay text can be read by query, over HTTP, and by models without tool calling.",
    "CTX-14": "Tool results are bounded, and a result that was cut says how to get the rest.",
    "CTX-15": "A task's history can be condensed by a model and reduced to what is relevant.",
    "CTX-16": "Prompts and messages of a task's history can carry code, images and files.",
    "CTX-17": ("The model reads true conversations: each prompt is followed by its own answer, and by no other."),
    "AGT-1": "A turn asks the model and runs tools until it has an answer or reaches a limit.",
    "AGT-2": "The model's context reaches the activity without entering Temporal's history.",
    "AGT-3": "A step records the vendor's own blocks and sends them back unchanged.",
    "AGT-4": "A session can use Anthropic, OpenAI, any compatible endpoint, or a model that works offline.",
    "AGT-5": "Partial output reaches clients within half a second and adds nothing to the history.",
    "AGT-6": "Tools are MCP tools, built in or from other servers.",
    "AGT-7": "A tool's effect decides whether a lost call is repeated.",
    "AGT-8": "A person approves the tool calls that the policy says to ask about.",
    "AGT-9": "One module classifies failures and decides which are retried.",
    "AGT-10": "Tokens and cost are counted per step, turn and session.",
    "AGT-11": "Providers are tested against local servers that speak the vendors' formats, failures included.",
    "TSK-1": "`create_task` starts an agent with a description and the conversation that led to it.",
    "TSK-2": "The response to `create_task` says how much context was kept; a warning never fails the task.",
    "TSK-3": "A task's first prompt is its description, followed by its context in a fixed layout.",
    "TSK-4": "A task has the statuses of MCP tasks, and its result has a fixed form.",
    "TSK-5": "An agent can start sub-agents; one budget bounds the whole tree of them.",
    "TSK-6": "An MCP server offers tasks and conversations to other agents.",
    "TSK-7": "What a hand-off costs and saves is measured.",
    "API-1": "Each verb of a session is an HTTP route that translates and never decides.",
    "API-2": "Every error is a problem document with a stable type and leaks no internals.",
    "API-3": "Watching is cheap: an idle session costs nothing, and many watchers cost little more than one.",
    "API-4": "The gateway answers only trusted callers, and shows none of them another's data.",
    "API-5": "The chat page at `/` covers the whole life of a session, without a build step.",
    "API-6": "The terminal chat covers the same over HTTP.",
    "API-7": "The OpenAPI document is complete, and the gateway behaves as it says.",
    "API-8": "A small typed Python client has every verb and follows a session exactly.",
    "OPS-1": "On a fresh machine, `make run` and `make test` do everything.",
    "OPS-2": "Temporal is found by its own configuration; without one, an embedded server starts.",
    "OPS-3": "One program, `turnkeeper`, starts, demonstrates and checks the service.",
    "OPS-4": "Every setting is documented, and an invalid one stops the start.",
    "OPS-5": "`docker-compose.yml` runs the service on PostgreSQL, and a page says how to scale it.",
    "OPS-6": "Logs, traces and metrics show what sessions do, without their content.",
    "OPS-7": "Payloads in Temporal can be encrypted by one setting.",
    "OPS-8": "Defaults of connections and workers come from measurements.",
    "OPS-9": "`turnkeeper replay-check` finds sessions that a new release could not continue.",
    "OPS-10": "No promise is broken when a process, a connection or a store fails.",
    "OPS-11": "Benchmarks compare every measurement with a floor from the same run.",
    "OPS-12": "Dependencies are few and pinned, and extras are optional.",
    "OPS-13": "The service has what its operators expect: backups, webhooks, automatic titles, tools of their own.",
    "AGN-1": "An agent with a tool is ten lines of Python, which one command runs.",
    "AGN-2": "An agent is instructions, a model, rules, and exactly the tools that it names.",
    "AGN-3": "A tool is a function; it runs in a process of its own, and no harm of it reaches a session.",
    "AGN-4": "Agents are data in versions that never change, and a session keeps the one that it was started with.",
    "AGN-5": "Agents run in somebody's own application: mounted, and beside the workflows of a worker.",
    "AGN-6": "Tests of one's own agent run against a real server, with a model that the test writes.",
    "AGN-7": "An agent reads skills by their names, and the workspace's `AGENTS.md` is part of its instructions.",
    "AGN-8": "A tool is a function, an agent an object, a provider a package with an entry point, a feature a folder.",
}

MISSING = {
    "AGT-4": "named endpoints, `GET /models`, model settings, fallback, clouds' own clients.",
    "API-1": "`/metrics`.",
    "API-5": (
        "the inbox, notifications, pins, deep links, coloured diffs, approving all of a step, regenerate and edit, "
        "choosing per session, Ctrl-K, deletion."
    ),
    "API-6": (
        "`--resume`, `--continue`, completion, history across starts, `/sessions` and others, commands for operators."
    ),
    "API-7": "examples of the other bodies and of most answers; a test that operation ids do not change.",
    "AGN-1": "links in under 3 s on any machine.",
    "AGN-2": "MCP servers of an agent, `model_settings`.",
    "AGN-3": "a CEL rule for `ask`, `in_process`.",
    "AGN-4": "`turnkeeper agents apply`, defining agents at the page.",
    "AGN-5": "the chat page and MCP below a prefix, behind nginx; no `Any` in public names.",
    "AGN-7": "`AGENTS.md`; skills are read once a version, not once a segment.",
    "OPS-1": "`make test` within ten minutes on two cores.",
    "OPS-2": "downloading the server by the SDK has no test.",
    "OPS-3": "`agents`, `inbox`, `answer`, `usage`, `rollout`, `backup` and `restore`.",
    "OPS-6": "traces and metrics.",
    "OPS-7": "all of it.",
    "OPS-8": "worker versioning (pinned, upgrade at continue-as-new, idle sessions moved).",
    "OPS-10": "a disk that is full, steps of the clock, the figures of a long soak.",
    "OPS-11": (
        "the results that are marked **no** in [the table](../benchmarks/RESULTS.md). "
        "[What was tried](scaling.md#goals-that-are-not-reached) for each of them."
    ),
    "OPS-12": "pip-audit and bandit in `.ci/run`.",
    "OPS-13": "webhooks, `turnkeeper backup` and `restore`, titles by the model.",
}
"""What of a requirement does not hold yet. No test can know whether this is complete."""

HEAD = """\
# Requirements

What Turnkeeper promises, and the files whose tests show it. The names of tests are sentences that begin with the id:
`pytest --collect-only -q -k ses_6_` lists those of SES-6. This page is made from them: `python -m tests.requirements`.
"""


def ids_in(name: str) -> list[str]:
    """Return the ids at the beginning of a test's name.

    >>> ids_in("test_ctx_2_ctx_3_the_window_ends_before_utf_8_does")
    ['CTX-2', 'CTX-3']
    """
    ids = re.match(r"test_((?:[a-z]{3}_\d+_)*)", name)
    return [f"{area.upper()}-{number}" for area, number in re.findall(r"([a-z]{3})_(\d+)_", ids[1])] if ids else []


def files_by_id(tests: Iterable[NamedTest]) -> dict[str, list[str]]:
    """Return the files with tests of each requirement that a test names, in the order of the tests."""
    files = defaultdict[str, dict[str, None]](dict)
    for test in tests:
        for requirement in ids_in(test.name):
            files[requirement][test.file] = None
    return {requirement: list(names) for requirement, names in files.items()}


def page(tests: Iterable[NamedTest]) -> str:
    """Return the page with the files of these tests."""
    files = files_by_id(tests)
    lines = [HEAD.rstrip()]
    for requirement, sentence in SENTENCES.items():
        area, _, number = requirement.partition("-")
        if number == "1":
            lines += ["", f"## {AREAS[area]}", "", "| id | promise | tests |", "|---|---|---|"]
        missing = f" *Not yet:* {MISSING[requirement]}" if requirement in MISSING else ""
        links = ", ".join(f"[{file.removesuffix('.py')}](../tests/{file})" for file in files.get(requirement, ()))
        lines.append(f"| {requirement} | {sentence}{missing} | {links} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(named_tests()))
