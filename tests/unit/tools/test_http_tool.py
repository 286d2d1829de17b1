"""Tools that call HTTP APIs, against a real server on this machine."""

import asyncio
import gzip
import html
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from caseworker import ToolRefusedError
from caseworker.core.budget.retry import ONE_ATTEMPT
from caseworker.main.configuration import StartupError
from caseworker.runtime_api import agents
from caseworker.testing import run_tool
from tests.unit.tools.http_support import CONTEXT, Api, http_tool, reply

SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "q": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["order_id"],
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_arguments_fill_the_path_the_query_and_the_body(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers come from the environment, and requests are signed as webhooks."""
    monkeypatch.setenv("THE_TOKEN", "Bearer 1\n")
    monkeypatch.setenv("THE_SECRET", SECRET)
    url = f"{api.url}/orders/{{order_id}}"
    secured = {"headers_env": {"Authorization": "THE_TOKEN"}, "signing_secret_env": "THE_SECRET"}
    args = {"order_id": "a b?#%", "q": "x&y=1", "tags": ["1", "2"]}

    await http_tool(url=url, parameters=ORDER).run(args, CONTEXT)
    await http_tool(url=url, parameters=ORDER, method="POST", **secured).run(args, CONTEXT)
    await http_tool(url=f"{api.url}/find?a=b&q={{q}}").run({"q": "/&?"}, CONTEXT)

    (read, _, empty), (written, headers, body), (found, *_) = api.requests
    assert read == "GET /orders/a%20b%3F%23%25?q=x%26y%3D1&tags=1&tags=2 HTTP/1.1"
    assert (empty, written) == (b"", "POST /orders/a%20b%3F%23%25 HTTP/1.1")
    assert found == "GET /find?a=b&q=%2F%26%3F HTTP/1.1"
    assert json.loads(body) == {"q": "x&y=1", "tags": ["1", "2"]}
    assert (headers["authorization"], headers["idempotency-key"]) == ("Bearer 1", "the-call")
    assert Webhook(SECRET).verify(body, headers) == json.loads(body)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(value=st.text(max_size=6) | st.text("./\\%?#&=@:;2eEfF \r\n", max_size=8), q=st.text())
async def test_no_value_changes_the_host_the_segments_or_the_names(
    api: Api, value: str, q: str
) -> None:
    """A value is rejected, or it arrives as one segment, also after it is decoded."""
    api.requests.clear()
    tool = http_tool(url=f"{api.url}/orders/{{order_id}}/items", parameters=ORDER)
    try:
        await tool.run({"order_id": value, "q": q}, CONTEXT)
    except ToolRefusedError:
        assert set(value) <= {"."} or "/" in value or "\\" in value
        assert api.requests == []
        return

    ((line, headers, _),) = api.requests
    method, target, version = line.split(" ")
    parts = urlsplit(target)
    assert (method, version, headers["host"]) == ("GET", "HTTP/1.1", api.url[len("http://") :])
    assert unquote(parts.path).split("/") == ["", "orders", value, "items"]
    assert parse_qsl(parts.query, keep_blank_values=True) == [("q", q)]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (reply(b'{"a": 1}'), {"a": 1}),
        (reply(b"[1]"), {"value": [1]}),
        (reply(b'{"error": null}'), {"value": {"error": None}}),
        (reply(b"hi \x00", kind="text/plain"), {"text": "hi \ufffd"}),
        (reply(b"", 204), {"status": 204}),
        (reply(gzip.compress(b"[1]"), 200, "a/json", "Content-Encoding: gzip"), {"value": [1]}),
    ],
)
async def test_a_response_becomes_a_result(api: Api, answer: bytes, result: Any) -> None:
    """An object is the result, unless it would look like a failure."""
    api.answer = answer

    assert await http_tool(url=api.url).run({}, CONTEXT) == result


BOMB = gzip.compress(b" " * 5_000_000)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (reply(b"no such order" * 99, 404), "http_error", "The server answered 404: no such order"),
        (reply(b"", 302, "", "Location: /"), "redirect", "answered 302. Redirects are not"),
        (reply(b"busy", 503, "", "Retry-After: 7"), "unavailable", "answered 503: busy"),
        (reply(b"x" * 1025), "too_large", "more than 1 KiB"),
        (reply(BOMB, 200, "a/json", "Content-Encoding: gzip"), "too_large", "more than 1 KiB"),
        (reply(b"{", 200), "unfit_response", "not valid JSON"),
        (reply(b'"\\ud800', 200), "unfit_response", "not valid JSON"),
        (reply(b"PNG", 200, "image/png"), "unfit_response", "neither JSON nor text, but image/png"),
        (b"", "unavailable", "cannot be reached"),
    ],
)
async def test_a_failure_tells_models_what_happened(
    api: Api, answer: bytes, code: str, said: str
) -> None:
    """Only a part of the server's text is passed on; a redirect is not followed."""
    api.answer = answer

    result = await http_tool(url=api.url, max_response_kb=1).run({}, CONTEXT)

    assert result["code"] == code
    assert said in result["error"]
    assert len(result["error"]) < 600
    assert result.get("retry_after_seconds") == (7 if code == "unavailable" and answer else None)
    assert len(api.requests) == 1


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
async def test_a_response_that_repeats_a_secret_header_does_not_show_it(
    api: Api, status: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results reach models, journals and traces."""
    monkeypatch.setenv("THE_TOKEN", "Bearer 0123456789")
    api.answer = reply(b'{"a": "Bearer 0123456789", "b": "0123456789 is unknown"}', status, kind)

    tool = http_tool(url=api.url, headers_env={"Authorization": "THE_TOKEN"})
    result = await tool.run({}, CONTEXT)

    assert "0123456789" not in json.dumps(result)
    assert "[secret] is unknown" in json.dumps(result)


ECHOED = "tok/en+1&2<3>"
ECHOES = {
    "as it is": ECHOED,
    "escaped solidus": ECHOED.replace("/", "\\/"),
    "JSON in JSON": json.dumps(json.dumps({"a": ECHOED})),
    "code points": "".join(f"\\u{ord(each):04X}" for each in ECHOED),
    "escaped code points": "".join(f"\\\\u{ord(each):04x}" for each in ECHOED),
    "percent": quote(ECHOED, safe=""),
    "lower-case percent": quote(ECHOED, safe="").lower(),
    "percent twice": quote(quote(ECHOED, safe=""), safe=""),
    "entities": html.escape(ECHOED),
    "entities twice": html.escape(html.escape(ECHOED)),
    "numbers": "".join(f"&#{ord(each)};" for each in ECHOED),
    "hexadecimal numbers": "".join(f"&#x{ord(each):X}" for each in ECHOED),
    "names": ECHOED.replace("+", "&plus;").replace("/", "&sol;"),
    "a mixture": "tok%2Fen&#43;1\\u00262&lt;3>",
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
@pytest.mark.parametrize("kind", ["application/json", "text/html"])
@pytest.mark.parametrize("status", [200, 500])
async def test_no_escape_shows_a_secret(
    api: Api, status: int, kind: str, echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, keys and messages are masked whatever the server makes of the secret."""
    monkeypatch.setenv("THE_TOKEN", ECHOED)
    body = f'{{"{echo}": ["{echo}"]}}' if kind == "application/json" and '"' not in echo else echo
    api.answer = reply(body.encode(), status, kind)

    result = await http_tool(url=api.url, headers_env={"X-Key": "THE_TOKEN"}).run({}, CONTEXT)

    shown = json.dumps(result)
    assert "[secret]" in shown
    for _ in range(4):
        assert ECHOED not in shown
        shown = html.unescape(unquote(shown)).replace("\\/", "/").replace("\\\\", "\\")
    assert echo not in json.dumps(result)


async def test_a_call_is_retried_only_if_it_may_be_repeated(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the call stays the same in all attempts."""
    monkeypatch.setattr(agents, "_RETRY", replace(ONE_ATTEMPT, max_retries=2))
    api.answer = reply(b"", 503, "", "Retry-After: 0")

    for method, attempts in (("PUT", 3), ("POST", 1)):
        api.requests.clear()
        result = await run_tool(http_tool(url=api.url, method=method))

        assert result["code"] == "unavailable"
        keys = [headers["idempotency-key"] for _, headers, _ in api.requests]
        assert (len(keys), len(set(keys))) == (attempts, 1)


async def test_a_stop_closes_the_connection(api: Api) -> None:
    """The server need not compute an answer that has no reader."""
    api.answer = None
    call = asyncio.create_task(http_tool(url=api.url).run({}, CONTEXT))
    await api.arrived.wait()

    call.cancel()
    await api.closed.wait()

    late = await run_tool(http_tool(url=api.url, timeout_seconds=0.05, idempotent=False))
    assert late["code"] == "timeout"


DOCUMENT: Mapping[str, Any] = {
    "openapi": "3.0.3",
    "servers": [{"url": "https://tickets.example"}],
    "paths": {
        "/projects/{project}/tickets": {
            "parameters": [{"$ref": "#/components/parameters/Project"}],
            "post": {
                "operationId": "createTicket",
                "summary": "Creates a ticket.",
                "parameters": [
                    {"name": "notify[all]", "in": "query", "schema": {"type": "boolean"}},
                    {"name": "X-Team", "in": "header", "required": True, "schema": {}},
                    {"name": "X-Key", "in": "header", "required": True, "schema": {}},
                    {"name": "Idempotency-Key", "in": "header", "required": True, "schema": {}},
                    {"name": "session", "in": "cookie", "schema": {}},
                ],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Ticket"}}
                    },
                },
            },
        },
        "/upload": {
            "put": {"operationId": "upload", "requestBody": {"content": {"multipart/mixed": {}}}}
        },
    },
    "components": {
        "parameters": {
            "Project": {
                "name": "project",
                "in": "path",
                "required": True,
                "description": "Its key.",
                "schema": {"type": "string"},
            }
        },
        "schemas": {
            "Ticket": {
                "type": "object",
                "required": ["title", "project", "id"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "title": {"type": "string"},
                    "project": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                    "parts": {
                        "type": "array",
                        "nullable": True,
                        "items": {"$ref": "#/components/schemas/Ticket"},
                    },
                },
            }
        },
    },
}


CYCLE = {
    "openapi": "3.1.0",
    "paths": {
        "/a": {
            "post": {
                "operationId": "cyclic",
                "summary": "It.",
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}
                },
            }
        },
        "/b/{id}": {
            "get": {
                "operationId": "unfilled",
                "summary": "It.",
                "parameters": [{"name": "id", "in": "query", "required": True}],
            }
        },
    },
    "components": {
        "schemas": {
            "A": {"$ref": "#/components/schemas/B"},
            "B": {"$ref": "#/components/schemas/A"},
        }
    },
}


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_an_operation_of_a_document_is_a_tool(
    api: Api, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters and the properties of its body are the arguments."""
    monkeypatch.setenv("THE_KEY", "k")
    file = tmp_path / f"tickets.{form}"
    file.write_text(json.dumps(DOCUMENT))
    about = {"openapi": str(file), "operation_id": "createTicket", "url": api.url}
    tool = http_tool(**{**about, "headers_env": {"x-key": "THE_KEY"}, "description": None})
    args = {"project": "a", "notify_all_": True, "X-Team": "blue", "title": "T"}

    result = await run_tool(tool, {**args, "project_body": 7, "parts": None})
    wrong = await run_tool(tool, {**args, "project_body": 7, "parts": [{"title": 1}]})

    assert (tool.spec.description, tool.spec.idempotent) == ("Creates a ticket.", False)
    assert tool.spec.parameters["required"] == ["project", "X-Team", "title", "project_body"]
    assert tool.spec.parameters["properties"]["project"]["description"] == "Its key."
    assert (result, wrong["code"]) == ({}, "invalid_arguments")
    ((line, headers, body),) = api.requests
    assert line == "POST /projects/a/tickets?notify%5Ball%5D=true HTTP/1.1"
    assert (headers["x-team"], headers["x-key"]) == ("blue", "k")
    assert json.loads(body) == {"title": "T", "project": 7, "parts": None}


async def test_a_mistake_in_the_configuration_stops_the_start_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the key and what to change, and shows no secret."""
    file = tmp_path / "tickets.json"
    file.write_text(json.dumps(DOCUMENT))
    monkeypatch.setenv("A_SECRET", "?!")
    url = "https://x/{order_id}"
    monkeypatch.setenv("A_HEADER", "?!\n?!")
    document = {"openapi": str(file), "operation_id": "createTicket"}
    cycle = {"openapi": str(tmp_path / "cycle.json"), "operation_id": "it", "url": "https://x"}
    (tmp_path / "cycle.json").write_text(json.dumps(CYCLE))
    (malformed := tmp_path / "malformed.json").write_text('{"openapi": "3.0.0", "paths": null}')
    for configured, said in (
        (
            {"url": f"{url}/{{order}}", "parameters": ORDER},
            r"url: {order} is not a required argument;",
        ),
        ({"url": "https://{order_id}.x/"}, "url: placeholders are {name}, in the path or"),
        ({"url": f"{url}/{{b"}, "url: placeholders are {name}, in the path or"),
        ({"url": url, "headers_env": {"A": "NOT_SET"}}, "variable NOT_SET is not set"),
        ({"url": url, "signing_secret_env": "A_SECRET"}, "A_SECRET must be a secret in base64"),
        ({"url": url, "parameters": {**ORDER, "type": "array"}}, "schema of tool 'it' must be an"),
        ({**document, "operation_id": "createTickets"}, "no operation 'createTickets'. Did you"),
        (
            {**document, "operation_id": "upload", "url": "https://x", "description": "It."},
            "operation_id: its body is multipart/mixed, which is not supported",
        ),
        ({**document, "openapi": str(tmp_path / "none.json")}, "No such file"),
        ({**cycle, "operation_id": "cyclic"}, "'#/components/schemas/A' refers to itself"),
        ({**cycle, "operation_id": "unfilled"}, r"url: {id} is not a required argument"),
        ({**cycle, "openapi": str(malformed)}, "openapi: the document is not valid"),
        ({"url": url, "headers_env": {"A": "A_HEADER"}}, "A_HEADER has no value for a header"),
    ):
        with pytest.raises(StartupError, match=rf"^tools\.http\.it: .*{said}") as error:
            http_tool(**configured)
        assert "\n" not in str(error.value)
        assert "?!" not in str(error.value)
