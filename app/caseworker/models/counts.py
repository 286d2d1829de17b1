"""Token counts of providers: where each API reports them, and how they relate.

A count is *whole* (all input or all output tokens), *inside* another count, or *separate*, so that
it must be added. A reader of the tables below needs no other knowledge of a provider. The tests
hold a published reply for each row (``tests/captures``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Any, Final

from caseworker.models.ports import TokenUsage

MAX_COUNT: Final = 10**8
"""Largest plausible number of tokens in one reply; the largest context windows have 10**7."""


class CountKind(StrEnum):
    """The kind of a count."""

    INPUT = "input"
    OUTPUT = "output"
    TOTAL = "total"
    """Input and output together. It shows whether reasoning is inside the output or separate."""
    CACHE_READ = "cache read"
    CACHE_MISS = "cache miss"
    CACHE_WRITE = "cache write"
    CACHE_WRITE_1H = "cache write, 1 h"
    REASONING = "reasoning"
    AUDIO_IN = "audio input"
    AUDIO_OUT = "audio output"
    USES = "uses of a tool"


class CountRelation(StrEnum):
    """How a count relates to the count of all input, or of all output."""

    TOTAL = "whole"
    INSIDE = "inside"
    SEPARATE = "separate"
    ITEMS = "items"
    """One for each item of this type in the output of a response."""


@dataclass(frozen=True, slots=True)
class CountRow:
    """One count of an API."""

    path: str
    """Path below the usage document; for ``CountRelation.ITEMS`` the type of an item."""
    kind: CountKind
    place: CountRelation
    servers: str
    """Servers that report it; the first one has a capture."""
    tool: str = ""
    """Name of the tool, for ``CountKind.USES``."""


_TOTAL, _INSIDE, _SEPARATE, _ITEMS = (
    CountRelation.TOTAL,
    CountRelation.INSIDE,
    CountRelation.SEPARATE,
    CountRelation.ITEMS,
)

USAGE_IN: Final = ("usage", "x_groq.usage", "choices[].usage")
"""Paths of the usage document in replies of chat completions; Groq and Kimi have their own."""

CHAT: Final = (
    CountRow("prompt_tokens", CountKind.INPUT, _TOTAL, "all"),
    CountRow(
        "input_tokens", CountKind.INPUT, _TOTAL, "Ollama's cloud, gateways that rename the counts"
    ),
    CountRow("prompt_eval_count", CountKind.INPUT, _TOTAL, "Ollama's own API"),
    CountRow("completion_tokens", CountKind.OUTPUT, _TOTAL, "all"),
    CountRow(
        "output_tokens", CountKind.OUTPUT, _TOTAL, "Ollama's cloud, gateways that rename the counts"
    ),
    CountRow("eval_count", CountKind.OUTPUT, _TOTAL, "Ollama's own API"),
    CountRow("total_tokens", CountKind.TOTAL, _TOTAL, "all"),
    CountRow(
        "prompt_tokens_details.cached_tokens", CountKind.CACHE_READ, _INSIDE, "OpenAI, most others"
    ),
    CountRow("cached_tokens", CountKind.CACHE_READ, _INSIDE, "Kimi, Together"),
    CountRow("prompt_cache_hit_tokens", CountKind.CACHE_READ, _INSIDE, "DeepSeek"),
    CountRow("prompt_cache_miss_tokens", CountKind.CACHE_MISS, _INSIDE, "DeepSeek"),
    CountRow("cache_read_input_tokens", CountKind.CACHE_READ, _INSIDE, "LiteLLM"),
    CountRow(
        "prompt_tokens_details.cache_write_tokens",
        CountKind.CACHE_WRITE,
        _INSIDE,
        "OpenRouter, OpenAI",
    ),
    CountRow("cache_creation_input_tokens", CountKind.CACHE_WRITE, _INSIDE, "LiteLLM"),
    CountRow(
        "completion_tokens_details.reasoning_tokens",
        CountKind.REASONING,
        _INSIDE,
        "OpenAI, most others",
    ),
    CountRow("reasoning_tokens", CountKind.REASONING, _INSIDE, "SGLang, Azure"),
    CountRow("prompt_tokens_details.audio_tokens", CountKind.AUDIO_IN, _INSIDE, "OpenAI"),
    CountRow("completion_tokens_details.audio_tokens", CountKind.AUDIO_OUT, _INSIDE, "OpenAI"),
    CountRow("num_search_queries", CountKind.USES, _TOTAL, "Perplexity", "web_search"),
)
"""Counts of chat completions. Reasoning is separate if the total shows it: xAI, Gemini.
"""

MESSAGES: Final = (
    CountRow("input_tokens", CountKind.INPUT, _TOTAL, "Anthropic"),
    CountRow("cache_read_input_tokens", CountKind.CACHE_READ, _SEPARATE, "Anthropic"),
    CountRow("cache_creation_input_tokens", CountKind.CACHE_WRITE, _SEPARATE, "Anthropic"),
    CountRow(
        "cache_creation.ephemeral_1h_input_tokens", CountKind.CACHE_WRITE_1H, _INSIDE, "Anthropic"
    ),
    CountRow("output_tokens", CountKind.OUTPUT, _TOTAL, "Anthropic"),
    CountRow("output_tokens_details.thinking_tokens", CountKind.REASONING, _INSIDE, "Anthropic"),
    CountRow(
        "server_tool_use.web_search_requests", CountKind.USES, _TOTAL, "Anthropic", "web_search"
    ),
    CountRow(
        "server_tool_use.web_fetch_requests", CountKind.USES, _TOTAL, "Anthropic", "web_fetch"
    ),
)
"""Counts of Anthropic's Messages API."""

ITERATIONS: Final = "iterations"
"""Anthropic's counts of each sampling: compaction, advisor, fallback, message. The counts above
them leave some of these out, so that the sum of all holds."""

RESPONSES: Final = (
    CountRow("usage.input_tokens", CountKind.INPUT, _TOTAL, "OpenAI"),
    CountRow("usage.output_tokens", CountKind.OUTPUT, _TOTAL, "OpenAI"),
    CountRow("usage.input_tokens_details.cached_tokens", CountKind.CACHE_READ, _INSIDE, "OpenAI"),
    CountRow(
        "usage.input_tokens_details.cache_write_tokens", CountKind.CACHE_WRITE, _INSIDE, "OpenAI"
    ),
    CountRow(
        "usage.output_tokens_details.reasoning_tokens", CountKind.REASONING, _INSIDE, "OpenAI"
    ),
    CountRow("tool_usage.web_search.num_requests", CountKind.USES, _TOTAL, "OpenAI", "web_search"),
    CountRow(
        "usage.server_side_tool_usage_details.web_search_calls",
        *(CountKind.USES, _TOTAL, "xAI", "web_search"),
    ),
    CountRow(
        "usage.server_side_tool_usage_details.x_search_calls",
        *(CountKind.USES, _TOTAL, "xAI", "x_search"),
    ),
    CountRow("web_search_call", CountKind.USES, _ITEMS, "OpenAI", "web_search"),
    CountRow("file_search_call", CountKind.USES, _ITEMS, "OpenAI", "file_search"),
    CountRow("code_interpreter_call", CountKind.USES, _ITEMS, "OpenAI", "code_interpreter"),
    CountRow("mcp_call", CountKind.USES, _ITEMS, "OpenAI", "mcp"),
)
"""Counts of the Responses API, from the response. The items of a stream count before its end."""

EMBEDDINGS: Final = (
    CountRow("usage.prompt_tokens", CountKind.INPUT, _TOTAL, "OpenAI, most others"),
    CountRow("usage.total_tokens", CountKind.INPUT, _TOTAL, "Voyage"),
)
"""Counts of embeddings, which have no output."""

_FIELD: Final = {
    CountKind.INPUT: "tokens_in",
    CountKind.OUTPUT: "tokens_out",
    CountKind.CACHE_READ: "tokens_cached",
    CountKind.CACHE_WRITE: "tokens_cache_written",
    CountKind.CACHE_WRITE_1H: "tokens_cache_written_1h",
    CountKind.REASONING: "tokens_reasoning",
    CountKind.AUDIO_IN: "tokens_audio_in",
    CountKind.AUDIO_OUT: "tokens_audio_out",
}
_WORD: Final = re.compile(r"\w+")
_WORDS_PER_TOKEN: Final = 4
"""More words than any tokenizer packs into one token of ordinary text."""

Counts = dict[CountKind, int]


def counts_in(rows: Sequence[CountRow], document: Any) -> tuple[Counts, dict[str, int]]:
    """Return the counts of a document, and the uses of the provider's tools by name.

    If several rows have a count, the first one that is not zero holds.
    """
    counts, uses = Counts(), dict[str, int]()
    if not isinstance(document, dict):
        return counts, uses
    for row in rows:
        first, *rest = _names_in(row.path)
        if first not in document or row.place is CountRelation.ITEMS:
            continue
        if (number := _number_at(document[first], rest)) is None:
            continue
        if row.kind is CountKind.USES:
            uses[row.tool] = uses.get(row.tool) or number
        else:
            counts[row.kind] = counts.get(row.kind) or number
    return counts, {tool: number for tool, number in uses.items() if number}


def chat_usage(document: Any) -> TokenUsage | None:
    """Return the usage in a usage document of chat completions; None if it has no counts."""
    counts, uses = counts_in(CHAT, document)
    tokens_out, reasoning = counts.get(CountKind.OUTPUT), counts.get(CountKind.REASONING, 0)
    tokens_in = counts.get(CountKind.INPUT)
    if not tokens_in or tokens_out is None:
        return None
    if (total := counts.get(CountKind.TOTAL)) is not None:
        beside = total - tokens_in - tokens_out
        if beside > 0 and reasoning in (0, beside):  # xAI, Gemini
            tokens_out, reasoning = tokens_out + beside, beside
    cached, missed = counts.get(CountKind.CACHE_READ, 0), counts.get(CountKind.CACHE_MISS, 0)
    counts[CountKind.INPUT] = max(tokens_in, cached + missed) if missed else tokens_in
    counts[CountKind.OUTPUT] = max(tokens_out, reasoning)  # OpenRouter may report less output
    counts[CountKind.REASONING] = reasoning
    return _usage(counts, uses)


def message_usage(document: Any, *, is_complete: bool = True) -> TokenUsage | None:
    """Return the usage in a usage document of the Messages API; None if it has no counts.

    The beginning of a stream has no count of the output; it is zero if ``is_complete`` is false.
    """
    usage = _message_usage(document, is_complete=is_complete)
    iterations = document.get(ITERATIONS) if isinstance(document, dict) else None
    parts = [
        part
        for each in (iterations if isinstance(iterations, list) else ())
        if (part := _message_usage(each, is_complete=True, is_part=True)) is not None
    ]
    if usage is None or not parts:
        return usage
    total = sum_of_usages(parts)
    if total.tokens_in + total.tokens_out < usage.tokens_in + usage.tokens_out:
        return usage
    reasoning = max(usage.tokens_reasoning, total.tokens_reasoning)
    return replace(total, tokens_reasoning=reasoning, provider_tool_uses=usage.provider_tool_uses)


def response_usage(response: Any, items: Sequence[Any] = ()) -> TokenUsage | None:
    """Return the usage of a response of the Responses API; None if it has no counts.

    ``items`` are those of its stream, if it has none itself.
    """
    counts, uses = counts_in(RESPONSES, response)
    output = response.get("output") if isinstance(response, dict) else None
    for tool, number in uses_in(output or items).items():
        uses[tool] = uses.get(tool) or number
    if not counts.get(CountKind.INPUT) or CountKind.OUTPUT not in counts:
        return None
    return _usage(counts, uses)


def embedding_usage(document: Any) -> TokenUsage | None:
    """Return the usage of a reply with embeddings; None if it has no counts."""
    counts, _ = counts_in(EMBEDDINGS, document)
    return _usage({**counts, CountKind.OUTPUT: 0}, {}) if counts.get(CountKind.INPUT) else None


def uses_in(items: Any) -> dict[str, int]:
    """Return how often a response used each tool of the provider, by its items."""
    uses = dict[str, int]()
    for item in items if isinstance(items, list | tuple) else ():
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and (tool := _TOOL_OF_ITEM.get(kind)) is not None:
            uses[tool] = uses.get(tool, 0) + 1
    return uses


_TOOL_OF_ITEM: Final = {row.path: row.tool for row in RESPONSES if row.place is CountRelation.ITEMS}


def sum_of_usages(usages: Sequence[TokenUsage]) -> TokenUsage:
    """Return the sum of all counts but the uses of tools."""
    return TokenUsage(
        **{name: sum(getattr(each, name) for each in usages) for name in _FIELD.values()}
    )


def is_possible(usage: TokenUsage, text: str = "") -> bool:
    """Return whether a provider's counts can be right for a complete reply with ``text``.

    Counts are impossible if a number is not from 0 to ``MAX_COUNT``, if a part is larger than its
    whole, or if the text has more than four times as many words as there are output tokens.
    """
    numbers = [getattr(usage, name) for name in _FIELD.values()]
    numbers += usage.provider_tool_uses.values()
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers) > MAX_COUNT:
        return False
    if (
        usage.tokens_cached + usage.tokens_cache_written > usage.tokens_in
        or usage.tokens_cache_written_1h > usage.tokens_cache_written
        or usage.tokens_audio_in > usage.tokens_in
        or max(usage.tokens_audio_out, usage.tokens_reasoning) > usage.tokens_out
    ):
        return False
    most_words = (usage.tokens_out + 1) * _WORDS_PER_TOKEN
    # A word has a letter and an end, so that short texts need no search.
    if len(text) <= 2 * most_words:
        return True
    words = islice(_WORD.finditer(text), most_words + 1)
    return sum(1 for _ in words) <= most_words


def _message_usage(document: Any, *, is_complete: bool, is_part: bool = False) -> TokenUsage | None:
    counts, uses = counts_in(MESSAGES, document)
    beside = counts.get(CountKind.CACHE_READ, 0) + counts.get(CountKind.CACHE_WRITE, 0)
    counts[CountKind.INPUT] = counts.get(CountKind.INPUT, 0) + beside
    if CountKind.OUTPUT not in counts and is_complete:
        return None
    if not counts[CountKind.INPUT] and not is_part:
        return None
    counts.setdefault(CountKind.OUTPUT, 0)
    hour = counts.get(CountKind.CACHE_WRITE_1H, 0)
    counts[CountKind.CACHE_WRITE_1H] = min(hour, counts.get(CountKind.CACHE_WRITE, 0))
    return _usage(counts, uses)


def _usage(counts: Counts, uses: Mapping[str, int]) -> TokenUsage:
    values = {_FIELD[kind]: n for kind, n in counts.items() if kind in _FIELD}
    return TokenUsage(**values, provider_tool_uses=uses)


@cache
def _names_in(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def _number_at(value: Any, names: Sequence[str]) -> int | None:
    """Return the whole number at a path below a value; None if there is none."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value % 1 == 0 else None
