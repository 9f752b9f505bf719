"""A foreign tool server without any SDK, that can be as bad as its tools are asked to be.

Run as `python odd.py [flag ...]`. It speaks JSON-RPC over stdin and stdout, one thread, one line at a time.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

FLAGS = set(sys.argv[1:])
ANY = {"type": "object"}

RUBBISH = {
    "no JSON": b'{"jsonrpc": "2.0", "id": %d, "result": [',
    "deep": b'{"jsonrpc": "2.0", "id": %d, "result": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    "too long": b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "'
    + b"x" * 12_000_000
    + b'"}]}}',
}
ODD_TOOLS = [
    {"name": "wrong_output", "inputSchema": ANY, "outputSchema": {"type": "nonsense"}},
    {"name": "untyped_output", "inputSchema": ANY, "outputSchema": {"properties": {}}},
    {"name": "no_input"},
    {"name": "null_input", "inputSchema": None},
    {"name": "untyped_input", "inputSchema": {"properties": {"a": {"type": "string"}}}},
    {"name": "one_of", "inputSchema": {"oneOf": [{"properties": {"a": {}}}, {"required": ["b"]}]}},
    {"name": "several_types", "inputSchema": {"type": ["object", "null"]}},
    {"name": "number_as_title", "title": 5, "inputSchema": ANY},
    {"name": "text_as_annotations", "annotations": "none", "inputSchema": ANY},
]
"""Tools of which the SDK refuses a field, or an answer."""

WITH_META = ("die_first", "work", "report")

TEXTS = {
    "no UTF-8": b"a\xff\xfeb",
    "NUL": b"a\\u0000b",
    "surrogate": b"a\\ud800b",
    "huge": b"x" * 5_000_000,
}
NOISE = [b"Listening on stdio ...", b"", b"[1, 2]", b'{"debug": true}', b"\xff\xfe\x00", b'{"id": "x", "method": 5}']


def tools() -> list[object]:
    if "changing" in FLAGS and Path("changed").exists():
        schema = {"type": "object", "properties": {"text": {"type": "integer"}}, "required": ["text"]}
        return [{"name": "echo", "inputSchema": schema}]
    named = [{"name": name, "inputSchema": ANY} for name in sorted(TOOLS)]
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    named[[tool["name"] for tool in named].index("echo")]["inputSchema"] = text
    if "strict output" in FLAGS:
        strict = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        named = [{**tool, "outputSchema": strict} for tool in named]
    if "repeatable" in FLAGS:
        named = [{**tool, "annotations": {"idempotentHint": True}} for tool in named]
    if "many" in FLAGS:
        named += [{"name": f"tool_{number}", "inputSchema": ANY} for number in range(10_000)]
    if "twice" in FLAGS:
        named += [{"name": "echo", "inputSchema": ANY}]
    if "odd names" in FLAGS:
        named += [{"name": name, "inputSchema": ANY} for name in ("é \n*", "x" * 300, "", "a\0b", "a/b", "a.b")]
    if "no schema" in FLAGS:
        named += [{"name": "bad", "inputSchema": "none"}, 5, {}, {"name": "other", "inputSchema": {"type": "array"}}]
    for levels in (int(flag.removeprefix("levels ")) for flag in FLAGS if flag.startswith("levels ")):
        deep: dict = ANY
        for _ in range(levels):
            deep = {"type": "object", "properties": {"a": deep}}
        named += [{"name": "deep", "inputSchema": deep}]
    if "odd tools" in FLAGS:
        named += ODD_TOOLS
    if "refused schema" in FLAGS:
        named += [{"name": "refused", "inputSchema": {**ANY, "properties": {"a b": {"type": "any", "required": True}}}}]
    return named


def names() -> set[str]:
    return {tool["name"] for tool in tools() if isinstance(tool, dict) and "name" in tool}


def listing(params: dict) -> dict:
    if "endless" in FLAGS:
        page = int(params.get("cursor", "0"))
        return {"tools": [{"name": f"tool_{page}", "inputSchema": ANY}], "nextCursor": str(page + 1)}
    if "pages" in FLAGS:
        first = int(params.get("cursor", "0"))
        page = [{"name": f"tool_{number}", "inputSchema": ANY} for number in range(first, min(first + 50, 120))]
        return {"tools": page, **({"nextCursor": str(first + 50)} if first + 50 < 120 else {})}
    if "no tools" in FLAGS:
        return {"tools": "none"}
    if "circling" in FLAGS:
        return {"tools": tools(), "nextCursor": "again"}
    return {"tools": tools()}


def send(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def answer(request_id: object, result: dict) -> None:
    send(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode())


def say(request_id: object, text: str) -> None:
    answer(request_id, {"content": [{"type": "text", "text": text}]})


def echo(request_id: int, args: dict) -> None:
    say(request_id, str(args["text"]))


def pid(request_id: int, args: dict) -> None:
    say(request_id, str(os.getpid()))


def env(request_id: int, args: dict) -> None:
    say(request_id, json.dumps({"cwd": os.getcwd(), "env": dict(os.environ), "args": sys.argv[1:]}))


def die(request_id: int, args: dict) -> None:
    os._exit(1)


def die_first(request_id: int, args: dict) -> None:
    """Die `times` times, and append the idempotency key of each run to a file."""
    with Path("keys").open("a") as keys:
        keys.write(f"{args['_meta']['turnkeeper/idempotency-key']}\n")
    runs = len(Path("keys").read_text().split())
    if runs <= args["times"]:
        os._exit(1)
    say(request_id, f"run {runs}")


def hang(request_id: int, args: dict) -> None:
    Path("hanging").touch()


def work(request_id: int, args: dict) -> None:
    """Report progress every `pause` seconds, `times` times, and then answer."""
    for step in range(args["times"]):
        threading.Event().wait(args["pause"])
        progress = {"progressToken": args["_meta"]["progressToken"], "progress": step, "message": f"step {step}"}
        send(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}).encode())
    say(request_id, "worked")


def report(request_id: int, args: dict) -> None:
    """Send reports of progress, given as JSON without the token, `times` times; answer once the file `until` exists."""
    token = json.dumps(args["_meta"]["progressToken"])
    for number in range(args.get("times", 1)):
        for fields in args["reports"]:
            params = f'{{"progressToken": {token}, {fields.replace("NUMBER", str(number))}}}'
            send(f'{{"jsonrpc": "2.0", "method": "notifications/progress", "params": {params}}}'.encode())

    def wait() -> None:
        while not Path(args["until"]).exists():
            threading.Event().wait(0.02)
        say(request_id, "reported")

    threading.Thread(target=wait).start()


def freeze(request_id: int, args: dict) -> None:
    Path("frozen").touch()
    while True:
        signal.pause()


def child(request_id: int, args: dict) -> None:
    """Start a process of its own that a SIGTERM does not end."""
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    started = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    say(request_id, str(started.pid))


meeting: list[int] = []


def meet(request_id: int, args: dict) -> None:
    meeting.append(request_id)
    if len(meeting) == args["people"]:
        for waiting in meeting:
            say(waiting, "met")
        meeting.clear()


def rubbish(request_id: int, args: dict) -> None:
    send(RUBBISH[args["kind"]] % request_id)


def result(request_id: int, args: dict) -> None:
    """Answer with any result."""
    send(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": args["result"]}).encode())


def wrong_id(request_id: int, args: dict) -> None:
    for other in (request_id + 1_000, None, "x", [1], {}):
        answer(other, {"content": []})
    say(request_id, "and then the right one")


def text(request_id: int, args: dict) -> None:
    send(
        b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "%b"}]}}'
        % (request_id, TEXTS[args["kind"]])
    )


def blocks(request_id: int, args: dict) -> None:
    """Answer with blocks of content, of which not all are such."""
    answer(request_id, {"content": args["blocks"]})


def noise(request_id: int, args: dict) -> None:
    for line in NOISE:
        send(line)
    sys.stderr.write("secret words to stderr\n")
    sys.stderr.flush()
    say(request_id, "after the noise")


claimed: list[int] = []


def claim(request_id: int, args: dict) -> None:
    """Answer with a code by which our side tells itself that a call was not sent, or was lost."""
    claimed.append(request_id)
    error = {"code": args["code"], "message": f"call {len(claimed)} was not so"}
    send(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode())


def change(request_id: int, args: dict) -> None:
    Path("changed").touch()
    if "telling" in FLAGS:
        send(b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}')
    say(request_id, "changed")


TOOLS = {
    function.__name__: function
    for function in (
        echo,
        pid,
        env,
        die,
        die_first,
        hang,
        work,
        report,
        freeze,
        child,
        meet,
        rubbish,
        result,
        wrong_id,
        text,
        blocks,
        noise,
        claim,
        change,
    )
}


def handle(message: dict) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        server = {"name": "odd", "version": "1"}
        version = params["protocolVersion"]
        answer(request_id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server})
    elif method == "tools/list":
        if "no list" not in FLAGS:
            answer(request_id, listing(params))
    elif method == "tools/call" and params["name"] in names() & TOOLS.keys():
        args = params.get("arguments", {})
        TOOLS[params["name"]](request_id, {**args, "_meta": params["_meta"]} if params["name"] in WITH_META else args)
    elif method == "tools/call" and params["name"] in {tool["name"] for tool in ODD_TOOLS}:
        say(request_id, params["name"])
    elif request_id is not None:
        error = {
            "code": -32601 if method != "tools/call" else -32602,
            "message": f"Unknown: {params.get('name', method)}",
        }
        send(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode())


def main() -> None:
    if "stubborn" in FLAGS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        handle(json.loads(line))
    while "stubborn" in FLAGS:
        signal.pause()


if __name__ == "__main__":
    main()
