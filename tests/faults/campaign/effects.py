"""A tool server whose effects are counted, over stdin and stdout: run as `python effects.py FILE`.

Every call appends its line to FILE, which is on the disk before the call is answered; the answer comes `delay` seconds
later, so that a fault often strikes in between. `pay` may run once only; `put` may be repeated, and says so.
"""

import json
import os
import sys
import threading
import time

TEXT = {"type": "object", "properties": {"delay": {"type": "number"}}}
TOOLS = [
    {"name": "pay", "description": "Pay once.", "inputSchema": TEXT},
    {"name": "put", "description": "Put it there.", "inputSchema": TEXT, "annotations": {"idempotentHint": True}},
]
KEY = "turnkeeper/idempotency-key"

_answers = threading.Lock()


def answer(request_id: object, **content: object) -> None:
    with _answers:
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", "id": request_id, **content}).encode() + b"\n")
        sys.stdout.buffer.flush()


def run(file: int, request_id: object, params: dict) -> None:
    line = {"tool": params["name"], "key": params["_meta"][KEY], "pid": os.getpid(), "wall": time.time()}
    os.write(file, json.dumps(line).encode() + b"\n")
    os.fsync(file)
    result = {"content": [{"type": "text", "text": f"{params['name']}: done"}]}
    late = threading.Timer(params.get("arguments", {}).get("delay", 0), answer, [request_id], {"result": result})
    late.daemon = True
    late.start()


def main() -> None:
    # Appended in one piece each: the servers of two workers write to the same file.
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, request_id, params = message.get("method"), message.get("id"), message.get("params", {})
        if method == "initialize":
            server = {"name": "effects", "version": "1"}
            capabilities = {"tools": {}}
            version = params["protocolVersion"]
            answer(request_id, result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": server})
        elif method == "tools/list":
            answer(request_id, result={"tools": TOOLS})
        elif method == "tools/call":
            run(file, request_id, params)
        elif request_id is not None:
            answer(request_id, error={"code": -32601, "message": f"Unknown: {method}"})


if __name__ == "__main__":
    main()
