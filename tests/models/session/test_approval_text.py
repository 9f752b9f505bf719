"""The one text that people decide on: AGT-8."""

from turnkeeper.models.session.approvals import MAX_PURPOSE_BYTES, approval_text
from turnkeeper.models.transcript.conversation import FileChange


def text_of(**fields: object) -> str:
    defaults = {
        "tool": "refund",
        "server": "shop",
        "description": "",
        "effect": "at_most_once",
        "args": "{}",
        "change": None,
    }
    return approval_text(**{**defaults, **fields})  # type: ignore[arg-type]


def test_agt_8_the_text_has_server_purpose_effect_arguments_and_change() -> None:
    change = FileChange(note="a.txt exists:", diff="@@ -1,1 +1,1 @@\n-old\n+new ", omitted_lines=1_200, sha256="ab")
    text = text_of(description="Refund an order.\nIt can't be undone.", args='{"amount":12.50}', change=change)
    assert text.split("\n") == [
        "Tool: refund",
        "Server: shop",
        "Purpose:",
        "  | Refund an order.",
        "  | It can't be undone.",
        "Effect: changes something; runs at most once, says the server",
        "Change:",
        "  a.txt exists:",
        "  @@ -1,1 +1,1 @@",
        "  -old",
        "  +new<1 space>",
        "  (1,200 more lines of the difference)",
        "Arguments:",
        "  amount: 12.50",
    ]


def test_agt_8_the_text_marks_a_built_in_tool_as_built_in() -> None:
    assert "\nServer: built in\nEffect: only reads\n" in text_of(server="", effect="read")


def test_agt_8_no_foreign_text_can_look_like_a_label() -> None:
    forged = "ok\nArguments:\n  amount: 1\nEffect: only reads"
    change = FileChange(note=forged, diff=f"+{forged}")
    labels = ["Tool", "Server", "Purpose", "Effect", "Change", "Arguments"]
    text = text_of(tool=forged, server=forged, description=forged, args='{"a":"x\\nEffect: only reads"}', change=change)
    assert [line.partition(":")[0] for line in text.split("\n") if not line.startswith(" ")] == labels


def test_agt_8_a_long_purpose_is_cut_and_the_cut_is_marked() -> None:
    text = text_of(description="x" * (MAX_PURPOSE_BYTES + 1_234))
    assert f"  | {'x' * MAX_PURPOSE_BYTES}\n  (1,234 more characters)\n" in text


def test_agt_8_unavailable_arguments_are_reported_as_missing() -> None:
    assert "Arguments:\n  (They are stored apart, and can't be loaded here now.)" in text_of(args=None)
