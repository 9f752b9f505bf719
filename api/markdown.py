"""Markdown rendered to HTML that is safe to insert into a page (API-5).

The text is untrusted, so there are two barriers: markdown-it-py accepts no HTML, and nh3 allows only harmless elements.
Links lead to the web or to mail. Images become links, so that a page loads nothing that an answer names.

Some inputs are crafted to be slow, and Python renders one at a time. A rule that the parser tries at every position
stops it once its processor time is used up; the text is then shown as it was written. Processor time, unlike wall
time, doesn't depend on what else the machine does. The latest texts are cached with their HTML.
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
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from turnkeeper.api.problems import problem
from turnkeeper.api.timeouts import Timeouts
from turnkeeper.models.errors import TurnkeeperError
from turnkeeper.models.formulas import leave_formulas
from turnkeeper.stores.blobs import RecentTexts

MAX_TEXTS = 64
"""Of one request."""

MAX_CHARS = 200_000
"""Of all texts of one request; about half a second of ordinary Markdown."""

TEXT_SECONDS = 0.5
REQUEST_SECONDS = 1.5
"""Processor time for parsing one text, and all texts of a request; the rest is shown as it was written. Writing and
cleaning the HTML is not limited: it takes at most about 0.3 s more."""

CACHED_CHARS = 8 * 1024 * 1024

MAX_NESTING = 80
"""Levels of quotes and lists. Beyond 100 the parser itself drops text without notice."""

_NO_OWNER = ""

_ELEMENTS = {
    *("a", "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ol", "ul", "li"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "code": {"class"},
    "li": {"class"},
    "ol": {"start"},
    "th": {"align"},
    "td": {"align"},
}
_MAX_LANGUAGE_CHARS = len("language-") + 40

_LINKED = {"fuzzy_link": False, "fuzzy_email": False, "fuzzy_ip": False}
_TASK_BOXES = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
_TASK_CLASS = "task"


class UnrenderableError(TurnkeeperError):
    """A text took too long, or is nested so deeply that the parser would drop some of it."""


class MarkdownRenderer:
    """Renders texts in a thread, one at a time."""

    def __init__(self, timeouts: Timeouts, *, cached_chars: int = CACHED_CHARS) -> None:
        self._timeouts = timeouts
        self._cache = RecentTexts[str](max_chars=cached_chars)
        self._rendering = asyncio.Lock()
        # A thread of its own: a store that hangs in the loop's default threads must not delay rendering.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="markdown")

    async def render(self, texts: Sequence[str]) -> list[str]:
        """Return the HTML of each text. Raises a 429 while other requests keep the renderer busy."""
        names = [sha256(text.encode()).hexdigest() for text in texts]
        cached = self._cache.find(_NO_OWNER, names)
        missing = {name: text for name, text in zip(names, texts, strict=True) if name not in cached}
        if missing:
            cached |= await self._render(missing)
        return [cached[name] if name in cached else as_written(text) for name, text in zip(names, texts, strict=True)]

    async def _render(self, texts: dict[str, str]) -> dict[str, str]:
        try:
            async with asyncio.timeout(self._timeouts.render_queue):
                await self._rendering.acquire()
        except TimeoutError:
            raise problem("rate-limited", "Too many texts are being rendered. Try again in a moment.") from None
        try:
            # A second thread would not be faster, because of the GIL, and would slow the event loop down.
            loop = asyncio.get_running_loop()
            rendered_html = await loop.run_in_executor(self._thread, _render_within, texts, REQUEST_SECONDS)
        finally:
            self._rendering.release()
        self._cache.remember(_NO_OWNER, rendered_html)
        return rendered_html


def _render_within(texts: dict[str, str], seconds: float) -> dict[str, str]:
    """Return the HTML of those texts that can be rendered in time."""
    until, rendered_html = time.thread_time() + seconds, dict[str, str]()
    for name, text in texts.items():
        remaining = until - time.thread_time()
        if remaining <= 0:
            break
        rendered_html[name] = render_markdown(text, seconds=min(remaining, TEXT_SECONDS))
    return rendered_html


def render_markdown(text: str, *, seconds: float = TEXT_SECONDS) -> str:
    r"""Return `text` as safe HTML, or as it was written if parsing takes over `seconds` of processor time.

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
    # Some Markdown renders to nothing, such as a link definition. An answer must not vanish because of it.
    return rendered_html if rendered_html or not text.strip() else as_written(text)


def as_written(text: str) -> str:
    """Return `text` as preformatted HTML.

    >>> as_written("a < b")
    '<pre><code>a &lt; b</code></pre>'
    """
    return f"<pre><code>{html.escape(text, quote=False)}</code></pre>"


# ---- the parser


class _Parser(MarkdownIt):
    def normalizeLinkText(self, link: str) -> str:  # noqa: N802
        """Return a bare address as it is written. The parser's own function decodes it, and drops a long one."""
        return link


def _build_parser() -> MarkdownIt:
    parser = leave_formulas(_Parser("js-default", {"html": False, "breaks": True, "linkify": True}))
    # Only addresses with a scheme: README.md and e.g are no hosts.
    assert parser.linkify is not None  # noqa: S101  # a dependency
    parser.linkify.set(_LINKED).add("ftp:", None).add("//", None)
    parser.core.ruler.push("tasks", _mark_tasks)
    parser.inline.ruler.before("text", "in_time", _inline_in_time)
    parser.block.ruler.before(
        "table", "in_time", _block_in_time, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.add_render_rule("image", _image_as_link)
    for cell in ("th_open", "td_open"):
        parser.add_render_rule(cell, _cell_without_style)
    return parser


def _mark_tasks(state: StateCore) -> None:
    """Show the box of a task in a list, `[ ]` or `[x]`, as a sign."""
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        box = inline.content[:4]
        if item.type == "list_item_open" and inline.children and box in _TASK_BOXES:
            first = inline.children[0]
            first.content = _TASK_BOXES[box] + first.content[len(box) :]
            item.attrSet("class", _TASK_CLASS)


def _check_time(env: EnvType) -> bool:
    """Match nothing, so that the parser tries its other rules. Raises `UnrenderableError`."""
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
    """Render an image as a link, so that the page doesn't load it."""
    token = tokens[index]
    source = str(token.attrs.get("src", ""))
    words = renderer.renderInlineAsText(token.children, options, env) or source
    return f'<a href="{html.escape(source)}">{html.escape(words)}</a>'


def _cell_without_style(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Render a column's alignment as an attribute: the page's policy blocks inline styles."""
    token = tokens[index]
    style = str(token.attrs.pop("style", ""))
    if style:
        token.attrs["align"] = style.removeprefix("text-align:")
    return renderer.renderToken(tokens, index, options, env)


def _filter_attribute(element: str, attribute: str, value: str) -> str | None:
    """Allow code the class that names its language, the item of a task list its own, and no other class."""
    if attribute == "class" and element == "li":
        return value if value == _TASK_CLASS else None
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
