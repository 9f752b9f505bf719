"""Markdown of models, tools and people, made into HTML that is safe to put into a page (API-5).

Theory of operation. The text is anybody's, so two walls stand in its way: markdown-it-py takes no HTML from it, and nh3
lets nothing through but a list of harmless elements. Links lead to the web or to mail, images become links: a page that
shows an answer loads nothing that the answer names.

Some texts are made to be slow, and Python renders one at a time. So a parser that has used up its time is stopped in
the middle, by a rule that it tries at every place of the text, and such a text is shown as it was written. The time is
that of the processor alone: a busy machine changes nothing. The latest texts are remembered with their HTML.
"""

import asyncio
import html
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from turnkeeper.api import problems
from turnkeeper.stores.recent_texts import RecentTexts

MAX_TEXTS = 64
"""Texts of one request."""

MAX_CHARS = 200_000
"""Characters of one request, all texts together; about half a second of ordinary Markdown."""

TEXT_SECONDS = 0.5
REQUEST_SECONDS = 1.5
"""Processor time that parsing takes of a text, and of all texts of a request; what is not parsed by then is shown as it
was written. The HTML of what is parsed is written and cleaned in any case: at most about 0.3 s more, for `MAX_CHARS`
of what becomes the longest HTML."""

CACHED_CHARS = 8 * 1024 * 1024

MAX_NESTING = 80
"""Levels of quotes and lists. The parser itself would drop what is beyond 100, without a word."""

PATIENCE_SECONDS = 1.0
"""How long a request waits for those before it."""

_NO_OWNER = ""

_ELEMENTS = {
    *("a", "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ol", "ul", "li"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES = {"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}, "th": {"align"}, "td": {"align"}}
_MAX_LANGUAGE_CHARS = len("language-") + 40


class UnrenderableError(Exception):
    """A text took its time and is not rendered yet, or is nested so deeply that some of it would be left out."""


class MarkdownRenderer:
    """Renders texts, one at a time, beside the event loop."""

    def __init__(self, *, cached_chars: int = CACHED_CHARS) -> None:
        self._cache = RecentTexts(most_chars=cached_chars)
        self._rendering = asyncio.Lock()
        # Of its own: whatever hangs in the loop's threads, a store say, holds no text up.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="markdown")

    async def render(self, texts: Sequence[str]) -> list[str]:
        """Return the HTML of each of the texts. Raises a 429 where others keep the renderer busy."""
        names = [sha256(text.encode()).hexdigest() for text in texts]
        cached = self._cache.find(_NO_OWNER, names)
        missing = {name: text for name, text in zip(names, texts, strict=True) if name not in cached}
        if missing:
            cached |= await self._render(missing)
        return [cached[name] if name in cached else as_written(text) for name, text in zip(names, texts, strict=True)]

    async def _render(self, texts: dict[str, str]) -> dict[str, str]:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._rendering.acquire()
        except TimeoutError:
            raise problems.renderer_busy() from None
        try:
            # A second thread would not make it faster, and would take more of the event loop's time.
            loop = asyncio.get_running_loop()
            rendered_html = await loop.run_in_executor(self._thread, _render_within, texts, REQUEST_SECONDS)
        finally:
            self._rendering.release()
        self._cache.remember(_NO_OWNER, rendered_html)
        return rendered_html


def _render_within(texts: dict[str, str], seconds: float) -> dict[str, str]:
    """Return the HTML of as many of the texts as there is time for."""
    until, rendered_html = time.thread_time() + seconds, dict[str, str]()
    for name, text in texts.items():
        remaining = until - time.thread_time()
        if remaining <= 0:
            break
        rendered_html[name] = render_markdown(text, seconds=min(remaining, TEXT_SECONDS))
    return rendered_html


def render_markdown(text: str, *, seconds: float = TEXT_SECONDS) -> str:
    r"""Return `text` as safe HTML, or as it was written where parsing it takes over `seconds` of the processor.

    >>> render_markdown("**Hi** <b>you</b>")
    '<p><strong>Hi</strong> &lt;b&gt;you&lt;/b&gt;</p>\n'
    >>> render_markdown("![a cat](https://example.org/cat.png)")
    '<p><a href="https://example.org/cat.png" target="_blank" rel="noopener noreferrer nofollow">a cat</a></p>\n'
    >>> render_markdown("[x](javascript:alert(1)) [y](/docs)")
    '<p>[x](javascript:alert(1)) <a target="_blank" rel="noopener noreferrer nofollow">y</a></p>\n'
    """
    try:
        unsafe = _PARSER.render(text, {"until": time.thread_time() + seconds})
    except UnrenderableError:
        return as_written(text)
    rendered_html: str = _CLEANER.clean(unsafe)
    # Markdown has what is never shown: a definition of a link, say. An answer is not to vanish for it.
    return rendered_html if rendered_html or not text.strip() else as_written(text)


def as_written(text: str) -> str:
    """Return `text` as HTML that shows it character by character.

    >>> as_written("a < b")
    '<pre><code>a &lt; b</code></pre>'
    """
    return f"<pre><code>{html.escape(text, quote=False)}</code></pre>"


# ---- the parser


def _build_parser() -> MarkdownIt:
    parser = MarkdownIt("js-default", {"html": False, "breaks": True})
    parser.inline.ruler.before("text", "in_time", _inline_in_time)
    parser.block.ruler.before(
        "table", "in_time", _block_in_time, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.add_render_rule("image", _image_as_link)
    for cell in ("th_open", "td_open"):
        parser.add_render_rule(cell, _cell_without_style)
    return parser


def _check_time(env: EnvType) -> bool:
    """Match nothing, so that the parser goes on with its other rules. Raises `UnrenderableError`."""
    if time.thread_time() > env["until"]:
        raise UnrenderableError
    return False


def _inline_in_time(state: StateInline, silent: bool) -> bool:
    return _check_time(state.env)


def _block_in_time(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.level >= MAX_NESTING:
        raise UnrenderableError
    return _check_time(state.env)


def _image_as_link(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Show where an image is: what an answer names is not loaded."""
    token = tokens[index]
    source = str(token.attrs.get("src", ""))
    words = renderer.renderInlineAsText(token.children, options, env) or source
    return f'<a href="{html.escape(source)}">{html.escape(words)}</a>'


def _cell_without_style(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Say a column's alignment without a style, which the page's policy would refuse."""
    token = tokens[index]
    style = str(token.attrs.pop("style", ""))
    if style:
        token.attrs["align"] = style.removeprefix("text-align:")
    return renderer.renderToken(tokens, index, options, env)


def _filter_attribute(element: str, attribute: str, value: str) -> str | None:
    """Let a code block have the class that names its language, and nothing else."""
    if attribute == "class":
        return value if value.startswith("language-") and len(value) <= _MAX_LANGUAGE_CHARS else None
    return value


_PARSER = _build_parser()

_CLEANER: Any = nh3.Cleaner(
    tags=_ELEMENTS,
    attributes=_ATTRIBUTES,
    attribute_filter=_filter_attribute,
    url_schemes={"http", "https", "mailto"},
    url_relative="deny",
    link_rel="noopener noreferrer nofollow",
    set_tag_attribute_values={"a": {"target": "_blank"}},
)
