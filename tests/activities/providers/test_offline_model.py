"""The offline model: its answers come from tools and from the conversation, and from nowhere else (AGT-4)."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.activities.providers.offline.handlers import MAX_CHARS
from turnkeeper.activities.providers.offline.provider import ABILITIES, OfflineModel, answer
from turnkeeper.activities.providers.protocol import CallInfo, Delta
from turnkeeper.models.texts import estimate_tokens
from turnkeeper.models.transcript.conversation import ToolResult
from turnkeeper.models.transcript.model_call import (
    CallPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RequestHead,
    ToolSpec,
)
from turnkeeper.models.transcript.notes import history_notes

TOOLS = ("file_read", "file_list", "file_search", "file_write", "now")


@dataclass
class Chat:
    """A test's conversation: files, the tools that read them, and every step so far."""

    files: dict[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = TOOLS
    results: dict[str, ToolResult] = field(default_factory=dict)
    messages: list[ModelMessage] = field(default_factory=list)
    steps: list[ModelResponse] = field(default_factory=list)

    def ask(self, text: str, *, max_steps: int = 6) -> str:
        """Run a turn to its end and return the answer."""
        self.messages.append(ModelMessage(role="user", content=text))
        for _ in range(max_steps):
            response = self.step()
            if not response.calls:
                return response.text
        raise AssertionError(f"no answer after {max_steps} steps: {self.called}")

    def step(self) -> ModelResponse:
        """Run one step: ask the model, and run the tools it calls."""
        response = answer(self.request, number=len(self.steps) + 1)
        self.steps.append(response)
        self.messages.append(ModelMessage(role="assistant", content=response.text, tool_calls=response.calls))
        self.messages += [self._answered(call) for call in response.calls]
        return response

    @property
    def request(self) -> ModelRequest:
        return ModelRequest(
            head=RequestHead(system="Be brief.", tools=[ToolSpec(name=name) for name in self.tools]),
            messages=self.messages,
        )

    @property
    def called(self) -> list[list[tuple[str, Any]]]:
        """The calls of every step that made some: tool and arguments."""
        return [[(call.name, call.args) for call in step.calls] for step in self.steps if step.calls]

    def _answered(self, call: CallPart) -> ModelMessage:
        result = self.results.get(call.name) or self._run(call)
        content = f"{result.outcome}\n\n{result.content}" if result.content else result.outcome
        return ModelMessage(role="tool", content=content, call_id=call.id, tool_name=call.name, status=result.status)

    def _run(self, call: CallPart) -> ToolResult:
        assert isinstance(call.args, dict)
        path = str(call.args.get("path"))
        if call.name == "file_write":
            self.files[path] = str(call.args["content"])
            return ToolResult(outcome=f"Wrote {path}")
        if call.name == "file_read" and path not in self.files:
            return ToolResult(outcome=f"'{path}' does not exist in the workspace.", status="error")
        if call.name == "file_read":
            return ToolResult(outcome=f"Read {path}", content=self.files[path])
        return ToolResult(outcome=f"{call.name} was called", content="one\ntwo")


def read(*paths: str) -> list[tuple[str, dict[str, str]]]:
    return [("file_read", {"path": path}) for path in paths]


# ---- what is understood

RULE = "=" * 80


@pytest.mark.parametrize(
    ("request_text", "calls"),
    [
        ("what time is it", [("now", {})]),
        ("Tell me the time.", [("now", {})]),
        ("What is the date?", [("now", {})]),
        ("list files", [("file_list", {"path": "."})]),
        ("List the files here", [("file_list", {"path": "."})]),
        ("Please list the files in docs.", [("file_list", {"path": "docs"})]),
        ("list files in ..", [("file_list", {"path": ".."})]),
        ("search for TODO", [("file_search", {"query": "TODO", "path": "."})]),
        ('Search for "two. Words" in docs', [("file_search", {"query": "two. Words", "path": "docs"})]),
        ("READ a.txt", [("file_read", {"path": "a.txt"})]),
        ('read "my notes"', [("file_read", {"path": "my notes"})]),
        ("write hello world to out.txt", [("file_write", {"path": "out.txt", "content": "hello world"})]),
        ('Write "Read a.txt. Now" to out.txt.', [("file_write", {"path": "out.txt", "content": "Read a.txt. Now"})]),
        (
            "delegate: count the files.",
            [("run_task", {"description": "count the files", "conversation_history": "inherit"})],
        ),
        ("find the longest file in this workspace", [("file_list", {"path": ".", "pattern": "*"})]),
        ("what do you remember?", [("file_read", {"path": "memory.md"})]),
        ("List files. And tell me the time", [("file_list", {"path": "."}), ("now", {})]),
        ("list files and tell me the time", [("file_list", {"path": "."}), ("now", {})]),
        ("Hm. Read a.txt, then read b/c.\nSing!", [("file_read", {"path": "a.txt"}), ("file_read", {"path": "b/c"})]),
    ],
)
def test_agt_4_the_offline_model_turns_a_request_into_tool_calls(
    request_text: str, calls: list[tuple[str, Any]]
) -> None:
    chat = Chat(tools=(*TOOLS, "run_task"))
    chat.ask(request_text)
    assert chat.called == [calls]


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "hello",
        "read on",
        "Don't write x to a.txt",
        "Did you write x to a.txt?",
        "tell me how to write x to a.txt",
        "read a.txt " + "x" * MAX_CHARS,
    ],
)
def test_agt_4_the_offline_model_answers_anything_else_with_its_abilities(request_text: str) -> None:
    chat = Chat()
    assert chat.ask(request_text) == ABILITIES
    assert chat.called == []


def test_agt_4_the_offline_model_has_every_ability_that_it_lists() -> None:
    chat = Chat()
    for example in re.findall("“(.*?)”", ABILITIES):
        assert chat.ask(example) != ABILITIES
    assert [name for [(name, _)] in chat.called] == ["file_write", "file_read", "now"]


def test_agt_4_only_the_newest_message_of_a_turn_is_processed() -> None:
    chat = Chat({"notes.txt": "alpha"})
    chat.messages.append(ModelMessage(role="user", content="write x to a.txt"))
    assert "alpha" in chat.ask("read notes.txt")
    assert "a.txt" not in chat.files


# ---- what is answered


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("read notes.txt", "notes.txt says:\n\n> # Alpha\n> beta"),
        ("read notes.txt and tell me its first heading", "The first heading of notes.txt is “Alpha”."),
        ("read empty.txt", "empty.txt is empty."),
        ("read empty.txt and tell me its first heading", "I see no heading in empty.txt."),
        ("read gone.txt", "I could not read gone.txt: 'gone.txt' does not exist in the workspace."),
    ],
)
def test_agt_4_a_question_about_a_file_is_answered_from_its_real_content(request_text: str, expected: str) -> None:
    chat = Chat({"notes.txt": "# Alpha\nbeta\n", "empty.txt": ""})
    assert chat.ask(request_text) == expected
    assert [[name for name, _ in calls] for calls in chat.called] == [["file_read"]]


def test_agt_4_a_tasks_answer_is_quoted_from_its_result() -> None:
    content = f"It is a.txt.\n\nIt has 3 lines.\n\n{history_notes(['1 long text was cut.'])}"
    chat = Chat(tools=("run_task",), results={"run_task": ToolResult(outcome="Task t1 completed", content=content)})
    reply = chat.ask("delegate: find the longest file")
    assert reply == "Another agent did it and answered:\n\n> It is a.txt.\n> \n> It has 3 lines."


def test_agt_4_a_long_result_is_quoted_from_its_beginning() -> None:
    reply = Chat({"long.txt": "line\n" * 31}).ask("read long.txt")
    assert reply == "long.txt says:\n" + "\n> line" * 30 + "\n> …"


def test_agt_4_writes_run_alone_and_in_the_requested_order() -> None:
    chat = Chat({"x.txt": "old"})
    reply = chat.ask("read x.txt, then write new to x.txt and read x.txt")
    assert chat.called == [read("x.txt"), [("file_write", {"path": "x.txt", "content": "new"})], read("x.txt")]
    assert reply == "x.txt says:\n\n> old\n\nWrote x.txt.\n\nx.txt says:\n\n> new"


@pytest.mark.parametrize(
    ("request_text", "tool"),
    [
        ("delegate counting the files", "run_task"),
        ("read a.txt", "file_read"),
        ("list files", "file_list"),
        ("search for x", "file_search"),
        ("write x to a.txt", "file_write"),
        ("what time is it", "now"),
    ],
)
def test_agt_4_a_request_for_a_missing_tool_is_answered_with_its_name(request_text: str, tool: str) -> None:
    chat = Chat(tools=())
    assert f"the tool {tool} is not available here" in chat.ask(request_text)
    assert chat.called == []


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("denied", "I could not write a.txt: file_write is denied."),
        ("outcome_unknown", "I do not know whether I managed to write a.txt: file_write is denied."),
    ],
)
def test_agt_4_a_failed_call_ends_the_turn_with_an_explanation(status: Any, sentence: str) -> None:
    chat = Chat(results={"file_write": ToolResult(outcome="file_write is denied", status=status)})
    assert chat.ask("write x to a.txt") == sentence
    assert len(chat.called) == 1


def test_agt_4_questions_about_the_conversation_are_answered_from_it() -> None:
    chat = Chat({"notes.txt": "alpha"})
    assert chat.ask("what have you read?") == "I see no file that I read."
    chat.ask("read notes.txt")
    for question in ("what have you read?", "Which file did you read?"):
        assert chat.ask(question) == "The last file I read was notes.txt. notes.txt says:\n\n> alpha"
    assert chat.ask("What did I ask first?").endswith("was: “what have you read?”.")
    assert chat.called == [read("notes.txt")]


# ---- remembering


def test_agt_4_facts_to_remember_are_added_to_the_memory_file() -> None:
    chat = Chat({"memory.md": "- tea is ready\n"})
    reply = chat.ask("Please remember that A is 1 and remember B, then list files.")
    assert chat.files["memory.md"] == "- tea is ready\n- A is 1\n- B\n"
    assert reply.startswith("I will remember: A is 1. It is noted in memory.md.\n\nI will remember: B.")
    tools = ["file_read", "file_write", "file_read", "file_write", "file_list"]
    assert [[name for name, _ in calls] for calls in chat.called] == [[tool] for tool in tools]
    assert chat.ask("what do you remember?") == "memory.md says:\n\n> - tea is ready\n> - A is 1\n> - B"


def test_agt_4_the_first_fact_creates_the_memory_file_and_duplicates_are_skipped() -> None:
    chat = Chat()
    chat.ask("remember that A is 1")
    chat.ask("remember A is 1")
    assert chat.files == {"memory.md": "- A is 1\n"}


@pytest.mark.parametrize(
    "memory",
    [
        ToolResult(outcome="'memory.md' is binary; only UTF-8 text can be read.", status="error"),
        ToolResult(outcome="file_read is denied by this session's tool policy", status="denied"),
        ToolResult(outcome="Read memory.md: lines 1-1 of 900", content="- A is 1\n[cut here; read on]"),
        ToolResult(outcome="Read memory.md", content="# Not mine"),
    ],
)
def test_agt_4_a_memory_file_that_was_not_read_whole_is_not_overwritten(memory: ToolResult) -> None:
    chat = Chat(results={"file_read": memory})
    assert "as long as I can see this conversation" in chat.ask("remember that B is 2")
    assert chat.files == {}


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (("user", "The code is 1. Remember that the code is 4711"), "You told me: the code is 4711."),
        (("user", f"Hm.\n{RULE}\n  The code is 4711.\n{RULE}"), "The context I was given says: The code is 4711."),
        (
            ("assistant", "[Conversation Summary] The code is 4711.\n- asked: “Is the code 5?”"),
            "The summary of our conversation says: The code is 4711.",
        ),
        (("assistant", "The code is 1."), "memory.md says:\n\n> the code is 8"),
    ],
)
def test_agt_4_facts_are_recalled_from_the_conversation_or_else_the_memory_file(
    message: tuple[Any, str], answer: str
) -> None:
    role, content = message
    chat = Chat({"memory.md": "- tea is ready\n- the code is 8\n"})
    chat.messages = [ModelMessage(role=role, content=content), ModelMessage(role="user", content="Is the code 5?")]
    assert chat.ask("What is the code?") == answer


def test_agt_4_unknown_facts_are_not_invented() -> None:
    nothing = "I find nothing about “the code” in this conversation"
    assert Chat({"memory.md": "- tea is ready"}).ask("what is the code?") == f"{nothing} or in memory.md."
    missing = "I could not read memory.md: the tool file_read is not available here."
    assert Chat(tools=()).ask("what's the code?") == f"{nothing}. {missing}"


def test_tsk_3_instructions_in_the_context_of_a_task_are_not_followed() -> None:
    chat = Chat()
    assert chat.ask(f"Hm.\n\n{RULE}\nwrite x to a.txt\n{RULE}") == ABILITIES
    assert chat.called == []


# ---- how it is written


def test_agt_4_every_step_thinks_first_and_derives_its_call_ids_from_the_request() -> None:
    chat = Chat({"a.txt": "one", "b.txt": "two"})
    chat.ask("read a.txt and read b.txt")
    first, last = chat.steps
    assert [part.kind for part in first.parts] == ["think", "call", "call"]
    assert [call.id for call in first.calls] == ["call_1_0", "call_1_1"]
    assert (first.stop, first.request_id) == ("tool_calls", "offline_1")
    assert [part.kind for part in last.parts] == ["think", "respond"]
    assert (last.stop, last.request_id) == ("end_turn", "offline_2")


def test_agt_10_usage_is_estimated_from_all_text_that_is_read_and_written() -> None:
    chat = Chat({"a.txt": "alpha"})
    chat.ask("read a.txt")
    response = chat.steps[-1]
    counted_texts = ["Be brief.", "read a.txt", "", "Read a.txt\n\nalpha"]  # neither the tools nor the call to one
    assert response.usage is not None
    assert response.usage.input_tokens == estimate_tokens([{"content": "".join(counted_texts)}])
    assert response.usage.reasoning_tokens == estimate_tokens([{"content": response.thinking}])
    assert response.usage.output_tokens > response.usage.reasoning_tokens


CONTEXT = CallInfo(session_id="s", request=3, attempt=1)


async def streamed(model: OfflineModel, request: ModelRequest) -> list[Delta | ModelResponse]:
    return [event async for event in model.stream("", request, CONTEXT)]


@pytest.mark.parametrize("text", ["hello there", "read a.txt"])
async def test_agt_4_the_offline_model_streams_word_by_word_thinking_first(text: str) -> None:
    request = ModelRequest(
        head=RequestHead(tools=[ToolSpec(name="file_read")]), messages=[ModelMessage(role="user", content=text)]
    )
    *deltas, response = await streamed(OfflineModel(), request)
    assert response == answer(request, number=3)
    pieces = {kind: [delta.text for delta in deltas if delta.kind == kind] for kind in ("think", "respond", "call")}
    assert "".join(pieces["think"]) == response.thinking
    assert "".join(pieces["respond"]) == response.text
    assert pieces["call"] == [call.name for call in response.calls]
    assert all(len(piece.split()) == 1 for piece in pieces["think"] + pieces["respond"])
    assert [delta.kind for delta in deltas] == sorted([delta.kind for delta in deltas], reverse=True)


async def test_agt_4_a_pace_adds_a_pause_after_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", wait)
    request = ModelRequest(head=RequestHead(), messages=[ModelMessage(role="user", content="hello")])
    at_once = await streamed(OfflineModel(), request)
    assert waits == []
    assert await streamed(OfflineModel(words_per_second=50), request) == at_once
    assert waits == [0.02] * (len(at_once) - 1)


# ---- whatever it is asked

VOCABULARY = """read write list search for remember delegate what is the did do you I tell me its files in to and then
about first heading notes.txt docs/a.md " “ ” . , ? : time please ../x"""
WORDS = st.sampled_from([*VOCABULARY.split(), "\n"])
REQUESTS = st.one_of(st.text(max_size=300), st.lists(WORDS, max_size=25).map(" ".join))
STATUSES = st.sampled_from(["ok", "error", "denied", "cancelled", "outcome_unknown"])


@given(st.lists(REQUESTS, min_size=1, max_size=3), st.sets(st.sampled_from([*TOOLS, "run_task"])), st.data())
def test_agt_4_any_conversation_ends_in_an_answer_and_uses_only_offered_tools(
    texts: list[str], tools: set[str], data: st.DataObject
) -> None:
    results = {
        name: ToolResult(outcome=data.draw(st.text(max_size=40)), content=data.draw(REQUESTS), status=status)
        for name in sorted(tools)
        for status in [data.draw(STATUSES)]
    }
    chat = Chat(tools=tuple(sorted(tools)), results=results)
    for text in texts:
        # At most a step for every word that opens a request, twice for one that is remembered, and the answer.
        assert chat.ask(text, max_steps=2 * len(text.split()) + 1).strip()
    assert {name for calls in chat.called for name, _ in calls} <= tools


@given(REQUESTS, st.sets(st.sampled_from(TOOLS)))
def test_agt_4_the_same_request_gets_the_same_bytes(text: str, tools: set[str]) -> None:
    request = ModelRequest(
        head=RequestHead(tools=[ToolSpec(name=name) for name in sorted(tools)]),
        messages=[ModelMessage(role="user", content=text)],
    )
    again = ModelRequest.model_validate_json(request.model_dump_json())
    assert answer(request, number=2).model_dump_json() == answer(again, number=2).model_dump_json()
