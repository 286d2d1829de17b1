"""The requests and replies that a trace stores and shows."""

import json
from typing import Any

import pytest

from caseworker.core.trace.payloads import Payloads
from caseworker.platform.logs import redaction

ASKED = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Write to alice@example.org."},
]


@pytest.mark.req("002/19.2")
def test_a_redacted_prompt_has_its_words_and_no_personal_data() -> None:
    """A redacted prompt keeps its messages and set parameters, without personal data."""
    kept = Payloads().prompt(ASKED, {"max_output_tokens": 100, "seed": None})

    assert kept == {
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Write to [email]."},
        ],
        "max_output_tokens": 100,
    }


def test_payloads_are_shown_as_they_are_or_not_at_all_where_that_is_configured() -> None:
    """Mode ``full`` shows payloads unchanged; mode ``none`` stores nothing."""
    full, none = Payloads("full"), Payloads("none")

    assert full.prompt(ASKED, {})["messages"][1]["content"] == "Write to alice@example.org."  # type: ignore[index]
    assert full.display({"to": "alice@example.org"}) == {"to": "alice@example.org"}
    assert none.prompt(ASKED, {}) is None
    assert none.display({"to": "alice@example.org"}) is None


@pytest.mark.parametrize(
    "value",
    [
        "word " * 10_000,
        ["word " * 100] * 1_000,
        {f"name{number}": {"deep": ["word " * 50] * 9} for number in range(1_000)},
    ],
)
def test_what_is_shown_of_a_value_has_a_length(value: Any) -> None:
    """A shown value has a bounded length, and a cut text states the missing amount."""
    shown = Payloads(max_chars=2_000).display(value)

    assert len(json.dumps(shown)) < 4_000
    assert "more" in json.dumps(shown) or "..." in json.dumps(shown)


def test_a_prompt_of_many_messages_has_a_length() -> None:
    """The first messages of a long prompt are kept, and only the roles of the rest."""
    many = [{"role": "user", "content": "word " * 100}] * 50
    kept = Payloads(max_chars=1_000).prompt(many, {})

    assert kept is not None
    assert len(kept["messages"]) == 50
    assert kept["messages"][0]["content"] == many[0]["content"]
    assert sum(len(message["content"]) for message in kept["messages"]) < 2_500


def test_only_texts_that_were_not_redacted_before_count_as_work() -> None:
    """The system prompt and all messages but the last one are cached after the first call."""
    payloads = Payloads()
    system = {"role": "system", "content": "Compute carefully, please. " * 100}
    asked = [{"role": "user", "content": f"question {number}"} for number in range(2)]
    whole, added = len(system["content"]), [system, *asked]
    assert payloads.chars_to_redact(added[:2]) > whole

    payloads.prompt(added[:2], {})

    assert payloads.chars_to_redact(added[:2]) < whole
    before = payloads.chars_to_redact(added)
    payloads.prompt(added, {})
    assert before - payloads.chars_to_redact(added) == len(asked[0]["content"])
    assert Payloads(mode="none").chars_to_redact(added) == 0


def test_many_messages_without_text_are_work_too() -> None:
    """They are redacted next to the event loop, like a long text."""
    empty = {"role": "user", "content": ""}
    assert Payloads().chars_to_redact([empty] * 1000) > 2000


def test_messages_beyond_the_limit_are_not_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shown by their length, so a long prompt is as much work as its beginning."""
    redacted: list[str] = []

    def beginning(text: str, chars: int) -> str:
        redacted.append(text)
        return text[:chars]

    monkeypatch.setattr(redaction, "_beginning", beginning)
    messages = [{"role": "user", "content": f"{n} " * 60} for n in range(1000)]

    payloads = Payloads(max_chars=200)
    shown = payloads.prompt(messages, {})

    assert shown is not None
    assert len(redacted) <= 3
    assert shown["messages"][-1]["content"] == f" [{len(messages[-1]['content'])} more characters]"
    assert payloads.chars_to_redact(messages) < 20_000


def test_long_fields_of_messages_are_counted_up_to_the_limit() -> None:
    """The fields of a message count as work, and use up the limit."""
    call = {"function": {"name": "f", "arguments": "x" * 1000}}
    asked: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages = [asked, *ASKED * 100]

    assert 1000 < Payloads(max_chars=200).chars_to_redact(messages) < 4000
