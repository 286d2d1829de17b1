"""Endpoints of models that quote the operator's key in their errors, in every form.

Neither the run, its trace and events, the log, nor the client of the gateway gets the key.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
import pytest
import pytest_asyncio

from tests.support.echoes import FORMS, SECRET, shows
from tests.support.service import ServiceProcess
from tests.support.surfaces import columns_of

KINDS = ("401", "400", "500", "200", "stream")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request, and close the connection also if the client goes away."""
    with suppress(OSError, asyncio.IncompleteReadError):
        await _answer(reader, writer)
    writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with an error that quotes the key; the question names the form and the status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = [line.partition(": ") for line in head.split("\r\n")[1:-2]]
    fields = {name.lower(): value for name, _, value in lines}
    asked = (await reader.readexactly(int(fields["content-length"]))).decode()
    form, kind = re.findall(r'"([\w -]+)\|(\w+)"', asked)[0]
    key = fields.get("x-api-key") or fields["authorization"].removeprefix("Bearer ")
    shown = FORMS[form](key)
    document = json.dumps({"error": {"message": f"{'x' * 290} {shown}", "type": shown}})
    body, status, media = document, kind, "application/json"
    if kind == "stream":
        body, status, media = f"event: error\ndata: {document}\n\n", "200", "text/event-stream"
    sent = [f"HTTP/1.1 {status} Odd", f"content-type: {media}", f"x-request-id: {key}"]
    sent += [f"content-length: {len(body.encode())}", "connection: close", "", body]
    writer.write("\r\n".join(sent).encode())
    await writer.drain()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(module_database_url: str) -> AsyncIterator[ServiceProcess]:
    """Run a service with a model of each API at the endpoint."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    named = {
        "gpt": {"provider": "openai", "api_key": SECRET, "model": "m", "base_url": url},
        "claude": {"provider": "anthropic", "api_key": SECRET, "model": "m", "base_url": url},
    }
    settings = {"MODELS_NAMED": json.dumps(named), "LOGGING_LEVEL": "debug"}
    async with (
        server,
        ServiceProcess(module_database_url, settings={**settings, "RETRY_MAX_RETRIES": "0"}) as run,
    ):
        yield run


async def asked(http: httpx.AsyncClient, questions: list[str]) -> str:
    """Ask in the steps of a run; return all that the service shows."""
    steps = [
        {"id": f"s{number}", "type": "llm", "data": {"prompt": text, "model": {"name": name}}}
        for number, (name, text) in enumerate((n, q) for n in ("gpt", "claude") for q in questions)
    ]
    shown = []
    for step in steps:
        body = {"kind": "graph", "graph": {"steps": [step], "edges": []}}
        run = await http.post("/runs", json=body, headers={"Prefer": "wait=30"})
        run_id = run.json()["run_id"]
        json_only = {"accept": "application/json"}
        views = [run, await http.get(f"/runs/{run_id}/trace?payloads=true")]
        views.append(await http.get(f"/runs/{run_id}/events", headers=json_only))
        assert all(view.is_success for view in views), [view.text for view in views]
        shown += [json.dumps(view.json(), ensure_ascii=False) for view in views]
    return "\n".join(shown)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("form", FORMS)
async def test_no_form_of_a_key_is_shown(service: ServiceProcess, form: str) -> None:
    """Neither in a step's error nor in the reply that the gateway passes on."""
    async with service.http() as http:
        shown = await asked(http, [f"{form}|{kind}" for kind in ("401", "200")])
        access = (await http.post("/runs", json={"kind": "external"})).json()["access"]
        for kind in KINDS:
            body = {
                "model": "gpt",
                "stream": kind == "stream",
                "messages": [{"role": "user", "content": f"{form}|{kind}"}],
            }
            reply = await http.post(
                f"{access['openai_base_url']}/chat/completions",
                json=body,
                headers={"authorization": f"Bearer {access['key']}"},
            )
            assert kind not in ("400", "500") or "[secret]" in reply.text, reply.text
            shown += reply.text + str(reply.headers)

    assert not shows(shown, SECRET)


@pytest.mark.asyncio(loop_scope="module")
async def test_neither_logs_nor_tables_show_a_key(
    service: ServiceProcess, module_database_url: str
) -> None:
    """After all calls above."""
    assert not shows(service.child.stderr, SECRET)
    assert [each.name for each in columns_of(module_database_url) if SECRET in each.text] == []
