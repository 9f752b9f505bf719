"""The files of the chat page and their headers (API-4, API-5)."""

import os
import re
import shutil
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient

from turnkeeper.api.app import create_app
from turnkeeper.api.new_sessions import plain_input
from turnkeeper.api.routes.page import PageFiles, page_files
from turnkeeper.models.settings.settings import Settings

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "clients" / "page"
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
MODULES = [name for name in FILES if name.endswith(".js")]
SERVED = [name for name in FILES if not name.endswith(".html")]


async def test_api_5_the_page_has_a_strict_content_security_policy(shared_http: AsyncClient) -> None:
    answer = await shared_http.get("/?session=some-session")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "sanitised-markdown",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_api_5_the_page_has_no_inline_scripts_or_styles_and_no_external_urls() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", page)
    for name in FILES:
        text = (STATIC / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), name


@pytest.mark.parametrize("name", SERVED)
async def test_api_5_every_file_is_compressed_and_cached_forever(shared_http: AsyncClient, name: str) -> None:
    path = f"{page_files().path}/{name}"
    content = (STATIC / name).read_bytes()
    for encoding in ("gzip", "identity"):
        answer = await shared_http.get(path, headers={"Accept-Encoding": encoding})
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers.get("content-encoding", "identity") == encoding
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await shared_http.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content, again.headers["vary"]) == (304, b"", "Accept-Encoding")


async def test_api_5_a_changed_file_changes_the_path_of_all_files(shared_http: AsyncClient, tmp_path: Path) -> None:
    shutil.copytree(STATIC, tmp_path / "page")
    assert PageFiles(tmp_path / "page").path == page_files().path
    with (tmp_path / "page" / "words.js").open("a") as file:
        file.write("// another release")
    other = PageFiles(tmp_path / "page").path
    assert other != page_files().path
    answer = await shared_http.get(f"{other}/words.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-store")


async def test_api_5_the_page_itself_is_revalidated_by_etag(shared_http: AsyncClient) -> None:
    page = await shared_http.get("/")
    assert (page.headers["cache-control"], page.headers["vary"]) == ("no-cache", "Accept-Encoding")
    assert page.headers["content-encoding"] == "gzip"
    plain = await shared_http.get("/", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert (plain.text, plain.headers["etag"]) == (page.text, page.headers["etag"])
    head = await shared_http.head("/")
    assert head.headers["content-length"] == page.headers["content-length"]
    assert (await shared_http.get("/", headers={"If-None-Match": page.headers["etag"]})).status_code == 304


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/static/nothing.js", "/static/page.js", "/static/../app.py", "/static/%2e%2e/app.py", "/static/"],
)
async def test_api_2_an_unknown_path_gets_a_problem_instead_of_the_page(shared_http: AsyncClient, path: str) -> None:
    answer = await shared_http.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_api_5_the_page_contains_the_model_of_new_sessions(tmp_path: Path) -> None:
    app = create_app(Settings(state_dir=tmp_path, model='openai-chat:x"><script>'))
    async with AsyncClient(transport=ASGITransport(app=app), base_url="http://localhost") as http:
        page = (await http.get("/")).text
    assert '<meta name="turnkeeper:first-model" content="openai-chat:x&quot;&gt;&lt;script&gt;" />' in page


async def test_api_5_a_session_links_to_its_page_from_the_gateway_and_from_temporal(shared_http: AsyncClient) -> None:
    session = (await shared_http.post("/workflow")).json()["workflow_id"]
    links = (await shared_http.get(f"/workflow/{session}")).json()["links"]
    assert links["chat"] == f"/?session={session}"
    assert (await shared_http.get(links["chat"])).status_code == 200
    started = plain_input(Settings(public_url="https://agents.example"), "support-42", user=None)
    assert started.chat_url == "https://agents.example/?session=support-42"


def test_api_5_every_module_and_every_style_is_used() -> None:
    texts = {name: (STATIC / name).read_text() for name in FILES}
    used = {
        "index.html",
        "problem.html",
        *(match for text in texts.values() for match in re.findall(r'"/static/([\w./]+)"', text)),
    }
    for name, text in texts.items():
        for path in re.findall(r'(?:from|import\()\s*"(\.[\w./]+\.js)"', text):
            used.add(os.path.normpath(Path(name).parent / path))
    assert used == set(FILES)


async def test_api_5_every_module_is_preloaded(shared_http: AsyncClient) -> None:
    page = (await shared_http.get("/")).text
    fetched = re.findall(r'rel="modulepreload" href="/static/\w+/([\w/]+\.js)"', page)
    assert fetched == [name for name in MODULES if name != "conversation/wire.js"]  # which is types only


def test_api_5_the_icons_that_are_used_are_the_icons_that_exist() -> None:
    page = (STATIC / "index.html").read_text()
    there = set(re.findall(r'<symbol id="icon-(\w+)"', page))
    scripts = "\n".join((STATIC / name).read_text() for name in MODULES)
    used = set(re.findall(r'href="#icon-(\w+)"', page)) | set(re.findall(r'icon\("(\w+)"\)', scripts))
    used |= set(re.findall(r'iconButton\([^,]+, "(\w+)"', scripts))
    used |= set(re.findall(r': \["\w+", "(\w+)"\]', scripts))  # the state of a tool call
    used |= {name for pair in re.findall(r'icon\(\w+ \? "(\w+)" : "(\w+)"\)', scripts) for name in pair}
    assert used == there


@pytest.mark.parametrize("path", ["/?utm_source=slack", "/?session=rich&x=1", "/docs?x=1", "/redoc?x=1"])
async def test_api_5_the_page_ignores_unknown_query_parameters(shared_http: AsyncClient, path: str) -> None:
    """U12: mail filters, chats and analytics add parameters to links."""
    answer = await shared_http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/nowhere", 404, "There is nothing at /nowhere."),
        ("/%3Cscript%3E", 404, "There is nothing at /&lt;script&gt;."),
        ("/workflow/none-such", 404, "There is no session &#x27;none-such&#x27;."),
    ],
)
async def test_api_5_a_browser_gets_a_problem_as_a_page_with_a_link_home(
    shared_http: AsyncClient, path: str, status: int, sentence: str
) -> None:
    answer = await shared_http.get(path, headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert sentence in answer.text
    assert 'href="/"' in answer.text
    assert "default-src 'none'; style-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/problem+json", None])
async def test_api_2_an_api_client_gets_a_problem_document(shared_http: AsyncClient, accept: str | None) -> None:
    answer = await shared_http.get("/nowhere", headers={"Accept": accept} if accept else {})
    assert answer.headers["content-type"] == "application/problem+json"
