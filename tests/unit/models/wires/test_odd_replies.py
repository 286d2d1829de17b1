"""Replies outside any specification, as endpoints and the proxies in front of them send them."""

import json
from typing import Any

import pytest

from caseworker.models.ports import (
    Incomplete,
    ModelError,
)
from caseworker.models.wires import endpoint
from tests.unit.models.wires.played import (
    Document,
    chunk,
    event_stream,
    message_stream,
    reply_of,
    text_block,
)

USED = {"prompt_tokens": 100, "completion_tokens": 10}
TOKYO = '{"timezone":"Asia/Tokyo"}'


def _piece(arguments: object, **more: Any) -> Document:
    return chunk({"tool_calls": [{"function": {"arguments": arguments}, **more}]})


def _called(**more: Any) -> Document:
    call = {"index": 0, "id": "c1", "function": {"name": "now", "arguments": ""}, **more}
    return chunk({"tool_calls": [call]})


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (event_stream(chunk({"content": "half an answ"})), False),
        (event_stream(_called(), _piece('{"timezone":', index=0)), False),
        (message_stream(text_block("half"), stop={"type": "ping"}, input_tokens=9), True),
    ],
)
async def test_a_stream_that_never_says_why_it_ends_has_broken_off(
    body: bytes, messages: bool
) -> None:
    """A proxy may have closed the stream."""
    with pytest.raises(ModelError, match="broke off") as caught:
        await reply_of(body, messages=messages)

    assert caught.value.retryable


async def test_a_whole_reply_without_a_reason_is_cut_off_if_arguments_are_missing() -> None:
    """Text alone may be complete, because some endpoints never send a reason."""
    call = {"id": "c1", "function": {"name": "now", "arguments": ""}}
    message = {"content": "Let me see.", "tool_calls": [call]}
    body = json.dumps({"choices": [{"message": message, "finish_reason": None}]}).encode()

    reply = await reply_of(body, streamed=False)

    assert (reply.incomplete, reply.tool_calls[0].arguments) == (Incomplete.LENGTH, "")


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        ([_called(), _piece("{}", index=0), _piece(TOKYO, index=0)], [TOKYO]),
        ([_called(), _piece(5, index=0)], ["5"]),
        ([_called(), _piece(False, index=0)], ["false"]),
        ([_called(), _piece([TOKYO], index=0)], [json.dumps([TOKYO])]),
        ([_called(), _piece(TOKYO[:9], index=1), _piece(TOKYO[9:], index=2)], [TOKYO]),
        ([_called(index="0"), _piece(TOKYO, index="0")], [TOKYO]),
        ([_called(index=None), _piece(TOKYO[:9], id="c2"), _piece(TOKYO[9:], id="c3")], [TOKYO]),
        (
            [
                _called(index="0"),
                _called(index="1", id="c2"),
                _piece("{}", index="0"),
                _piece(TOKYO, index="1"),
            ],
            ["{}", TOKYO],
        ),
    ],
)
async def test_arguments_reach_their_call(pieces: list[Document], arguments: list[str]) -> None:
    """Without this, the call would be made with no arguments."""
    reply = await reply_of(event_stream(*pieces, chunk({}, "tool_calls")))

    assert [call.arguments for call in reply.tool_calls] == arguments
    assert {call.name for call in reply.tool_calls} == {"now"}


@pytest.mark.parametrize("piece", [TOKYO, json.loads(TOKYO)])
@pytest.mark.parametrize("index", [0, 7, None])
async def test_arguments_of_a_message_reach_its_call(piece: object, index: object) -> None:
    """The arguments may come under another block's index, or as an object."""
    block = {"type": "tool_use", "id": "c1", "name": "now", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": piece}
    stop = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}

    reply = await reply_of(
        message_stream(
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
            stop=stop,
        ),
        messages=True,
    )

    assert [json.loads(call.arguments) for call in reply.tool_calls] == [json.loads(TOKYO)]


ENDED = (chunk({"content": "whole"}), chunk({}, "stop"), {"choices": [], "usage": USED})


@pytest.mark.parametrize(
    "behind", [{"error": {"message": "too late"}}, "ping", "null", "{broken", "[1]"]
)
async def test_nothing_behind_its_end_takes_an_answer_away(behind: Document | str) -> None:
    """Data after the end is ignored; the answer was paid for."""
    reply = await reply_of(event_stream(*ENDED, behind))

    assert (reply.text, reply.incomplete) == ("whole", None)
    assert reply.usage is not None
    assert reply.usage.tokens_in == 100


async def test_an_answer_that_has_ended_is_not_waited_for_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some endpoints keep the connection open and send nothing more."""
    monkeypatch.setattr(endpoint, "_LAST_SECONDS", 0.01)

    assert (await reply_of(event_stream(*ENDED, done=False), held=True)).text == "whole"


@pytest.mark.parametrize("word", ["keep-alive", "null", "ping", '""'])
async def test_words_that_keep_a_connection_alive_are_no_part_of_a_reply(word: str) -> None:
    """Keep-alive messages are ignored before and within the answer."""
    assert (await reply_of(event_stream(word, ENDED[0], word, *ENDED[1:]))).text == "whole"
    assert (
        await reply_of(message_stream(text_block("whole")) + event_stream(word), messages=True)
    ).text == "whole"


@pytest.mark.parametrize(
    ("reason", "incomplete"),
    [
        *((each, Incomplete.CANCELLED) for each in ("cancelled", "canceled", "user_cancel")),
        *((each, Incomplete.TIMEOUT) for each in ("timeout", "time_limit")),
        *(
            (each, Incomplete.LENGTH)
            for each in ("incomplete", "max_length", "MAX_TOKENS", "max_new_tokens", "token_limit")
        ),
        *((each, Incomplete.CONTENT_FILTER) for each in ("content-filter", "error_toxic")),
        *((each, None) for each in ("STOP", "end_turn", "eos", "stop_sequence", "COMPLETE")),
    ],
)
async def test_the_words_of_a_finish_reason_say_whether_an_answer_is_complete(
    reason: str, incomplete: Incomplete | None
) -> None:
    """Unlisted finish reasons are recognised by their words."""
    assert (
        await reply_of(event_stream(chunk({"content": "so far"}, reason)))
    ).incomplete is incomplete


@pytest.mark.parametrize("reason", ["malformed_function_call", "network_error", "abort", "failed"])
async def test_a_finish_reason_may_say_that_the_provider_failed(reason: str) -> None:
    """A finish reason that reports a provider failure makes the attempt retryable."""
    with pytest.raises(ModelError, match=reason) as caught:
        await reply_of(event_stream(chunk({"content": "so far"}, reason)))

    assert caught.value.retryable


async def test_a_reason_that_says_incomplete_is_not_taken_back() -> None:
    """Some endpoints close every stream with ``stop``."""
    reply = await reply_of(event_stream(chunk({"content": "so f"}, "length"), chunk({}, "stop")))

    assert (reply.incomplete, reply.finish_reason) == (Incomplete.LENGTH, "length")


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (message_stream(text_block("whole")), True),
        (message_stream(text_block("whole"), input_tokens=100, output_tokens=1), True),
        (event_stream(ENDED[0], chunk({}, "stop", usage={**USED, "prompt_tokens": 0})), False),
    ],
)
async def test_missing_counts_are_none(body: bytes, messages: bool) -> None:
    """The call is charged at an estimate; a count of 0 would bypass the run's limits."""
    assert (await reply_of(body, messages=messages)).usage is None


async def test_a_thought_that_only_ends_is_none_of_the_text() -> None:
    """Some models' templates put the opening tag into the prompt."""
    reply = await reply_of(event_stream(chunk({"content": "It is six.</think>\n\nSix."}, "stop")))
    quoted = await reply_of(event_stream(chunk({"content": "Write </think> behind it."}, "stop")))

    assert (reply.text, reply.thinking) == ("Six.", "It is six.")
    assert (quoted.text, quoted.thinking) == ("Write </think> behind it.", "")


async def test_one_of_several_answers_is_read() -> None:
    """One of several answers is read, because only one was requested."""
    choices = [
        {"index": 0, "message": {"content": "A"}, "finish_reason": "stop"},
        {"index": 1, "message": {"content": "B"}, "finish_reason": "length"},
    ]

    reply = await reply_of(json.dumps({"choices": choices}).encode(), streamed=False)

    assert (reply.text, reply.incomplete) == ("A", None)


async def test_a_list_of_errors_says_what_is_wrong() -> None:
    """Cloudflare sends errors as a list with status 200."""
    body = json.dumps({"success": False, "errors": [{"code": 7, "message": "boo"}]}).encode()

    with pytest.raises(ModelError, match="boo"):
        await reply_of(body, streamed=False)
