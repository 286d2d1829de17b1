"""How coding agents recognise the error of a full context window, as of 2026-11-29.

An agent that recognises it compresses its conversation and repeats the request. The patterns are
searched in the error message, regardless of case.
"""

import re
from collections.abc import Mapping
from typing import Final

AGENTS: Final[Mapping[str, tuple[str, ...]]] = {
    # badlogic/pi-mono, packages/ai/src/utils/overflow.ts at a2dbd625f144
    "pi": (
        r"prompt is too long",
        r"input is too long for requested model",
        r"exceeds the context window",
        r"input token count.*exceeds the maximum",
        r"maximum prompt length is \d+",
        r"reduce the length of the messages",
        r"maximum context length is \d+ tokens",
        r"exceeds the limit of \d+",
        r"exceeds the available context size",
        r"greater than the context length",
        r"context window exceeds limit",
        r"exceeded model token limit",
        r"too large for model with \d+ maximum context length",
        r"context[_ ]length[_ ]exceeded",
        r"too many tokens",
        r"token limit exceeded",
        r"^4(00|13)\s*(status code)?\s*\(no body\)",
    ),
    # anomalyco/opencode, packages/opencode/src/provider/error.ts at 00badcb86339
    "opencode": (
        r"prompt is too long",
        r"input is too long for requested model",
        r"exceeds the context window",
        r"input token count.*exceeds the maximum",
        r"maximum prompt length is \d+",
        r"reduce the length of the messages",
        r"maximum context length is \d+ tokens",
        r"exceeds the limit of \d+",
        r"exceeds the available context size",
        r"greater than the context length",
        r"context window exceeds limit",
        r"exceeded model token limit",
        r"context[_ ]length[_ ]exceeded",
        r"request entity too large",
        r"context length is only \d+ tokens",
        r"input length.*exceeds.*context length",
        r"^4(00|13)\s*(status code)?\s*\(no body\)",
    ),
    # cline/cline, src/core/context/context-management/context-error-handling.ts at 076fdc151f9d;
    # it also takes each Anthropic error of type invalid_request_error for a full context window
    "cline": (
        r"context\s*(length|window)",
        r"input tokens exceed",
        r"too many tokens",
        r"maximum context",
    ),
    # NousResearch/hermes-agent, agent/error_classifier.py at 0003295a28c2
    "hermes-agent": (
        r"context (length|size|window)",
        r"maximum (context|model length|number of tokens)",
        r"token limit",
        r"too many tokens",
        r"reduce the length",
        r"exceeds the limit",
        r"prompt (is too long|exceeds max length|length)",
        r"max_tokens",
        r"max_model_len",
        r"input is too long",
        r"truncating input",
        r"slot context",
        r"n_ctx_slot",
        r"(max )?input token",
    ),
    # openclaw/openclaw, src/agents/pi-embedded-helpers/errors.ts at 0001e1fd6a14
    "openclaw": (
        r"request_too_large",
        r"request exceeds the maximum size",
        r"(exceed )?context (length|limit|overflow|window)",
        r"prompt (is )?too long",
        r"model token limit",
        r"input exceeds.*maximum number of tokens",
        r"request size exceeds",
        r"context_window_exceeded",
        r"context.*overflow",
        r"prompt.*(too (?:large|long)|exceed|over|limit|max(?:imum)?)",
        r"(?:request|input).*(?:context|window|length|token).*"
        r"(too (?:large|long)|exceed|over|limit|max(?:imum)?)",
    ),
    # crewai 1.15.30, crewai/utilities/exceptions/context_window_exceeding_exception.py
    "crewai": (
        r"expected a string with maximum length",
        r"maximum context length",
        r"context[_ ]length[_ ]exceeded",
        r"context window full",
        r"too many tokens",
        r"input is too long",
        r"exceeds token limit",
    ),
    # litellm 1.110.2, litellm/litellm_core_utils/exception_mapping_utils.py; for aider, DSPy,
    # OpenHands and Google's ADK
    "litellm": (
        r"exceed context limit",
        r"this model's maximum context length is",
        r"requested token count exceeds the model's maximum context length",
        r"string too long\. expected a string with maximum length",
        r"model's maximum context limit",
        r"is longer than the model's context length",
        r"input tokens exceed the configured limit",
        r"`inputs` tokens \+ `max_new_tokens` must be",
        r"exceeds the available context size",
        r"exceeds the maximum number of tokens allowed",
        r"\"code\": \"context_length_exceeded\"",
        r"prompt is too long",
        r"current length is.*while limit is",
        r"maximum input length is.*tokens",
        r"input too long:.*input tokens, limit is",
    ),
}


def mistaken(message: str) -> list[str]:
    """Return the agents that take an error with this message for a full context window."""
    return [
        agent
        for agent, patterns in AGENTS.items()
        if any(re.search(each, message, re.IGNORECASE) for each in patterns)
    ]
