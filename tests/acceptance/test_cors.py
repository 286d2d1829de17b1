"""A page of a listed origin uses the service in a real browser; a page of another one cannot."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.support.browser import opened_browser
from tests.support.service import ServiceProcess

PAGE = b"<!doctype html><title>A page</title>"
CALLS = """async (url) => {
    const json = {"content-type": "application/json"};
    const ask = async (method, path, headers, body) => {
        const reply = await fetch(url + path, {method, headers, body});
        return {
            status: reply.status,
            names: Object.fromEntries(reply.headers),
            text: await reply.text(),
        };
    };
    const body = JSON.stringify({input: "What is 6 * 7?", run_id: "browsed"});
    return {
        posted: await ask("POST", "/runs", {...json, "Idempotency-Key": "k"}, body),
        events: await ask("GET", "/runs/browsed/events", {accept: "text/event-stream"}),
        invalid: await ask("POST", "/runs", json, "{}"),
        refused: await ask("GET", "/runs", {authorization: "Bearer nothing"}),
        gateway: await ask("POST", "/gateway/openai/v1/chat/completions", json, "{}"),
    };
}"""


@asynccontextmanager
async def a_page() -> AsyncIterator[str]:
    """Serve an empty page on its own loopback port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(PAGE)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + PAGE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.req("cw/16.cors")
async def test_a_page_of_a_listed_origin_uses_the_service(database_url: str) -> None:
    """It reads headers, problems and events; the browser refuses all of it to another page."""
    async with a_page() as listed, a_page() as other:
        settings = {"SERVER_CORS_ORIGINS": json.dumps([listed])}
        async with (
            ServiceProcess(database_url, settings=settings) as service,
            opened_browser() as browser,
        ):

            async def call(origin: str) -> Any:
                page = await browser.new_page()
                await page.goto(origin)
                return await page.evaluate(CALLS, service.url)

            found = await call(listed)
            with pytest.raises(Exception, match="Failed to fetch"):
                await call(other)
            async with httpx.AsyncClient(base_url=service.url, trust_env=False) as client:
                asked = {"Origin": listed, "Access-Control-Request-Method": "DELETE"}
                preflight = await client.options("/runs/x", headers=asked)
                plain = await client.get("/healthz", headers={"Origin": other})

    posted, events, invalid, refused, gateway = found.values()
    assert (posted["status"], posted["names"]["location"]) == (202, "/runs/browsed")
    assert posted["names"]["x-request-id"]
    assert "event: run.completed" in events["text"]
    for answer, status in ((invalid, 422), (refused, 401), (gateway, 401)):
        assert answer["status"] == status
        assert answer["names"]["x-request-id"] or answer is gateway
    assert json.loads(invalid["text"])["errors"]
    assert (preflight.status_code, preflight.headers["vary"]) == (204, "Origin")
    assert "access-control-allow-credentials" not in preflight.headers
    assert "access-control-allow-origin" not in plain.headers
    assert plain.headers["vary"] == "Origin"
