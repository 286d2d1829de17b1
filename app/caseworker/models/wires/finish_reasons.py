"""Meanings of the finish reasons of providers and servers.

Every API has its own words, and proxies pass the words of one API on in the shape of another. So
one table serves all wires. A reason that the table does not list is read by its single words; a
reason without a known word is unknown, and its answer is accepted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from caseworker.models.ports import Incomplete


class Finish(StrEnum):
    """Meanings of a finish reason that do not mark an answer as incomplete."""

    COMPLETE = "complete"
    """The model ended its answer, or requested tools."""
    FAILED = "failed"
    """The provider failed; the attempt may be repeated."""
    UNKNOWN = "unknown"
    """Nothing is known about the reason."""


Meaning = Finish | Incomplete

_REASONS: Mapping[Meaning, str] = {
    # chat completions, responses, Anthropic, Bedrock, Gemini, Cohere, Titan, Together, TGI,
    # watsonx, llama.cpp, AI21; Anthropic's pause_turn ends its own loop of hosted tools
    Finish.COMPLETE: """
        stop stopped stop_sequence stop_sequence_reached end end_turn eos eos_token eos_token_id
        eos_token_found eot stop_token stop_token_id stop_string stop_criteria endoftext
        end_of_text end_of_sequence end_of_turn word complete completed finish finished done
        success natural pause_turn tool_calls tool_call tool_use function_call function_calls
        tool_call_stop
    """,
    # OpenAI, Anthropic, Mistral, Cohere, vLLM and Rapid-MLX (repetition), llama.cpp (limit),
    # watsonx, Anthropic (compaction: it summarised the context and did not answer)
    Incomplete.LENGTH: """
        length max_length model_length max_tokens max_new_tokens max_output_tokens token_limit
        token_limit_reached output_limit limit error_limit context_limit context_length
        context_length_exceeded model_context_window_exceeded context_window_exceeded
        context_overflow incomplete not_finished truncated repetition capacity compaction
        in_progress
    """,
    # OpenAI, Azure, Gemini and its images, Vertex (model_armor), Bedrock, Cohere, GLM
    Incomplete.CONTENT_FILTER: """
        content_filter content_filtered safety image_safety recitation image_recitation language
        blocklist blocked prohibited_content image_prohibited_content spii sensitive model_armor
        guardrail_intervened error_toxic
    """,
    Incomplete.REFUSAL: "refusal refused declined",
    Incomplete.CANCELLED: "cancelled canceled cancel user_cancel interrupted",
    Incomplete.TIMEOUT: "timeout timed_out time_limit max_time",
    # OpenRouter, Gemini, Bedrock, DeepSeek, GLM, vLLM and SGLang (abort), watsonx
    Finish.FAILED: """
        error internal_error network_error server_error failed abort aborted
        insufficient_system_resource malformed_function_call malformed_response
        malformed_model_output malformed_tool_use unexpected_tool_call too_many_tool_calls
        missing_thought_signature no_image rate_limit
    """,
    # Gemini; image_other also stands for a withheld picture, whose answer is then empty
    Finish.UNKNOWN: "other image_other finish_reason_unspecified unspecified unknown null none",
}
_MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {word: means for means, words in _REASONS.items() for word in words.split()}
)

_WORDS: Sequence[tuple[Meaning, str]] = (
    (Incomplete.TIMEOUT, "timeout timed deadline"),
    (Incomplete.CANCELLED, "cancel cancelled canceled cancellation interrupted"),
    (Incomplete.REFUSAL, "refuse refused refusal decline declined"),
    (
        Finish.FAILED,
        "malformed unexpected invalid fail failed failure insufficient unavailable rate quota"
        " overloaded",
    ),
    (
        Incomplete.CONTENT_FILTER,
        "filter filtered safety unsafe recitation blocklist blocked prohibited spii sensitive"
        " guardrail guardrails toxic toxicity moderation moderated violation policy harmful"
        " copyright flagged censored",
    ),
    (
        Incomplete.LENGTH,
        "length limit limits max maximum exceeded overflow truncated incomplete long cut tokens",
    ),
    (Finish.FAILED, "error errored errors abort aborted crashed"),
    (Finish.COMPLETE, "stop stopped eos eot end complete completed done finished tool function"),
)
"""Words that decide about an unlisted reason; an earlier row wins."""

_NEGATIONS = frozenset(["no", "not", "non", "without"])
_PREFIX = re.compile(r"^(completions?_)?(finish|stop|done)_?reasons?_+(?=.)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[^a-z0-9]+")


def finish_reason_text(reason: Any) -> str:
    """Return a finish reason as text; empty if there is none.

    Servers also send an object, such as ``{"type": "length"}``, or a number.
    """
    if isinstance(reason, dict):
        return finish_reason_text(reason.get("type", reason.get("reason")))
    if isinstance(reason, list):
        return finish_reason_text(reason[0]) if reason else ""
    if reason is None or isinstance(reason, bool):
        return ""
    return str(reason).strip()


def meaning_of(reason: str | None) -> Meaning:
    """Return the meaning of a finish reason in the words of any API; None means complete."""
    if not reason or not reason.strip():
        return Finish.COMPLETE
    # Gemini's endpoint sends "function_call_filter: MALFORMED_FUNCTION_CALL"
    for part in (*reversed(reason.split(":")), reason):
        word = _SEPARATORS.sub("_", _CAMEL.sub("_", part).lower()).strip("_")
        if (means := _MEANINGS.get(word) or _MEANINGS.get(_PREFIX.sub("", word))) is not None:
            return means
    words = word.split("_")
    if not _NEGATIONS.isdisjoint(words):
        return Finish.UNKNOWN
    listed = (means for means, some in _WORDS if not set(some.split()).isdisjoint(words))
    return next(listed, Finish.UNKNOWN)


def incomplete_of(reasons: Iterable[str | None], *, refusal: str = "") -> Incomplete | None:
    """Derive from the finish reasons why an answer is incomplete; None if it is complete."""
    if refusal.strip():
        return Incomplete.REFUSAL
    for meaning in map(meaning_of, reasons):
        if isinstance(meaning, Incomplete):
            return meaning
    return None
