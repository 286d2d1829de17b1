"""A byte order mark before a message of an MCP server is no part of the message."""

import json
import sys
from codecs import BOM_UTF8

import pytest

from caseworker.tools.mcp.servers import McpServers
from tests.support.mcp_servers import config
from tests.support.session_mcp import call
from tests.unit.tools.mcp.chunked_server import _RESULTS, Pieces, http_server

EVENTS = "text/event-stream"
JSON = "application/json"
FORMS: dict[str, tuple[str, Pieces]] = {
    "JSON": (JSON, lambda text: [BOM_UTF8 + text]),
    "JSON after the mark": (JSON, lambda text: [BOM_UTF8, text]),
    "JSON, mark in bytes": (JSON, lambda text: [*(bytes([each]) for each in BOM_UTF8), text]),
    "JSON, mark in two parts": (JSON, lambda text: [BOM_UTF8[:2], BOM_UTF8[2:] + text]),
    "event": (EVENTS, lambda text: [BOM_UTF8 + b"data: " + text + b"\n\n"]),
    "event after the mark": (EVENTS, lambda text: [BOM_UTF8, b"data: " + text + b"\r\n\r\n"]),
    "event, mark in bytes": (
        EVENTS,
        lambda text: [*(bytes([each]) for each in BOM_UTF8), b"data: " + text + b"\n\n"],
    ),
    "named event": (
        EVENTS,
        lambda text: [BOM_UTF8 + b"event: message\ndata: " + text + b"\n\n"],
    ),
}
PLAIN: dict[str, tuple[str, Pieces]] = {
    "JSON in bytes": (JSON, lambda text: [bytes([each]) for each in text]),
    "event in two parts": (EVENTS, lambda text: [b"da", b"ta: " + text + b"\n\n"]),
}
_PROGRAM = """
import json, sys
results, before, each = json.loads(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:])
out = sys.stdout.buffer
for byte in before:
    out.write(bytes([byte]))
    out.flush()
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        unknown = {"error": {"code": -32601, "message": "unknown"}}
        result = results.get(message["method"])
        body = {"result": result} if result else unknown
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], **body})
        out.write(each + text.encode() + b"\\n")
        out.flush()
"""


@pytest.mark.parametrize(
    ("media_type", "pieces"), [*FORMS.values(), *PLAIN.values()], ids=[*FORMS, *PLAIN]
)
async def test_a_body_may_begin_with_a_byte_order_mark(media_type: str, pieces: Pieces) -> None:
    """The tools are listed and called; a mark inside a text is kept."""
    async with http_server(media_type, pieces) as servers:
        assert await call(servers, "read") == {"text": "\ufeffdone"}


MARK = BOM_UTF8.hex()


@pytest.mark.parametrize(
    ("before", "each"),
    [
        (MARK, ""),
        (MARK + b"\n".hex(), ""),
        (MARK + b"\r\n".hex(), ""),
        ("", MARK),
        (b"Started.\n".hex(), MARK),
        (MARK + b" ".hex(), ""),
    ],
)
async def test_a_program_may_write_byte_order_marks(before: str, each: str) -> None:
    """A mark is dropped at the beginning of the output and of each line."""
    command = (sys.executable, "-c", _PROGRAM, json.dumps(_RESULTS), before, each)
    servers = McpServers([config("web", command=command, start_timeout_seconds=20.0)])
    try:
        assert await call(servers, "read") == {"text": "\ufeffdone"}
    finally:
        await servers.aclose()
