"""The documentation site: built strictly, complete, and without external resources."""

import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from caseworker.settings.schema import Settings
from caseworker.settings.values import keys_of, path_text, variable_of
from tests.support.api import openapi_document
from tests.support.pages import ROOT

LOADED_BY_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a dead link or anchor, or a page outside the nav, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    config = ROOT / "docs" / "site" / "mkdocs.yml"
    build(load_config(str(config), strict=True, site_dir=str(folder)))
    return folder


class Assets(HTMLParser):
    """Collects the addresses that a browser loads for a page without a click."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = LOADED_BY_CSS.findall(page)
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses of a tag that is not a link for readers."""
        names = ("src", "srcset", "data", "poster") + (("href",) if tag == "link" else ())
        self.found += [value for name, value in attrs if name in names and value]


def assets_of(site: Path) -> Iterator[str]:
    for page in site.rglob("*.html"):
        yield from Assets(page.read_text(encoding="utf-8")).found
    for sheet in site.rglob("*.css"):
        yield from LOADED_BY_CSS.findall(sheet.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    """Fonts, scripts, styles and pictures are local, and the search uses the site's own index."""
    assets = list(assets_of(site))

    assert len(assets) > 100
    assert [each for each in assets if re.match(r"(?:https?:)?//", each)] == []
    assert (site / "search" / "search_index.json").is_file()


def test_scripts_fetch_nothing_that_the_pages_need(site: Path) -> None:
    """The theme could load mermaid and GitHub data, but these pages use neither."""
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]

    assert not any(
        'class="mermaid"' in page or 'data-md-component="source"' in page for page in pages
    )


def test_the_reference_names_every_route_and_every_setting(site: Path) -> None:
    """The reference matches the OpenAPI document and the schema of the settings."""
    routes = html.unescape((site / "reference" / "http.html").read_text(encoding="utf-8"))
    settings = html.unescape((site / "reference" / "settings.html").read_text(encoding="utf-8"))
    document = openapi_document()
    expected = [
        f"{method.upper()} {path}<" for path, of in document["paths"].items() for method in of
    ]
    models = [f">{name}<" for name in document["components"]["schemas"]]
    keys = [word for path, _ in keys_of(Settings) for word in (path_text(path), variable_of(path))]

    assert len(expected) > 40
    assert [each for each in (*expected, *models) if each not in routes] == []
    assert [each for each in keys if f">{each}<" not in settings] == []
    assert "index.html" in {page.name for page in site.iterdir()}
