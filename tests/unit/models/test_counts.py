"""Counts of providers and their cost; see ``tests/captures/README.md``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.models import counts
from caseworker.models.counts import (
    CHAT,
    EMBEDDINGS,
    ITERATIONS,
    MESSAGES,
    RESPONSES,
    USAGE_IN,
    CountRelation,
    CountRow,
    chat_usage,
    embedding_usage,
    is_possible,
    message_usage,
    response_usage,
)
from caseworker.models.ports import TokenUsage
from caseworker.models.pricing import TokenPrice
from tests.unit.models.wires.captured import FOLDER, captures, read

PRICES = {
    "input": Decimal(1),
    "cache_read": Decimal("0.1"),
    "cache_write": Decimal("1.25"),
    "cache_write_1h": Decimal(2),
    "audio_in": Decimal(32),
    "output": Decimal(10),
    "audio_out": Decimal(64),
}
"""Dollars for a million tokens of each kind; no token is of two kinds."""
PRICE = TokenPrice(
    usd_per_million_in=PRICES["input"],
    usd_per_million_out=PRICES["output"],
    usd_per_million_cached=PRICES["cache_read"],
    usd_per_million_audio_in=PRICES["audio_in"],
    usd_per_million_audio_out=PRICES["audio_out"],
)
READERS: Mapping[str, Callable[[Any], TokenUsage | None]] = {
    "chat": lambda document: chat_usage(document["usage"]),
    "messages": lambda document: message_usage(document["usage"]),
    "responses": response_usage,
    "embeddings": embedding_usage,
}
TABLES = {"chat": CHAT, "messages": MESSAGES, "responses": RESPONSES, "embeddings": EMBEDDINGS}
NOT_CAPTURED = {
    "prompt_eval_count": "only Ollama's own API has it",
    "eval_count": "only Ollama's own API has it",
    "input_tokens": "in chat completions",
    "output_tokens": "in chat completions",
    "cache_read_input_tokens": "in chat completions",
    "cache_creation_input_tokens": "in chat completions",
    "num_search_queries": "",
    "file_search_call": "",
    "mcp_call": "",
}
"""Rows of chat completions and items without a published reply that was replies."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The documents of a published reply that have counts, and the cost."""

    id: str
    api: str
    documents: tuple[Any, ...]
    billed: Mapping[str, int]

    def __repr__(self) -> str:
        return self.id


def _documents(body: str) -> list[Any]:
    """Return the JSON documents of a body, streamed or not."""
    if not body.lstrip().startswith("{"):
        lines = (line.removeprefix("data:").strip() for line in body.splitlines())
        return [json.loads(line) for line in lines if line.startswith("{")]
    return [json.loads(body)]


def _counted() -> list[Counted]:
    """Read all captures with counts."""
    replies = []
    for path in sorted((FOLDER / "counts").glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            replies.append(Counted(line["id"], line["api"], (line["document"],), line["billed"]))
    for path in sorted(FOLDER.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if "billed" in line:
                api = "chat" if line["dialect"] == "openai" else "messages"
                documents = tuple(_documents(line["body"]))
                replies.append(Counted(line["id"], api, documents, line["billed"]))
    return replies


COUNTED = _counted()
WHOLE = {each.id: each for each in captures()}


def _cost(billed: Mapping[str, int]) -> Decimal:
    cost = sum((billed.get(kind, 0) * price for kind, price in PRICES.items()), Decimal(0))
    return cost / 1_000_000


@pytest.mark.req("cw/3.counts")
@pytest.mark.parametrize("counted", COUNTED, ids=repr)
async def test_a_reply_costs_what_its_provider_counts(counted: Counted) -> None:
    """Charged equals counted, exactly, by the vendor's documentation."""
    if (capture := WHOLE.get(counted.id)) is not None:
        usage = (await read(capture)).usage
    else:
        usage = READERS[counted.api](counted.documents[0])

    assert usage is not None
    assert is_possible(usage)
    assert PRICE.cost_of(usage).total == _cost(counted.billed)
    uses = {tool: n for tool, n in counted.billed.items() if tool not in PRICES}
    assert {tool: usage.provider_tool_uses.get(tool) for tool in uses} == uses


@pytest.mark.req("cw/3.counts")
def test_two_hundred_published_replies_are_counted() -> None:
    """The IDs are unique."""
    assert len({each.id for each in COUNTED}) == len(COUNTED) >= 200


def _has(document: Any, path: str) -> bool:
    first, _, rest = path.partition(".")
    name = first.removesuffix("[]")
    if not isinstance(document, dict) or document.get(name) is None:
        return False
    below = document[name] if first != name else [document[name]]
    return not rest or any(_has(each, rest) for each in below)


def _is_captured(api: str, row: CountRow) -> bool:
    """Return whether a published reply has the count of a row."""
    for counted in (each for each in COUNTED if each.api == api):
        for document in counted.documents:
            items = document.get("output") or ()
            if row.place is CountRelation.ITEMS and any(each["type"] == row.path for each in items):
                return True
            message = document.get("message") or document
            prefixes = {"chat": USAGE_IN, "messages": ("usage",)}.get(api, ("",))
            paths = [f"{prefix}.{row.path}".removeprefix(".") for prefix in prefixes]
            if any(_has(message, path) for path in paths):
                return True
    return False


@pytest.mark.req("cw/3.counts")
def test_every_row_has_a_published_reply() -> None:
    """The rows without one are listed."""
    missing = {
        row.path for api, rows in TABLES.items() for row in rows if not _is_captured(api, row)
    }

    assert missing == set(NOT_CAPTURED)
    assert sum(map(len, TABLES.values())) - len(NOT_CAPTURED) >= 30


@pytest.mark.parametrize("place", USAGE_IN)
def test_every_place_of_the_usage_has_a_published_reply(place: str) -> None:
    """Groq and Kimi have their own places."""
    documents = [d for each in COUNTED if each.api == "chat" for d in each.documents]

    assert any(_has(document, place) for document in documents)


@pytest.mark.req("cw/3.counts")
def test_written_and_cached_tokens_of_openai_are_a_part_of_the_prompt() -> None:
    """OpenAI's guide to prompt caching: 1.25 times the price of input, from GPT-5.6 on."""
    usage = chat_usage(
        {
            "prompt_tokens": 2600,
            "completion_tokens": 0,
            "total_tokens": 2600,
            "prompt_tokens_details": {"cached_tokens": 2000, "cache_write_tokens": 400},
        }
    )

    assert usage is not None
    assert PRICE.cost_of(usage).total == Decimal(200 + 500 + 200) / 1_000_000


NUMBERS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**13), st.floats(), st.text(max_size=3)
)


_NAMES = sorted({name for row in (*CHAT, *MESSAGES, *RESPONSES) for name in row.path.split(".")})
_NESTED = sorted(
    {name for row in (*CHAT, *MESSAGES, *RESPONSES) for name in row.path.split(".")[:-1]}
)


@given(
    document=st.recursive(
        st.dictionaries(st.sampled_from([*_NAMES, ITERATIONS, "usage", "output", "type"]), NUMBERS),
        lambda inner: st.dictionaries(
            st.sampled_from([*_NESTED, ITERATIONS, "output"]),
            st.one_of(NUMBERS, inner, st.lists(inner, max_size=3)),
        ),
        max_leaves=8,
    )
)
def test_odd_counts_are_read_without_an_error(document: dict[str, Any]) -> None:
    """A possible usage has no negative cost."""
    for usage in (
        chat_usage(document),
        message_usage(document),
        message_usage(document, is_complete=False),
        response_usage(document),
    ):
        if usage is not None and is_possible(usage):
            cost = PRICE.cost_of(usage)
            assert cost.total >= cost.output >= 0


def test_short_texts_need_no_search() -> None:
    """A text of many words in few tokens is impossible; a long word is not."""
    usage = TokenUsage(tokens_in=1, tokens_out=10)

    assert is_possible(usage, "-" * 5000)
    assert is_possible(usage, "word " * 44)
    assert not is_possible(usage, "word " * 45)
    assert counts.MAX_COUNT > 10**7
