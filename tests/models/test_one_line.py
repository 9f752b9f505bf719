"""Titles and previews keep people's letters, and are found by them: API-1."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import iter_graphemes

from turnkeeper.models.legible import one_line, searchable
from turnkeeper.models.session.messages import TITLE_CHARS, make_title
from turnkeeper.models.transcript.model_call import make_preview

PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"


@pytest.mark.parametrize("text", [PERSIAN, f"{FAMILY} and {FLAG}", "Cre\u0300me"])
def test_api_1_titles_and_previews_keep_the_letters_of_every_script(text: str) -> None:
    """F13: U+200C became a space."""
    assert make_title(text) == make_preview(text) == text


@pytest.mark.parametrize("letter", [FAMILY, FLAG, "e\u0301", "\u0915\u094d\u0937"])
def test_api_1_a_title_is_not_cut_within_a_character(letter: str) -> None:
    title = make_title(letter * 100)
    assert len(title) <= TITLE_CHARS
    assert set(iter_graphemes(title)) == {letter, "…"}


def test_api_1_invisible_characters_are_removed_from_a_title() -> None:
    assert make_title("pay\u200d\u200cpal \u202eevil\u200b\ufeff") == "pay pal evil"


@pytest.mark.parametrize("word", ["Crème brûlée", "Zürich", "Tiếng Việt", "한국어", PERSIAN, "STRASSE"])
def test_api_1_a_search_matches_in_any_normal_form_and_case(word: str) -> None:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        in_form = unicodedata.normalize(form, word)  # type: ignore[arg-type]
        assert searchable(in_form.swapcase()) == searchable(word)
    assert searchable(word) in searchable(f"About {word}, today")


@given(st.text(), st.integers(2, 80))
def test_api_1_a_line_is_short_and_visible(text: str, max_chars: int) -> None:
    line = one_line(text, max_chars)
    assert len(line) <= max_chars
    assert line == line.strip()
    assert line.replace("\u200c", "").replace("\u200d", "").isprintable()
