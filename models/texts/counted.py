"""Numbers with their nouns. Apart from the other texts, since settings need only this."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed.

    >>> counted(1, "prompt"), counted(1_200, "character"), counted(0, "entry")
    ('1 prompt', '1,200 characters', '0 entries')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
