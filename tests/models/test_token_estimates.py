"""Estimates of tokens by script (CTX-6). The counts are those of Mistral's tokenizer `tekken`."""

import pytest

from turnkeeper.models.context.shortening import shorten_message
from turnkeeper.models.tokens import count_chars, estimate_tokens
from turnkeeper.models.transcript.model_call import ModelMessage


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "今天早上下了很大的雨,所以我在家里看书,给朋友写信。下午雨停了,天空中出现了一道美丽的彩虹。",
            40,
        ),
        ("今日は朝から雨が降っていたので、家で本を読んだり、友だちに手紙を書いたりしました。", 31),
        ("신뢰할 수 있는 워크플로 엔진 위에서 실행됩니다.", 15),
        ("กรุณาอ่านไฟล์การตั้งค่าแล้วบอกชื่อโฮสต์และหมายเลขพอร์ต", 28),
        ("Если процесс завершится аварийно, сеанс продолжится с последнего состояния.", 20),
    ],
)
def test_ctx_6_tokens_are_estimated_within_about_20_percent_in_other_scripts(text, tokens):
    assert tokens * 0.75 <= estimate_tokens([{"content": text}]) <= tokens * 1.25


def test_ctx_7_a_text_of_another_script_is_cut_by_its_tokens_not_its_characters():
    short = shorten_message(ModelMessage(role="tool", content="雨" * 1_000), 2_000)
    assert 1_500 <= count_chars(short) <= 2_000
