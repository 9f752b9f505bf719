"""Which kinds of attachments a model reads besides text, by its name (AGT-4).

A name decides only where it is sure. Any other model is shown everything, and what its vendor refuses is learned
(`refused_parts`).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Sight:
    """The kinds of attachments that a model reads, besides text."""

    images: bool = True
    pdfs: bool = True


FULL = Sight()
TEXT_ONLY = Sight(images=False, pdfs=False)

_BLIND_CLAUDE = re.compile(r".*claude-(?:v?[12]\b|instant)")
_BLIND_GPT = re.compile(
    r"(?:ft:)?(?:gpt-3\.5|gpt-4(?:-32k|-turbo-preview)?(?:-\d{4})?(?:-preview)?(?:$|:)|o1-(?:mini|preview)|o3-mini"
    r"|gpt-oss|(?:text-)?(?:davinci|babbage|curie|ada)\b)"
)


def claude_sight(name: str) -> Sight:
    """Return what a model of Anthropic's API reads: all Claude models since 3 read images and PDFs.

    >>> claude_sight("claude-opus-4-5").images, claude_sight("anthropic.claude-v2:1").images
    (True, False)
    """
    return TEXT_ONLY if _BLIND_CLAUDE.match(name) else FULL


def gpt_sight(name: str) -> Sight:
    """Return what a model of OpenAI's own API reads. Models that see images read PDFs too.

    >>> [gpt_sight(name).images for name in ("gpt-5.5", "gpt-4o-mini", "gpt-4.1", "gpt-4-turbo", "o3")]
    [True, True, True, True, True]
    >>> [gpt_sight(name).images for name in ("gpt-4", "gpt-4-0613", "gpt-4-1106-preview", "gpt-3.5-turbo", "o3-mini")]
    [False, False, False, False, False]
    """
    return TEXT_ONLY if _BLIND_GPT.match(name) else FULL
