"""Calls with a body that a client wrote: how the output limit fits the budget, and the charges."""

from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import Stop
from caseworker.engine.call import CallFailedError
from caseworker.models.client_bodies import read_body
from caseworker.models.families import UNKNOWN
from caseworker.models.fields.tables import TABLES
from caseworker.models.gateway import Tier
from caseworker.models.relay import Relay
from caseworker.models.relayed_call import SUPERSEDED
from caseworker.models.tokens import near_tokens
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, priced, unpriced

HELLO = [{"role": "user", "content": "hi"}]


def _sent(
    body: dict[str, Any], *steps: Step, flavour: str = "anthropic", budget: Budget | None = None
) -> tuple[dict[str, Any] | None, Asking]:
    """Make one call; return the body that the provider received, or None if it was refused."""

    async def story(asking: Asking) -> None:
        asking.provider.script("m", *steps)
        limits = (
            ("max_tokens",) if flavour == "anthropic" else ("max_completion_tokens", "max_tokens")
        )
        sent = {"model": "m", "messages": HELLO, **body}
        table = TABLES["messages" if flavour == "anthropic" else "chat_completions"]
        call = await asking.models.relayed(
            asking.context,
            asking.models.table[Tier.SMALL],
            read_body(sent, "messages", table.read(sent, limits_spending=False)),
            alias="small",
            key="k",
            request_hash="h",
            body=sent,
            headers={},
            relay=Relay(),
            path="/v1/messages" if flavour == "anthropic" else "/chat/completions",
            limit_fields=limits,
            made_in={},
        )
        try:
            await asking.context.calls.perform(
                call, parent=asking.context.trace_parent, scope=asking.context.scope
            )
        except Stop:
            return

    model = unpriced("m") if budget is None else priced("m", max_output_tokens=500)
    asking = asking_after(story, model, flavour=flavour, budget=budget or Budget())
    arrivals = asking.provider.arrivals
    return arrivals[0].body if arrivals else None, asking


def test_a_body_without_a_limit_on_its_run_is_sent_unchanged() -> None:
    """The configured output limit is not a limit for clients that write their own bodies."""
    asked = {"max_tokens": 32_000, "thinking": {"type": "enabled", "budget_tokens": 31_999}}

    body, _ = _sent(asked)

    assert body == {"model": "m", "messages": HELLO, **asked}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, {"max_tokens": 445}),
        ({"max_completion_tokens": None}, {"max_completion_tokens": None, "max_tokens": 445}),
        ({"max_tokens": 50}, {"max_tokens": 50}),
        ({"max_tokens": 5_000}, {"max_tokens": 885}),
        (
            {"max_completion_tokens": 10, "max_tokens": 5_000},
            {"max_completion_tokens": 10, "max_tokens": 875},
        ),
        ({"n": 2, "max_tokens": 5_000}, {"n": 2, "max_tokens": 440}),
    ],
)
def test_the_output_limit_is_lowered_to_the_budget(
    asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    """Limit fields above the affordable output are lowered.

    Without one, the field that the server knows is added, with the output that half of the budget
    pays.
    """
    body, _ = _sent(asked, flavour="openai", budget=Budget(max_cost_usd=Decimal(1_000)))

    assert body is not None
    names = ("max_completion_tokens", "max_tokens", "n")
    limits = {name: body[name] for name in names if name in body}
    assert limits == pytest.approx(sent, abs=12)


def test_a_lowered_limit_stays_above_the_limit_for_thinking() -> None:
    """The API requires it; the limit for thinking keeps its share of the output."""
    thinking = {"type": "enabled", "budget_tokens": 24_000}
    asked = {"max_tokens": 32_000, "thinking": thinking}

    body, _ = _sent(asked, budget=Budget(max_cost_usd=Decimal(4_000)))
    refused, _ = _sent(asked, budget=Budget(max_cost_usd=Decimal(900)))

    assert body is not None
    assert 3_800 < body["max_tokens"] < 4_000
    assert body["thinking"] == {**thinking, "budget_tokens": body["max_tokens"] * 3 // 4}
    assert refused is None


@pytest.mark.parametrize(
    ("more", "cost"),
    [("", 337), (', "cache_creation": {"ephemeral_1h_input_tokens": 8}', 343)],
)
def test_cached_and_written_prompt_tokens_are_charged_as_input(more: str, cost: int) -> None:
    """Writing to the cache costs 1.25 times the price of a token, and twice for an hour."""
    step = Step(
        raw_body='{"type": "message", "content": [{"type": "text", "text": "hi"}], "stop_reason":'
        ' "end_turn", "usage": {"input_tokens": 5, "cache_creation_input_tokens": 20,'
        f' "cache_read_input_tokens": 300, "output_tokens": 7{more}}}}}'
    )

    _, asking = _sent({"max_tokens": 10}, step, budget=Budget(max_cost_usd=Decimal(10_000)))

    [call] = asking.calls()
    assert (call["tokens_in"], call["tokens_out"]) == (325, 7)
    assert call["metadata"]["tokens_cached"] == 300
    assert asking.run.scope.to_dict()["cost_usd"] == cost


@pytest.mark.parametrize(("ttl", "factor"), [(None, 1), ("5m", 1.25), ("1h", 2)])
def test_a_prompt_that_is_to_be_cached_is_reserved_at_the_price_of_writing(
    ttl: str | None, factor: float
) -> None:
    """The output limit shows which part of the budget is left for the output."""
    control = {} if ttl is None else {"cache_control": {"type": "ephemeral", "ttl": ttl}}
    text = "word " * 600
    part = {"type": "text", "text": text, **control}
    asked = {"max_tokens": 5_000, "messages": [{"role": "user", "content": [part]}]}

    body, _ = _sent(asked, budget=Budget(max_cost_usd=Decimal(3_000)))

    assert body is not None
    tokens = near_tokens(text, UNKNOWN) + UNKNOWN.frame_tokens + 60
    assert body["max_tokens"] == pytest.approx(3_000 - tokens * factor, abs=50 * factor)


def test_a_superseded_attempt_counts_no_tokens() -> None:
    """The later attempt may be opened while the call waits for its rate slot."""

    async def story(asking: Asking) -> None:
        call = asking.models.token_count(
            asking.context,
            asking.models.table[Tier.SMALL],
            key="k",
            body={"messages": HELLO},
            headers={},
            path="/v1/messages/count_tokens",
            is_superseded=lambda: True,
        )
        with pytest.raises(CallFailedError) as failed:
            await asking.context.calls.perform(
                call, parent=asking.context.trace_parent, scope=asking.context.scope
            )
        assert failed.value.error_class == SUPERSEDED

    asking = asking_after(story, unpriced("m"), flavour="anthropic")
    assert asking.provider.arrivals == []
