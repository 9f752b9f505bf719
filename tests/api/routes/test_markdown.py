"""`POST /markdown`: the HTML of any text is harmless, and ready in time (API-4, API-5)."""

import asyncio
import html
import re
import time
from html.parser import HTMLParser

import pytest
from httpx import AsyncClient
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import BOUND
from tests.waiting import run_other_tasks
from turnkeeper.api.markdown import MAX_CHARS, MAX_TEXTS, MarkdownRenderer, as_written, render_markdown
from turnkeeper.api.timeouts import Timeouts

ELEMENTS = {
    *("a", "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ol", "ul", "li"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "title", "target", "rel", "class", "start", "align"}


class Elements(HTMLParser):
    """The elements and attributes of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def check_harmless(rendered: str) -> None:
    for element, attributes in Elements(rendered).elements:
        assert element in ELEMENTS
        assert attributes.keys() <= ATTRIBUTES
        if "href" in attributes:
            assert re.match(r"https?://|mailto:", attributes["href"] or "", re.IGNORECASE)
            assert attributes["rel"] == "noopener noreferrer nofollow"
        assert re.fullmatch(r"language-.{0,40}|task", attributes.get("class") or "language-")


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<style>body{display:none}</style>",
    "<iframe src='javascript:alert(1)'></iframe>",
    "<form action='https://evil.example'><input></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&#58;alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](blob:https://a/b)",
    "[x](/workflow/a/end) [y](//evil.example) [z](#a) [w](?a=b)",
    "![x](data:image/svg+xml;base64,PHN2Zz4=)",
    "![x](https://evil.example/a.png 'title\" onerror=\"alert(1)')",
    '<javascript:alert(1)> <https://a.example/"onmouseover=alert(1)>',
    '[a](https://a.example "x\\" onclick=\\"alert(1)")',
    '```"><script>alert(1)</script>\nx\n```',
    '```x" onclick="alert(1)\nx\n```',
    "| a |\n|:-:|\n| <img src=x onerror=alert(1)> |",
    "[a]: javascript:alert(1)\n\n[a]",
    "<!-- --!><script>alert(1)</script>",
    "<a href='https://a.example' onclick='alert(1)' style='position:fixed'>x</a>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_api_5_hostile_markdown_becomes_harmless_html(text: str) -> None:
    check_harmless(render_markdown(text))


@given(
    st.lists(
        st.sampled_from(
            [
                *"<>&\"'`*_[]()!#|-:\\\n ~=$",
                "- [ ] ",
                "script",
                "javascript:",
                "https://a.example",
                "&#",
                "```",
                "on",
                "x",
            ]
        ),
        max_size=80,
    )
)
def test_api_5_no_generated_text_becomes_harmful_html(pieces: list[str]) -> None:
    check_harmless(render_markdown("".join(pieces)))


def test_api_5_images_are_shown_as_links_and_alignment_without_a_style() -> None:
    assert Elements(render_markdown("![a cat](https://a.example/c.png)")).elements[1] == (
        "a",
        {"href": "https://a.example/c.png", "target": "_blank", "rel": "noopener noreferrer nofollow"},
    )
    assert '<td align="right">1</td>' in render_markdown("| a |\n|--:|\n| 1 |")


def test_api_5_code_names_its_language() -> None:
    assert '<code class="language-c++">' in render_markdown("```c++ title=x\nint a;\n```")


FORMULAS = [
    r"\(a^2 + b^2\)",
    r"$$e^{-x^2}\,dx$$",
    r"\[ \frac{a}{b} \]",
    r"$a_1 * b_1 * \{c\}$",
    "$$\n- a \\\\\n\n= b\\,c\n$$",
    "\\[\n> a\n# b\n\\]",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_api_5_a_tex_formula_is_shown_unchanged(formula: str) -> None:
    """U13: Markdown dropped its backslashes."""
    for text in (formula, f"- {formula}".replace("\n", "\n  "), f"> {formula}".replace("\n", "\n> ")):
        rendered = render_markdown(text)
        assert '<code class="language-math">' in rendered
        assert Elements(rendered).text.strip() == formula


@pytest.mark.parametrize(
    "text", ["It costs $5 and $10.", "US$1 or US$2", "$HOME/bin:$PATH", "A $ sign and a $", "$(a) and $(b)", "$$", "$"]
)
def test_api_5_amounts_and_variables_are_not_formulas(text: str) -> None:
    assert render_markdown(text) == f"<p>{text}</p>\n"


def test_api_5_a_bare_url_becomes_a_link_and_a_file_name_does_not() -> None:
    elements = Elements(render_markdown("See https://a.example/x_(y). In README.md, a@b.example and //c.example."))
    assert [attributes["href"] for element, attributes in elements.elements if element == "a"] == [
        "https://a.example/x_(y)"
    ]
    assert elements.text.strip() == "See https://a.example/x_(y). In README.md, a@b.example and //c.example."
    long_name = f"http://{'a.' * 1_000}example"
    assert Elements(render_markdown(long_name)).text.strip() == long_name


def test_api_5_a_task_list_shows_ticked_boxes() -> None:
    assert render_markdown("- [ ] one\n- [x] *two*\n- [three]") == (
        '<ul>\n<li class="task">☐ one</li>\n<li class="task">☑ <em>two</em></li>\n<li>[three]</li>\n</ul>\n'
    )


SLOW = {
    "brackets": "[" * 100_000,
    "images": "![" * 50_000,
    "links": "[a](" * 30_000,
    "emphasis": "*a " * 50_000,
    "mixed emphasis": "*a_ " * 30_000,
    "quotes": ">" * 10_000,
    "lists": "".join("  " * depth + "- a\n" for depth in range(400)),
    "nested emphasis": "*" * 10_000 + "a" + "*" * 10_000,
    "backticks": "".join("`" * count + " " for count in range(600)),
    "tables": "a|b\n-|-\n" * 10_000,
    "wide tables": "|a" * 2_000 + "\n" + "|-" * 2_000 + "\n" + "|a\n" * 1_000,
    "references": "[a]: b\n" * 20_000,
    "lines": "a\n" * 50_000,
    "entities": "&#" * 50_000,
    "comments": "<!--" * 30_000,
    "dollars": "$a " * 60_000,
    "formulas": r"\(" * 60_000,
    "blocks of formulas": "$$ a\n" * 40_000,
    "addresses": "http://" * 28_000,
    "addresses and stars": ("https://a.example/" + "*" * 50) * 2_000,
}


@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_api_5_rendering_any_text_stops_at_the_time_limit(text: str) -> None:
    began = time.thread_time()
    rendered = render_markdown(text, seconds=0.2)
    assert time.thread_time() - began < 2.0
    check_harmless(rendered)
    assert Elements(rendered).text.strip()  # a text that is too slow is shown as it was written: it never vanishes


def test_api_5_a_text_that_would_be_invisible_is_shown_as_plain_text() -> None:
    assert render_markdown("[a]: https://a.example") == as_written("[a]: https://a.example")
    assert render_markdown(">" * 200 + "deep") == as_written(">" * 200 + "deep")
    assert render_markdown(" ") == ""


async def test_api_5_a_blank_text_is_rendered_as_nothing() -> None:
    assert await MarkdownRenderer(Timeouts()).render(["", " \n", "a"]) == ["", "", "<p>a</p>\n"]


async def test_api_5_texts_are_rendered_in_order(http: AsyncClient) -> None:
    answer = await http.post("/markdown", json={"texts": ["*a*", "b", "*a*"]})
    assert answer.status_code == 200
    assert answer.json() == {"html": ["<p><em>a</em></p>\n", "<p>b</p>\n", "<p><em>a</em></p>\n"]}
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "texts"),
        ({"texts": "a"}, "texts"),
        ({"texts": [1]}, "texts[0]"),
        ({"texts": ["a"] * (MAX_TEXTS + 1)}, "texts"),
        ({"texts": ["a" * (MAX_CHARS + 1)]}, "texts"),
        ({"texts": [], "html": True}, "html"),
    ],
)
async def test_api_5_an_invalid_render_request_gets_a_problem_that_names_the_field(
    http: AsyncClient, body: dict[str, object], field: str
) -> None:
    answer = await http.post("/markdown", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]


async def test_api_5_a_text_with_a_lone_surrogate_is_rejected(http: AsyncClient) -> None:
    answer = await http.post(
        "/markdown", content=b'{"texts": ["a \\ud800 b"]}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "texts"


async def test_api_5_the_gateway_stays_responsive_while_a_slow_text_is_rendered(http: AsyncClient) -> None:
    rendering = asyncio.create_task(http.post("/markdown", json={"texts": [SLOW["brackets"]]}))
    answered = 0
    async with asyncio.timeout(BOUND):
        while not rendering.done():
            assert (await http.get("/healthz")).status_code == 200
            answered += 1
            await run_other_tasks()  # nothing else in here waits for anything: the rendering would never begin
    assert answered >= 3
    assert (await rendering).json() == {
        "html": [f"<pre><code>{html.escape(SLOW['brackets'], quote=False)}</code></pre>"]
    }


async def test_api_5_a_text_is_rendered_once() -> None:
    markdown = MarkdownRenderer(Timeouts())
    first = await markdown.render(["*a*"])
    markdown._rendering = None  # type: ignore[assignment]  # rendering again would fail
    assert await markdown.render(["*a*"]) == first


async def test_api_5_a_caller_gets_429_while_slow_texts_are_rendered() -> None:
    markdown = MarkdownRenderer(Timeouts(render_queue=0.01))
    async with markdown._rendering:
        with pytest.raises(Exception, match="Too many texts") as refusal:
            await markdown.render(["*a*"])
    assert refusal.value.problem.status == 429
    assert await markdown.render(["*a*"]) == ["<p><em>a</em></p>\n"]
