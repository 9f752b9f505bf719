"""The page on how a conversation grows says what the rules give: CTX-4, CTX-5."""

from benchmarks.growth import PAGE, WINDOWS, render, sizes


def test_ctx_4_the_page_on_growth_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "make it again: python -m benchmarks.growth"


def test_ctx_4_with_the_window_a_conversation_stops_growing() -> None:
    columns = {name: sizes(window) for name, window in WINDOWS.items()}
    assert columns["no window"][-1].messages == 20 * 18 - 1
    assert max(size.messages for size in columns["window"]) <= 100
    assert max(size.messages for size in columns["window and summaries"]) <= 101
