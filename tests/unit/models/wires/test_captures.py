"""Replies of real endpoints, read whole and split at any byte."""

import asyncio
import json
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.models.ports import Delta, ModelError, ModelFault, ModelReply
from tests.unit.models.wires.captured import Capture, captures, read

CAPTURES = captures()
STREAMS = [each for each in CAPTURES if each.streamed and each.status == 200]


def _fault(error: ModelError) -> str:
    return next(fault.name.lower() for fault in ModelFault if fault is error.fault)


@pytest.mark.req("cw/13.wire")
@pytest.mark.parametrize("capture", CAPTURES, ids=repr)
async def test_a_captured_reply_is_read_as_its_endpoint_meant_it(capture: Capture) -> None:
    """Text, thinking, calls, counts and end, or the failure, match the table."""
    deltas, expected = list[Delta](), dict(capture.expected)
    if (failure := expected.get("error")) is not None:
        with pytest.raises(ModelError) as caught:
            await read(capture, deltas=deltas)
        error = caught.value
        assert failure["says"] in str(error)
        assert (error.retryable, _fault(error)) == (failure["retryable"], failure["fault"])
        assert error.raw_reply
        assert capture.body.decode().startswith(error.raw_reply)
        return

    reply = await read(capture, deltas=deltas)

    assert _seen(reply, expected) == expected
    assert len({call.id for call in reply.tool_calls}) == len(reply.tool_calls)
    if capture.streamed:
        assert "".join(each.text for each in deltas if each.kind == "content") == reply.text
        assert "".join(each.text for each in deltas if each.kind == "thinking") == reply.thinking


def _seen(reply: ModelReply, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the reply in the terms of the table."""
    usage = None if reply.usage is None else asdict(reply.usage)
    seen = {
        **asdict(reply),
        "usage": usage and {name: usage[name] for name in expected["usage"] or usage},
        "incomplete": reply.incomplete and reply.incomplete.value,
        "tool_calls": [
            {
                "name": call.name,
                "arguments": call.arguments
                if isinstance(wanted["arguments"], str)
                else json.loads(call.arguments),
            }
            for call, wanted in zip(reply.tool_calls, expected["tool_calls"], strict=True)
        ],
    }
    return {name: seen[name] for name in expected}


async def _outcome(capture: Capture, parts: list[bytes]) -> object:
    try:
        return await read(capture, parts)
    except ModelError as error:
        return str(error), error.fault, error.retryable


@settings(max_examples=60, deadline=None)
@given(
    capture=st.sampled_from(CAPTURES),
    cuts=st.lists(st.integers(min_value=0, max_value=20_000), max_size=12),
)
def test_the_pieces_in_which_a_reply_comes_change_nothing(
    capture: Capture, cuts: list[int]
) -> None:
    """Any split of the bytes gives the same reply, or the same failure."""
    at = sorted({0, len(capture.body), *(cut % (len(capture.body) + 1) for cut in cuts)})
    parts = [capture.body[start:end] for start, end in pairwise(at)]

    assert asyncio.run(_outcome(capture, parts)) == asyncio.run(_outcome(capture, [capture.body]))


@pytest.mark.parametrize("capture", CAPTURES, ids=repr)
async def test_a_reply_may_come_byte_by_byte(capture: Capture) -> None:
    """A reply that arrives byte by byte gives the same reply, or the same failure."""
    parts = [capture.body[at : at + 1] for at in range(len(capture.body))]

    assert await _outcome(capture, parts) == await _outcome(capture, [capture.body])


@pytest.mark.parametrize("capture", STREAMS, ids=repr)
@pytest.mark.parametrize("end", ["\r\n", "\r"])
async def test_line_ends_of_all_kinds_are_read_alike(capture: Capture, end: str) -> None:
    """The standard allows three kinds of line ends."""
    other = capture.body.replace(b"\r\n", b"\n").replace(b"\n", end.encode())

    assert await _outcome(capture, [other]) == await _outcome(capture, [capture.body])
