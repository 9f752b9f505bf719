"""Rows of models' names: each gets the thinking and the length of answers that it takes, and nothing to learn (L9)."""

from collections.abc import Iterator

from tests.faults.matrix.playing import Play, Row, RowSession, is_answered
from tests.vendors.flavours.anthropic_rules import claude_thinking
from tests.vendors.flavours.rules import Body, Issued, Violation

ADAPTIVE, BUDGET, BOTH, NONE = (True, False), (False, True), (True, True), (False, False)
"""A model's support for adaptive thinking and for a thinking budget."""

CLAUDES: dict[str, tuple[tuple[bool, bool], int]] = {
    "claude-fable-5-1": (ADAPTIVE, 128_000),
    "claude-opus-5-5": (ADAPTIVE, 128_000),
    "claude-sonnet-5-5": (ADAPTIVE, 128_000),
    "claude-haiku-5-5": (ADAPTIVE, 128_000),
    "claude-opus-4-8": (ADAPTIVE, 128_000),
    "claude-opus-4-7": (ADAPTIVE, 128_000),
    "claude-opus-4-6": (BOTH, 128_000),
    "claude-sonnet-4-6": (BOTH, 64_000),
    "claude-opus-4-5-20251101": (BUDGET, 64_000),
    "claude-sonnet-4-5": (BUDGET, 64_000),
    "claude-haiku-4-5-20251001": (BUDGET, 64_000),
    "claude-opus-4-1-20250805": (BUDGET, 32_000),
    "claude-opus-4-20250514": (BUDGET, 32_000),
    "claude-sonnet-4-0": (BUDGET, 64_000),
    "claude-3-7-sonnet-20250219": (BUDGET, 64_000),
    "claude-3-5-sonnet-20241022": (NONE, 8_192),
    "claude-3-5-haiku-latest": (NONE, 8_192),
    "claude-3-opus-20240229": (NONE, 4_096),
    "claude-3-haiku-20240307": (NONE, 4_096),
    "claude-4-sonnet": (BUDGET, 64_000),
    "claude-4-sonnet-20250514": (BUDGET, 64_000),
    "claude-4.5-sonnet": (BUDGET, 64_000),
    "claude-4-opus": (BUDGET, 32_000),
    "claude-4.1-opus": (BUDGET, 32_000),
    "claude-4-1-opus-20250805": (BUDGET, 32_000),
    "claude-4.5-haiku": (BUDGET, 64_000),
    "claude-4.6-opus": (ADAPTIVE, 128_000),
    "claude-3.7-sonnet": (BUDGET, 64_000),
    "claude-3.5-sonnet": (NONE, 8_192),
    "kimi-k3": (NONE, 8_192),
    "glm-5": (NONE, 8_192),
    "MiniMax-M3": (NONE, 8_192),
}
"""Thinking modes of Messages API models, by Anthropic's table, with the names that routers and clouds use."""

FORMS = ("{}", "anthropic/{}", "us.anthropic.{}-v1:0")


def rows() -> Iterator[Row]:
    for name, (forms_of_thinking, max_tokens) in CLAUDES.items():
        for form in FORMS if name.startswith("claude-") else FORMS[:1]:
            model = form.format(name)
            yield Row(f"name: {model}", "any-claude", _play(forms_of_thinking, max_tokens), model=model)


def _play(forms_of_thinking: tuple[bool, bool], max_tokens: int) -> Play:
    adaptive, budget = forms_of_thinking
    rule = claude_thinking(adaptive=adaptive, budget=budget, max_tokens=max_tokens)

    def refuse(body: Body, issued: Issued) -> Violation | None:
        violation: Violation | None = next(rule(body, issued), None)
        if violation is None and "thinking" in body and not (adaptive or budget):
            return Violation("thinking", "thinking is not supported")
        return violation

    async def play(run: RowSession) -> None:
        run.line.refuse = refuse
        for tag in ("p1", "p2"):
            assert is_answered(await run.turn(tag, ["look"])), run.turns[-1].error
        assert not run.line.refused, [exchange.violation for exchange in run.line.refused]

    return play
