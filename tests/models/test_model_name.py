"""Names of models: AGT-4."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.models.errors import RejectedError
from turnkeeper.models.ids import BUILT_IN_PROVIDERS, split_model


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("offline:", ("offline", "")),
        ("offline:script", ("offline", "script")),
        ("offline:script/demo", ("offline", "script/demo")),
        ("offline:llama3.1:8b", ("offline", "llama3.1:8b")),
        ("offline:" + "x" * 128, ("offline", "x" * 128)),
    ],
)
def test_agt_4_a_model_name_is_a_provider_and_the_providers_own_name(model: str, parts: tuple[str, str]) -> None:
    assert split_model(model) == parts


@pytest.mark.parametrize(
    "model",
    ["", "offline", ":", ":x", "Offline:", " offline:", "nobody:x", "\ud800:x"]
    + [f"offline:{name}" for name in ("a b", "a\n", "ü", "x" * 129)],
)
def test_agt_4_a_malformed_or_unknown_model_is_rejected_with_field_and_value(model: str) -> None:
    with pytest.raises(RejectedError) as refused:
        split_model(model)
    assert (refused.value.reason, refused.value.field) == ("invalid", "model")
    assert ascii(model[:60]) in refused.value.message
    assert refused.value.message.isascii()


def test_agt_4_the_error_for_an_unknown_provider_lists_the_valid_ones() -> None:
    with pytest.raises(RejectedError) as refused:
        split_model("nobody:x")
    assert f" the providers {', '.join(BUILT_IN_PROVIDERS)};" in refused.value.message


@given(
    st.sampled_from([*BUILT_IN_PROVIDERS]), st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=128)
)
def test_agt_4_any_name_without_spaces_is_the_providers_own(provider: str, name: str) -> None:
    assert split_model(f"{provider}:{name}") == (provider, name)
