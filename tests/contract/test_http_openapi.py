"""The OpenAPI document is complete and true, and the documentation needs no network."""

import asyncio
import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from caseworker.cli import cli
from caseworker.main.features import PROBLEM_TYPES
from tests.support.api import Api, client_of, openapi_document
from tests.support.artifacts import new_artifact, run_with_files
from tests.support.openapi import RESERVATIONS, ROUTES, WITHOUT_INPUT, documented_operations

pytestmark = pytest.mark.asyncio(loop_scope="module")


def operations() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, methods in openapi_document()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


async def test_every_route_of_the_contract_is_documented() -> None:
    """Every route is in the document, and the document has no other."""
    assert {name for name, _ in operations()} == ROUTES
    plain = {name for name, told in operations() if not {"parameters", "requestBody"} & {*told}}
    assert plain == WITHOUT_INPUT


async def test_every_operation_says_what_it_does_and_has_a_name_of_its_own() -> None:
    """Generated clients derive their method names from it."""
    names = [operation["operationId"] for _, operation in operations()]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z_]+", name) for name in names)
    for name, operation in operations():
        assert operation["summary"], name
        assert operation["description"], name
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (name, parameter["name"])


async def test_every_error_is_documented_as_a_problem() -> None:
    """Every answer of 400 or more has the problem format."""
    for name, operation in operations():
        for status, answer in operation["responses"].items():
            if status >= "400":
                own = {"application/json"} if name in RESERVATIONS else set()
                forms = {"application/problem+json", *own}
                assert set(answer["content"]) == forms, (name, status)
    assert openapi_document()["components"]["schemas"]["Problem"]["properties"]["type"]["enum"] == [
        kind.uri for kind in sorted(PROBLEM_TYPES, key=lambda kind: (kind.status, kind.slug))
    ]


async def test_every_reference_leads_somewhere() -> None:
    """Generators cannot use a document with a dangling reference."""
    named = set(re.findall(r"'#/components/schemas/([^']+)'", str(openapi_document())))

    assert named <= set(openapi_document()["components"]["schemas"])
    assert "HTTPValidationError" not in str(openapi_document())


class Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loading = {"src", "href"} if tag in ("script", "link", "img") else {"src"}
        self.addresses += [text or "" for name, text in attrs if name in loading]


async def test_the_documentation_page_loads_nothing_from_another_host(api: Api) -> None:
    """Scripts and styles come from the service, and the policy of the page allows no others."""
    async with client_of(api.app(), peer="192.0.2.1") as client:
        answer = await client.get("/docs")
        page = Loads()
        page.feed(answer.text)
        assets = {each: await client.get(f"/{each}") for each in page.addresses}
        missing = await client.get("/docs/index.html")

    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    assert answer.headers["content-type"].startswith("text/html")
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in policy["script-src"]
    assert "http" not in str(policy)
    assert {asset.headers["content-type"].partition(";")[0] for asset in assets.values()} == {
        *("text/javascript", "text/css", "image/png")
    }
    assert all(asset.is_success and len(asset.content) > 500 for asset in assets.values())
    assert missing.status_code == 404


async def test_the_documentation_leads_to_the_page_about_extensions(
    client: httpx.AsyncClient,
) -> None:
    """The page links to the same document as the README and the command line."""
    answer = await client.get("/docs/extending.md")
    root = Path(__file__).parents[2]

    assert "(docs/extending.md)" in openapi_document()["info"]["description"]
    assert "(docs/extending.md)" in (root / "README.md").read_text()
    assert "docs/extending.md" in str(cli.info.epilog)
    assert answer.headers["content-type"].startswith("text/markdown")
    assert answer.text == (root / "docs" / "extending.md").read_text()


async def test_the_document_is_written_once_however_many_ask_for_it_at_once(
    monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    """Each rendering would block all other callers."""
    app = api.app()
    making = Mock(wraps=app.openapi)
    monkeypatch.setattr(app, "openapi", making)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        asked = [group.create_task(client.get("/openapi.json")) for _ in range(20)]

    assert all(each.result().json() == openapi_document() for each in asked)
    making.assert_called_once_with()


async def test_the_policy_of_the_documentation_page_admits_its_own_script(
    client: httpx.AsyncClient,
) -> None:
    """The policy allows the script by its digest and no other inline script."""
    answer = await client.get("/docs")

    [script] = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "SwaggerUIBundle" in script
    assert "openapi.json" in script
    assert f"'sha256-{digest}'" in answer.headers["content-security-policy"]


async def test_what_is_answered_about_a_run_has_the_documented_form(
    client: httpx.AsyncClient,
) -> None:
    """Every field that the schemas require is there, and of its type."""
    body = {"run_id": "a", "input": "2+2?", "metadata": {"a": 1}}
    answers = {
        "POST /runs": await client.post("/runs", json=body),
        "DELETE /runs/{run_id}": await client.delete("/runs/a", params={"reason": "why"}),
        "POST /runs/{run_id}/cancel": await client.post("/runs/a/cancel"),
        "GET /runs": await client.get("/runs"),
        "GET /runs/{run_id}": await client.get("/runs/a"),
        "GET /runs/{run_id}/trace": await client.get("/runs/a/trace"),
        "GET /runs/{run_id}/events": await client.get(
            "/runs/a/events", headers={"Accept": "application/json"}
        ),
        "GET /runs/{run_id}/artifacts": await client.get("/runs/a/artifacts"),
    }

    for label, answer in answers.items():
        assert answer.is_success
        documented_operations()[label].validate_response(answer)


@pytest.mark.parametrize("media_type", ["image/png", "application/json", "text/html"])
async def test_what_is_answered_about_a_file_has_the_documented_form(
    client: httpx.AsyncClient, media_type: str, api: Api
) -> None:
    """The list, the bytes of every media type and the headers match the document."""
    await run_with_files(
        api.store, api.files, new_artifact("a.bin", b'{"a": 1}', media_type=media_type)
    )
    one = "/runs/case-1/artifacts/a.bin"
    answers = {
        "GET /runs/{run_id}/artifacts": await client.get("/runs/case-1/artifacts"),
        "GET /runs/{run_id}/artifacts/{name}": await client.get(one),
        "HEAD /runs/{run_id}/artifacts/{name}": await client.head(one),
    }

    for label, answer in answers.items():
        assert answer.is_success
        documented_operations()[label].validate_response(answer)


async def test_what_is_answered_about_a_graph_has_the_documented_form(
    client: httpx.AsyncClient,
) -> None:
    """Every field that the schemas require is there, and of its type."""
    graph = {"steps": [{"id": "a", "type": "tool", "data": {"tool": "calculator"}}], "edges": []}
    body = {"name": "g", "graph": graph, "description": "what for"}
    answers = {
        "POST /graphs": await client.post("/graphs", json=body),
        "POST /graphs/validate": await client.post("/graphs/validate", json={"graph": graph}),
        "GET /graphs": await client.get("/graphs"),
        "GET /graphs/{name}": await client.get("/graphs/g"),
        "GET /graphs/{name}/versions": await client.get("/graphs/g/versions"),
        "GET /graphs/{name}/versions/{version}": await client.get("/graphs/g/versions/1"),
        "POST /runs": await client.post(
            "/runs", json={"kind": "graph", "graph": {"name": "g"}, "input": "2+2?"}
        ),
        "DELETE /graphs/{name}": await client.delete("/graphs/g"),
    }

    for label, answer in answers.items():
        assert answer.is_success
        documented_operations()[label].validate_response(answer)
