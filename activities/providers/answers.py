"""What every vendor's adapter does to read an answer: put texts together, take arguments for what they are (AGT-3).

A vendor's answer is kept for months, in JSON and in a database: what neither can hold is replaced here, where it comes
in.
"""

from collections.abc import Iterable

from pydantic import JsonValue
from pydantic_core import from_json

from models.context.bounds import encodable_text


def joined(pieces: Iterable[str]) -> str:
    r"""Return the whole text of a stream's pieces, as it can be kept.

    A character of two UTF-16 halves may come in two pieces; a half without its other one can't be kept.

    >>> joined(["a \ud83d", "\ude00"]) == "a \U0001f600", joined(["\ud83d!"]) == "\ufffd!"
    (True, True)
    """
    text = "".join(pieces)
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return encodable_text(text)


def arguments_of(text: str) -> dict[str, JsonValue] | str:
    """Return a call's arguments; the text itself where it is no JSON object, so that the model can be told.

    None at all are an empty object. `NaN`, what is nested without end, and numbers of thousands of digits are no JSON.

    >>> arguments_of('{"a": [1]}'), arguments_of(""), arguments_of('{"a": '), arguments_of('{"a": NaN}')
    ({'a': [1]}, {}, '{"a": ', '{"a": NaN}')
    """
    if not text.strip():
        return {}
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
