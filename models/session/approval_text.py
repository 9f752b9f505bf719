"""The one text of a call that waits for approval, which every interface shows (AGT-8).

    Tool: refund_order
    Server: shop
    Purpose:
      | Refund an order. It can't be undone.
    Effect: changes something; runs at most once
    Arguments:
      order_id: "SHOP-2026-1009"
      amount_eur: 12045.5

Only these labels begin a line; all that a model, a server or a file has written is indented below one of them.
"""

from collections.abc import Iterator
from itertools import groupby

from turnkeeper.models.texts.legible import MAX_BLANK_LINES, indented, legible_excerpt, legible_json, legible_line
from turnkeeper.models.transcript.model_call import ToolEffect
from turnkeeper.models.transcript.trajectory import FileChange

MAX_PURPOSE_BYTES = 2_000

BUILT_IN = "built in"

NOT_LOADED = "(They are stored apart, and can't be loaded here now.)"

EFFECTS: dict[ToolEffect, str] = {
    "read": "only reads",
    "idempotent": "changes something; a repeated run changes nothing more",
    "at_most_once": "changes something; runs at most once",
}


def approval_text(
    *, tool: str, server: str, description: str, effect: ToolEffect, args: str | None, change: FileChange | None
) -> str:
    """Return the text of a call.

    `args` are its arguments as compact JSON, as the digest covers them; `None`: they are not at hand. An empty
    `server`: the tool is built in. The effect of another server's tool is what that server says.
    """
    lines = [f"Tool: {legible_line(tool)}", f"Server: {legible_line(server) if server else BUILT_IN}"]
    if description.strip():
        lines += ["Purpose:", *indented(legible_excerpt(description, max_bytes=MAX_PURPOSE_BYTES))]
    lines.append(f"Effect: {EFFECTS[effect]}{', says the server' if server else ''}")
    if change:
        # Before the arguments, which have all of the new content: the difference says what that means.
        lines += ["Change:", *indented(_change_lines(change))]
    arguments = NOT_LOADED if args is None else legible_json(args)
    lines += ["Arguments:", *indented(arguments.split("\n"))]
    return "\n".join(lines)


def _change_lines(change: FileChange) -> Iterator[str]:
    yield legible_line(change.note)
    for line, run in groupby(change.diff.split("\n") if change.diff else []):
        marked, count = line[:1] + legible_line(line[1:]), sum(1 for _ in run)
        is_blank = not line[1:].strip(" \t")
        yield from [f"({count} lines of {marked})"] if is_blank and count > MAX_BLANK_LINES else [marked] * count
    if change.omitted_lines:
        yield f"({change.omitted_lines:,} more lines of the difference)"
