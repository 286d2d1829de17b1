"""Every part of an MCP result reaches the caller once, with a name."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from mcp.types import CallToolResult

from caseworker.tools.artifacts import ArtifactSink, SavedArtifact, artifact_name
from caseworker.tools.mcp.results import MAX_FILES, mcp_result_of
from caseworker.tools.ports import ToolResult
from tests.support.mcp_servers import CONTEXT

ORDERS = {"orders": [{"id": n, "note": "back door", "paid": n % 2 == 0} for n in range(3)]}
LONG = {"orders": [{"id": n, "note": "back door"} for n in range(2000)]}


class SaveOutcome(ArtifactSink):
    """A sink that keeps names and types."""

    max_bytes = 1000

    def __init__(self) -> None:
        self.saved: list[tuple[str, bytes]] = []

    async def save(self, name_stem: str, media_type: str, data: bytes) -> SavedArtifact:
        self.saved.append((media_type, data))
        name = artifact_name(name_stem, len(self.saved), media_type)
        return SavedArtifact(name=name, media_type=media_type, size_bytes=len(data), sha256="")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def converted(
    *content: Any, structured: Any = None, kept: SaveOutcome | None = None, is_error: bool = False
) -> ToolResult:
    """Convert a result; ``content`` are texts, or parts as JSON."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    answer = {"content": parts, "isError": is_error}
    if structured is not None:
        answer["structuredContent"] = structured
    context = replace(CONTEXT, artifacts=kept)
    return await mcp_result_of("shop.orders", CallToolResult.model_validate(answer), context)


def embedded(**resource: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": resource}


REPEATED = {
    "compact": ([json.dumps(ORDERS, separators=(",", ":"))], ORDERS),
    "pretty": ([json.dumps(ORDERS, indent=2)], ORDERS),
    "another order": ([json.dumps(ORDERS, sort_keys=True)], ORDERS),
    "long": ([json.dumps(LONG)], LONG),
    "code block": ([f"```json\n{json.dumps(ORDERS, indent=2)}\n```\n"], ORDERS),
    "code block without a language": ([f"```\n{json.dumps(ORDERS)}\n```"], ORDERS),
    "code block in capitals": ([f"\n ```JSON \t\r\n{json.dumps(ORDERS)}\r\n  ```"], ORDERS),
    "code block that ends in its last line": ([f"```json\n{json.dumps(ORDERS)}```"], ORDERS),
    "wrapped text": (["12 orders"], {"result": "12 orders"}),
    "wrapped number": (["12.0"], {"result": 12}),
    "wrapped list": ([json.dumps([1, 2])], {"result": [1, 2]}),
    "wrapped null": (["null"], {"result": None}),
    "a text for each element": (["one", '{"two": 2}', "3"], {"result": ["one", {"two": 2}, 3]}),
    "twice": ([json.dumps(ORDERS)] * 2, ORDERS),
    "embedded": (
        [embedded(uri="data://orders", mimeType="application/json", text=json.dumps(ORDERS))],
        ORDERS,
    ),
}


@pytest.mark.parametrize(("texts", "structured"), REPEATED.values(), ids=REPEATED)
async def test_text_that_repeats_the_structured_content_is_dropped(
    texts: list[Any], structured: Any
) -> None:
    """The data are in the result once, as the server structured them."""
    result = await converted(*texts, structured=structured)

    assert result["structured"] == structured
    assert "text" not in result
    assert all("text" not in each for each in result.get("resources", []))


DIFFERENT = {
    "summary": ("Three orders, one unpaid.", ORDERS),
    "part": (json.dumps({"orders": ORDERS["orders"][:2]}), ORDERS),
    "true is not 1": ('{"paid": 1}', {"paid": True}),
    "a text is not a number": ('"12"', {"result": 12}),
    "sentence with the data": (f"Result: {json.dumps(ORDERS)}", ORDERS),
    "deep": ("[" * 5000, {"result": []}),
    "other": ("[]", {"result": {}}),
    "code block of another language": ("```python\n[]\n```", {"result": []}),
    "code block without an end": ("```json\n[]\n``", {"result": []}),
    "code block in one line": ("```[]```", {"result": []}),
    "fences alone": ("```", {"result": []}),
    "a sentence after the code block": ("```\n[]\n``` as you see", {"result": []}),
}


@pytest.mark.parametrize(("text", "structured"), DIFFERENT.values(), ids=DIFFERENT)
async def test_text_that_says_anything_else_is_kept(text: str, structured: Any) -> None:
    """A model gets both."""
    repeated = json.dumps(structured)
    assert await converted(text, structured=structured) == {"text": text, "structured": structured}
    mixed = await converted(text, repeated, structured=structured)
    assert mixed == {"text": text, "structured": structured}


MANY = 1_000_000
HOSTILE = {
    "newlines in fences": "```\n" + "\n" * MANY + "```",
    "newlines without an end": "```\n" + "\n" * MANY,
    "newlines before another text": "```json\n" + "\n" * MANY + "```x",
    "spaces in lines": "```\n" + " \n" * (MANY // 2) + "x",
    "fences in lines": "```\n" * (MANY // 4) + "x",
    "spaces before the fence": " " * MANY + "``",
    "a long first line": "```json" + "\t" * MANY + "x\n```",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_long_text_with_fences_is_kept_without_delay(text: str) -> None:
    """A search that goes back for each newline would stop the process for hours."""
    result = await converted(text, structured={"result": []})

    assert result == {"text": text, "structured": {"result": []}}


LINK = {
    "type": "resource_link",
    "uri": "https://files.example/report.pdf",
    "name": "report",
    "title": "The report",
    "description": "Sales of May",
    "mimeType": "application/pdf",
    "size": 5,
}
PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "link": (
        LINK,
        {
            "uri": "https://files.example/report.pdf",
            "name": "report",
            "title": "The report",
            "description": "Sales of May",
            "media_type": "application/pdf",
            "size_bytes": 5,
        },
    ),
    "short link": (
        {"type": "resource_link", "uri": "a:b", "name": "b"},
        {"uri": "a:b", "name": "b"},
    ),
    "text": (
        embedded(uri="file:///a.md", mimeType="text/markdown", text="# A\x00"),
        {"uri": "file:///a.md", "media_type": "text/markdown", "text": "# A\ufffd"},
    ),
    "pdf": (
        embedded(uri="file:///a.pdf", mimeType="application/pdf", blob=encoded(b"%PDF")),
        {
            "uri": "file:///a.pdf",
            "media_type": "application/pdf",
            "artifact": "shop-orders-1.pdf",
        },
    ),
    "unknown bytes": (
        embedded(uri="file:///a", blob=encoded(b"\x00")),
        {"uri": "file:///a", "artifact": "shop-orders-1.bin"},
    ),
    "page": (
        embedded(uri="ui://page", mimeType="text/html", blob=encoded(b"<script>")),
        {"uri": "ui://page", "media_type": "text/html", "artifact": "shop-orders-1.bin"},
    ),
}


@pytest.mark.parametrize(("part", "resource"), PARTS.values(), ids=PARTS)
async def test_a_resource_is_named_in_the_result(
    part: dict[str, Any], resource: dict[str, Any]
) -> None:
    """Its URI, name and type are there, and its text or the file with its data."""
    kept = SaveOutcome()
    result = await converted("See:", part, kept=kept)

    assert result == {"text": "See:", "resources": [resource]}
    assert len(kept.saved) == ("artifact" in resource)


@pytest.mark.parametrize(
    ("media_type", "stored"),
    [
        ("audio/wav", "audio/wav"),
        ("audio/x-wav", "audio/wav"),
        ("audio/mp3", "audio/mpeg"),
        ("Audio/OGG; codecs=opus", "audio/ogg"),
        ("audio/whatever", "application/octet-stream"),
    ],
)
async def test_a_sound_is_stored_as_a_file(media_type: str, stored: str) -> None:
    """A type without a known extension is stored as bytes."""
    kept = SaveOutcome()
    sound = {"type": "audio", "data": encoded(b"sound"), "mimeType": media_type}
    result = await converted(sound, kept=kept)

    assert result == {"text": ""}
    assert kept.saved == [(stored, b"sound")]


OMITTED = {
    "no files": (
        {"type": "audio", "data": encoded(b"abc"), "mimeType": "audio/wav"},
        "a sound (audio/wav, 3 bytes): this run keeps no files",
    ),
    "no files for a picture": (
        {"type": "image", "data": encoded(b"\xff\xd8\xff"), "mimeType": "image/jpg"},
        "a picture (image/jpg, 3 bytes): this run keeps no files",
    ),
    "vector graphics": (
        {"type": "image", "data": encoded(b"<svg/>"), "mimeType": "image/svg+xml"},
        "a picture (image/svg+xml, 6 bytes): it is not a PNG, JPEG, GIF or WebP",
    ),
    "not Base64": (
        {"type": "audio", "data": "???", "mimeType": "audio/wav"},
        "a sound (audio/wav): its data is not valid Base64",
    ),
    "a resource without files": (
        embedded(uri="file:///a.pdf", mimeType="application/pdf", blob=encoded(b"%PDF")),
        "the resource file:///a.pdf (application/pdf, 4 bytes): this run keeps no files",
    ),
}


@pytest.mark.parametrize(("part", "line"), OMITTED.values(), ids=OMITTED)
async def test_a_part_that_cannot_be_passed_on_is_named(part: dict[str, Any], line: str) -> None:
    """The line has its kind, its type, its size and the reason."""
    assert (await converted("See:", part))["omitted"] == [line]


async def test_further_files_are_named() -> None:
    """The limit holds for all kinds of files together."""
    kept = SaveOutcome()
    sound = {"type": "audio", "data": encoded(b"abc"), "mimeType": "audio/wav"}
    result = await converted(*[sound] * (MAX_FILES + 1), kept=kept)

    assert len(kept.saved) == MAX_FILES
    assert result["omitted"] == ["a sound (audio/wav, 3 bytes): a result may have at most 10 files"]


@pytest.mark.parametrize(
    ("content", "structured", "message"),
    [
        (["It broke."], None, "It broke."),
        ([embedded(uri="log:1", text="line 7")], None, "line 7"),
        ([], {"reason": "full"}, '{"reason": "full"}'),
        ([], None, "The tool failed and did not say why."),
        (
            [{"type": "image", "data": encoded(b"x"), "mimeType": "image/png"}],
            None,
            "a picture (image/png, 1 bytes): it is not a PNG, JPEG, GIF or WebP",
        ),
    ],
)
async def test_a_failure_says_what_the_server_said(
    content: list[Any], structured: Any, message: str
) -> None:
    """Texts, resources, structured content or the names of other parts are its message."""
    failed = await converted(*content, structured=structured, is_error=True)

    assert failed == {"error": message, "code": "tool_error"}


UNSTORABLE = {
    "NUL": ({"a": "x\0y"}, {"a": "x\ufffdy"}),
    "surrogate": ({"a": "\ud800"}, {"a": "\ufffd"}),
    "second surrogate alone": ({"a": ["\udc00b", 1]}, {"a": ["\ufffdb", 1]}),
    "name": ({"a\0": {"b\ud83d": None}}, {"a\ufffd": {"b\ufffd": None}}),
    "infinity": ({"a": [1.5, float("inf")]}, {"a": [1.5, None]}),
    "no number": ({"a": float("nan"), "b": "\0"}, {"a": None, "b": "\ufffd"}),
}


@pytest.mark.parametrize(("sent", "stored"), UNSTORABLE.values(), ids=UNSTORABLE)
async def test_what_cannot_be_stored_is_replaced_in_structured_content(
    sent: Any, stored: Any
) -> None:
    """The rest of the result is kept, and a text that repeats the content is dropped."""
    assert await converted("rest", structured=sent) == {"text": "rest", "structured": stored}
    if "NaN" not in (text := json.dumps(sent)):
        assert await converted(text, structured=sent) == {"structured": stored}
    failed = await converted(structured=sent, is_error=True)
    assert json.loads(failed["error"]) == stored


@pytest.mark.parametrize(
    "sent", [{"a\0": 1, "a\ufffd": 2}, {"a": json.loads("[" * 300 + "]" * 300)}]
)
async def test_structured_content_without_a_storable_form_is_unfit(sent: Any) -> None:
    """Keys that become equal, and nesting beyond the limit, are errors."""
    assert (await converted("rest", structured=sent))["code"] == "unfit_result"
