"""The files of the viewer and their headers."""

import re
from importlib import resources

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from caseworker.ui.pages import prefers_html, viewer_routes

MAX_BYTES = 210 * 1024
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def files() -> dict[str, bytes]:
    folder = resources.files("caseworker.ui") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def client(root_path: str = "") -> httpx.AsyncClient:
    """Return a client of the viewer, with a stub of the API."""

    async def trace(_: object) -> PlainTextResponse:
        return PlainTextResponse("the trace")

    app = Starlette(routes=[*viewer_routes(), Route("/runs/{run_id}/trace", trace)])
    transport = httpx.ASGITransport(app, root_path=root_path)
    return httpx.AsyncClient(base_url="http://service", transport=transport)


def test_the_viewer_is_small_and_its_own() -> None:
    """Scripts and styles have less than 210 KB, name no other host and have no inline script."""
    found = files()

    assert sum(map(len, found.values())) < MAX_BYTES
    for name, content in found.items():
        text = content.decode()
        addresses = set(re.findall(r"https?://[^\"'\s]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert "innerHTML" not in text, name
    shell = found["index.html"].decode()
    assert not re.search(r"<script[^>]*>[^<]|<style|\sstyle=|\son[a-z]+=", shell)


def test_every_module_that_is_imported_exists() -> None:
    """Modules that a page loads later are included."""
    found = files()

    for name, content in found.items():
        for imported in re.findall(r"(?:from|import\()\s*\"\./([^\"]+)\"", content.decode()):
            assert imported in found, f"{name} imports {imported}"
    for named in re.findall(r"static/([a-z_]+\.[a-z]+)", found["index.html"].decode()):
        assert named in found, named


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("text/*", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("application/json;q=0.5, text/html;q=0.9", True),
        ("text/html;q=0.1, */*;q=0.5", False),
        ("text/html;q=nonsense, */*", False),
    ],
)
def test_html_is_for_those_who_would_rather_read_it(accept: str, html: bool) -> None:
    """A client that prefers HTML and JSON equally is a program."""
    assert prefers_html(Headers({"accept": accept})) is html


async def test_the_page_of_a_run_stands_at_the_address_of_its_trace() -> None:
    """Programs, and requests that name a format, get the trace."""
    async with client() as http:
        page = await http.get("/runs/a/trace", headers={"Accept": BROWSER})
        trace = await http.get("/runs/a/trace", headers={"Accept": "*/*"})
        text = await http.get("/runs/a/trace?format=explain", headers={"Accept": BROWSER})

    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["vary"] == "Accept"
    assert (trace.text, text.text) == ("the trace", "the trace")


async def test_an_unknown_page_is_found_by_browsers_only() -> None:
    """The viewer shows browsers that the page does not exist."""
    async with client() as http:
        page = await http.get("/ui/nothing/here", headers={"Accept": BROWSER})
        program = await http.get("/ui/nothing/here")

    assert page.headers["content-type"].startswith("text/html")
    assert program.status_code == 404


async def test_a_page_is_strict_about_what_it_loads() -> None:
    """Inline code, other hosts, frames and referrers are forbidden."""
    async with client() as http:
        page = await http.get("/ui/runs/a")

    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert page.headers["referrer-policy"] == "no-referrer"


async def test_a_file_is_sent_once_and_found_below_any_path() -> None:
    """The file has an ETag, and a missing file is an error."""
    async with client(root_path="/case&worker") as http:
        page = await http.get("/case&worker/ui")
        script = await http.get("/case&worker/ui/static/app.js")
        headers = {"If-None-Match": f'W/"other", {script.headers["etag"]}'}
        again = await http.get("/case&worker/ui/static/app.js", headers=headers)
        missing = await http.get("/case&worker/ui/static/..%2Fpages.py")

    assert 'src="/case&amp;worker/ui/static/app.js"' in page.text
    assert script.headers["content-type"].startswith("text/javascript")
    assert (again.status_code, again.content) == (304, b"")
    assert missing.status_code == 404
