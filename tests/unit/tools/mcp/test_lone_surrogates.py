r"""Lone surrogates in JSON text are replaced, however the text is divided into chunks."""

import json

import pytest

from caseworker.tools.mcp.lone_surrogates import LoneSurrogates
from tests.support.session_mcp import call
from tests.unit.tools.mcp.chunked_server import Pieces, http_server

TEXTS = {
    "first half": (r'"a\ud800b"', "a\ufffdb"),
    "second half": (r'"\udc00"', "\ufffd"),
    "two first halves": (r'"\uD83D\ud83d\udE00"', "\ufffd\U0001f600"),
    "halves in the wrong order": (r'"\ude00\ud83d"', "\ufffd\ufffd"),
    "first half before another escape": (r'"\ud83d\n\ud83d\u0041"', "\ufffd\n\ufffdA"),
    "first half before a backslash": (r'"\ud83d\\ude00"', "\ufffd\\ude00"),
    "first half at the end": (r'"a\udbff"', "a\ufffd"),
}
KEPT = {
    "pair": (r'"\ud83d\ude00\uD83D\uDE00"', "\U0001f600\U0001f600"),
    "no escape": (r'"\\ud800 \\\\udc00"', "\\ud800 \\\\udc00"),
    "other escapes": (r'"\u00e4\ud7ff\ue000\t\"\/"', 'ä\ud7ff\ue000\t"/'),
    "text": ('"ä\U0001f600"', "ä\U0001f600"),
}


@pytest.mark.parametrize(("text", "value"), [*TEXTS.values(), *KEPT.values()], ids=[*TEXTS, *KEPT])
def test_a_text_has_no_lone_surrogates_whatever_its_chunks(text: str, value: str) -> None:
    """The text is divided at each position, and into single bytes."""
    data = text.encode()
    cuts = [[data[:place], data[place:]] for place in range(len(data))]
    for chunks in (*cuts, [data[place : place + 1] for place in range(len(data))]):
        surrogates = LoneSurrogates()
        found = b"".join([*map(surrogates.feed, chunks), surrogates.end()])
        assert json.loads(found) == value, chunks


@pytest.mark.parametrize("end", ["\\", "\\u", "\\ud8", "\\u12", "\\ud83d", "\\ud83d\\ude0"])
def test_a_text_that_ends_in_an_escape_is_not_shortened(end: str) -> None:
    """Every other byte is kept."""
    surrogates = LoneSurrogates()
    found = surrogates.feed(b"x" + end.encode()) + surrogates.end()
    assert found == b"x" + end.encode().replace(rb"\ud83d", rb"\ufffd")


FORMS: dict[str, Pieces] = {
    "whole": lambda text: [text],
    "bytes": lambda text: [bytes([each]) for each in text],
}


@pytest.mark.parametrize("pieces", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
async def test_a_result_over_http_may_have_lone_surrogates(media_type: str, pieces: Pieces) -> None:
    """Only the surrogates are replaced, in texts, in structured content and in its names."""
    sent = {
        "content": [{"type": "text", "text": "a\ud800"}],
        "structuredContent": {"a\udc00": ["\ud800", "\U0001f600"]},
    }

    def parts(text: bytes) -> list[bytes]:
        return pieces(text if "json" in media_type else b"data: " + text + b"\n\n")

    async with http_server(media_type, parts, answer=sent) as servers:
        assert await call(servers, "read") == {
            "text": "a\ufffd",
            "structured": {"a\ufffd": ["\ufffd", "\U0001f600"]},
        }
