"""Server-sent events as the standard defines them, and where endpoints deviate."""

import pytest

from caseworker.models.wires.reply_body import EventParser, ServerSentEvent

STREAM = (
    b"\xef\xbb\xbf: a comment\r\nevent: first\rdata: 1\ndata:2\r\n\r\nid: 7\nretry: 9\n\n"
    b'data:\n\ndata: \xc3\xa9 \xe2\x80\xa8\r\rerror: {"message": "no"}\n\n'
    b"data\ndata:  3\n\nevent: x\ndata: end"
)
EVENTS = [
    ServerSentEvent("first", "1\n2"),
    ServerSentEvent("", "\u00e9 \u2028"),
    ServerSentEvent("error", '{"message": "no"}'),
    ServerSentEvent("", "\n 3"),
    ServerSentEvent("x", "end"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_events_are_read_in_whatever_pieces_they_come(size: int) -> None:
    """All line ends, comments, blank data, multi-line data and a missing last blank line work."""
    parser = EventParser()

    events = [
        event for at in range(0, len(STREAM), size) for event in parser.feed(STREAM[at : at + size])
    ]

    assert [*events, *parser.end()] == EVENTS
