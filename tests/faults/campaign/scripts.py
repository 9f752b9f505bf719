"""Answers of the scripted model: turns of one to four model calls, with tools, delays and faults, from a seed."""

import random
from typing import Any

TURNS = 40
"""How many different turns a session's script has; then it begins again."""

FILES = [f"notes-{number}.txt" for number in range(4)]
"""In the workspace; the last one is large enough to be kept by reference."""

FAULTS = ("overloaded", "connection", "provider_error")


def workspace_files() -> dict[str, str]:
    texts = {name: f"This is {name}.\n" for name in FILES[:-1]}
    return {**texts, FILES[-1]: "a line of a long file\n" * 600}


def quick_script() -> dict[str, Any]:
    """The probe's: it measures the service, not the model."""
    return {"repeat": True, "responses": [{"text": "Here I am ({request})."}]}


def script(seed: str) -> dict[str, Any]:
    chance = random.Random(seed)
    return {"repeat": True, "responses": [response for _ in range(TURNS) for response in _turn(chance)]}


def _turn(chance: random.Random) -> list[dict[str, Any]]:
    steps = chance.choices([1, 2, 3, 4], [5, 4, 2, 1])[0]
    responses = [_with_delay(chance, {"text": "Let me see.", "calls": _calls(chance)}) for _ in range(steps - 1)]
    answer = _with_delay(chance, {"text": "You said: {last_user} This is the answer to request {request}."})
    return [*responses, answer]


def _calls(chance: random.Random) -> list[dict[str, Any]]:
    match chance.choices(["reads", "pay", "put", "all"], [4, 4, 2, 1])[0]:
        case "reads":
            return [_read(name) for name in chance.sample(FILES, k=chance.randint(1, 3))]
        case "pay":
            return [_effect(chance, "pay")]
        case "put":
            return [_effect(chance, "put")]
        case _:
            return [_read(FILES[0]), _effect(chance, "pay"), _effect(chance, "put")]


def _read(name: str) -> dict[str, Any]:
    return {"name": "file_read", "args": {"path": name}}


def _effect(chance: random.Random, tool: str) -> dict[str, Any]:
    return {"name": tool, "args": {"delay": round(chance.choice([0, 0, 0, 0.1, 0.3, 1.5]), 2)}}


def _with_delay(chance: random.Random, response: dict[str, Any]) -> dict[str, Any]:
    kind = chance.random()
    if kind < 0.15:
        response["chunk_delay"] = chance.choice([0.02, 0.1, 0.2])  # of a second for a word, as vendors stream
    elif kind < 0.19:
        response["delay"] = round(chance.uniform(1, 3), 2)
    elif kind < 0.4:
        response["delay"] = round(chance.uniform(0.1, 0.4), 2)
    if chance.random() < 0.05:
        response["fault"] = {"error_type": chance.choice(FAULTS), "times": 1, "after_chunks": chance.choice([0, 2])}
    return response
