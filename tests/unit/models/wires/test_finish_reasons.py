"""Finish reasons of providers and servers, in every spelling and on every wire."""

import json
from typing import Any

import pytest

from caseworker.models.ports import Incomplete, ModelError
from caseworker.models.wires.finish_reasons import Finish, Meaning, meaning_of
from tests.unit.models.wires.played import chunk, event_stream, message_stream, reply_of, text_block

REASONS: dict[Meaning, str] = {
    Finish.COMPLETE: """
        stop end_turn stop_sequence tool_use tool_calls function_call STOP COMPLETE STOP_SEQUENCE
        TOOL_CALL eos eos_token endoftext FINISH word stop_token_id pause_turn endTurn toolUse
        stopSequence FINISH_REASON_STOP FinishReason.STOP CompletionsFinishReason.STOPPED
        completed tool_call_stop
    """,
    Incomplete.LENGTH: """
        length max_tokens MAX_TOKENS maxTokens model_length max_output_tokens max_length LENGTH
        model_context_window_exceeded modelContextWindowExceeded ERROR_LIMIT token_limit limit
        repetition incomplete compaction FINISH_REASON_MAX_TOKENS FinishReason.MAX_TOKENS
        context_length_exceeded finish_reason_length max_completion_tokens
        CompletionsFinishReason.TOKEN_LIMIT_REACHED output_too_long
    """,
    Incomplete.CONTENT_FILTER: """
        content_filter content-filter contentFiltered guardrail_intervened SAFETY RECITATION
        BLOCKLIST PROHIBITED_CONTENT SPII LANGUAGE IMAGE_SAFETY MODEL_ARMOR sensitive ERROR_TOXIC
        content_filter:RECITATION CONTENT_FILTERED image_prohibited_content policy_violation
    """,
    Incomplete.REFUSAL: "refusal REFUSED model_declined",
    Incomplete.CANCELLED: "cancelled canceled USER_CANCEL request_cancelled",
    Incomplete.TIMEOUT: "timeout TIMEOUT time_limit timed_out deadline_exceeded",
    Finish.FAILED: """
        error ERROR network_error abort insufficient_system_resource MALFORMED_FUNCTION_CALL
        function_call_filter:MALFORMED_FUNCTION_CALL function_call_filter:UNEXPECTED_TOOL_CALL
        malformedModelOutput malformed_tool_use MALFORMED_RESPONSE TOO_MANY_TOOL_CALLS
        MISSING_THOUGHT_SIGNATURE failed rate_limit_exceeded upstream_error
    """,
    Finish.UNKNOWN: """
        OTHER fin 7 ? escalation without_error load FINISH_REASON_UNSPECIFIED IMAGE_OTHER
        \u505c\u6b62 not_an_error speculative
    """,
}
"""Words from documents, SDKs and issue reports of the APIs, and unlisted words of the same kind."""
LISTED = [(word, means) for means, words in REASONS.items() for word in words.split()]


@pytest.mark.parametrize(("reason", "means"), LISTED)
def test_a_finish_reason_has_one_meaning_in_every_spelling(reason: str, means: Meaning) -> None:
    """Case, separators and prefixes of enumerations do not matter."""
    assert meaning_of(reason) is means


@pytest.mark.parametrize("wire", ["stream", "whole", "messages", "whole message"])
@pytest.mark.parametrize(
    ("reason", "incomplete"),
    [
        ("eos_token", None),
        ("END_TURN", None),
        ("OTHER", None),
        ("fin", None),
        ("\u505c\u6b62", None),
        ("maxTokens", Incomplete.LENGTH),
        ("limit", Incomplete.LENGTH),
        ("model_context_window_exceeded", Incomplete.LENGTH),
        ("LANGUAGE", Incomplete.CONTENT_FILTER),
        ("guardrailIntervened", Incomplete.CONTENT_FILTER),
        ("refusal", Incomplete.REFUSAL),
    ],
)
async def test_every_wire_reads_the_reasons_of_every_api(
    wire: str, reason: str, incomplete: Incomplete | None
) -> None:
    """Proxies pass the reasons of one API on in the shape of another."""
    reply = await _reply(wire, reason)

    assert (reply.text, reply.incomplete) == ("It is 42.", incomplete)
    assert reply.finish_reason == reason
    unknown = meaning_of(reason) is Finish.UNKNOWN
    assert ("finish_reason_unknown" in reply.repairs) is unknown


@pytest.mark.parametrize("wire", ["stream", "whole", "messages", "whole message"])
@pytest.mark.parametrize(
    "reason",
    ["function_call_filter: MALFORMED_FUNCTION_CALL", "malformed_model_output", "network_error"],
)
async def test_a_failure_in_the_finish_reason_can_be_repeated(wire: str, reason: str) -> None:
    """The provider broke the answer off; the attempt is made again."""
    with pytest.raises(ModelError) as failed:
        await _reply(wire, reason)

    assert failed.value.retryable


@pytest.mark.parametrize(
    ("reason", "incomplete"),
    [
        ({"type": "stop", "matched": 151645}, None),
        ({"type": "length", "length": 16}, Incomplete.LENGTH),
        ({"reason": "endoftext", "length": None}, None),
        (1, None),
        (["stop"], None),
        ([], None),
        ({}, None),
        (False, None),
        ("  ", None),
    ],
)
@pytest.mark.parametrize("wire", ["stream", "whole", "messages", "whole message"])
async def test_a_finish_reason_need_not_be_a_text(
    wire: str, reason: Any, incomplete: Incomplete | None
) -> None:
    """Servers that pass their own objects on do not break a run; an empty one is no end."""
    ends = bool(reason) and bool(str(reason).strip())
    if wire in ("stream", "messages") and not ends:
        reply = await _reply(wire, reason, then="stop")
    else:
        reply = await _reply(wire, reason)

    assert (reply.text, reply.incomplete) == ("It is 42.", incomplete)


async def _reply(wire: str, reason: Any, *, then: str | None = None) -> Any:
    """Return the reply with this finish reason; ``then`` is sent behind it in a stream."""
    match wire:
        case "stream":
            ends = [chunk({}, each) for each in (reason, then) if each is not None]
            return await reply_of(event_stream(chunk({"content": "It is 42."}), *ends))
        case "whole":
            choice = {"index": 0, "message": {"content": "It is 42."}, "finish_reason": reason}
            return await reply_of(json.dumps({"choices": [choice]}).encode(), streamed=False)
        case "messages":
            ends = [
                {"type": "message_delta", "delta": {"stop_reason": each}}
                for each in (reason, then)
                if each is not None
            ]
            body = message_stream(text_block("It is 42."), *ends[:-1], stop=ends[-1])
            return await reply_of(body, messages=True)
        case _:
            content = [{"type": "text", "text": "It is 42."}]
            message = {"id": "m", "content": content, "stop_reason": reason}
            return await reply_of(json.dumps(message).encode(), messages=True, streamed=False)
