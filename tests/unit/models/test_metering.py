"""Charging of model calls: known, estimated or unknown costs, within the budget."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import CallFailedError
from caseworker.models.families import UNKNOWN, Family
from caseworker.models.ports import Message, ModelReply, ModelRequest, TokenUsage
from caseworker.models.pricing import Cost
from caseworker.models.speeds import DEFAULT_TOKENS_PER_SECOND
from caseworker.models.table import Tier
from caseworker.models.tokens import TextTokens, near_tokens
from tests.support.fake_provider.script import Step
from tests.unit.models.asking import Asking, asking_after, chain, priced, unpriced

COUNTED = Step(text="four", tokens_in=3, tokens_out=2)
REFUSED = Step(cut="before")
"""The connection is refused, so nothing was sent."""
TEXT = "The answer is four, which two and two make. " * 30
WRITTEN = near_tokens(TEXT, UNKNOWN)
CUT = Step(cut="middle", delay_seconds=1)
"""The request was sent; the reply broke off a second later."""


def scripted(*steps: Step, **settings: Any) -> Any:
    async def story(asking: Asking) -> None:
        asking.provider.script("m", *steps)
        try:
            await asking.ask(**settings)
        except CallFailedError:
            return

    return story


@pytest.mark.req("002/20.4", "001/node")
def test_what_was_never_sent_costs_nothing() -> None:
    """Three refused connections cost nothing, and each counts as an attempt."""
    asking = asking_after(scripted(REFUSED, REFUSED, REFUSED), priced("m"))

    usage = asking.run.scope.to_dict()
    assert (usage["tokens"], usage["cost_usd"], usage["api_calls"]) == (0, 0, 3)
    [call] = asking.calls()
    assert (call["cost_usd"], call["tokens_in"], call["tokens_out"]) == (0, None, None)
    assert "estimated" not in call["metadata"]


@pytest.mark.req("002/20.4")
def test_an_answer_that_was_lost_is_estimated_by_the_time_it_took() -> None:
    """The estimate of a lost reply depends on the elapsed time.

    The answered attempt is not estimated.
    """
    asking = asking_after(scripted(CUT, COUNTED), priced("m", max_output_tokens=4096))

    usage = asking.run.scope.to_dict()
    call: Any = asking.calls()[0]
    estimated = call["metadata"]["estimated"]
    assert estimated["tokens_out"] == DEFAULT_TOKENS_PER_SECOND
    assert call["tokens_out"] == DEFAULT_TOKENS_PER_SECOND + 2
    assert usage["tokens"] == usage["tokens_estimated"] + 5  # type: ignore[operator]
    assert usage["cost_usd"] == usage["cost_usd_estimated"] + 5  # type: ignore[operator]
    assert call["cost_usd"] == usage["cost_usd"]


def test_the_near_bound_of_a_long_prompt_is_computed_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 10 ms for a megabyte."""
    in_thread, computed = [False], list[bool]()

    async def to_thread(function: Callable[..., Any], *args: Any) -> Any:
        in_thread[0] = True
        try:
            return function(*args)
        finally:
            in_thread[0] = False

    def noted(text: TextTokens, family: Family) -> int:
        computed.append(in_thread[0])
        return text.size_bytes // 4

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(TextTokens, "near", noted)
    prompt = (Message(role="user", content="word " * 100_000),)
    asking_after(
        scripted(COUNTED, messages=prompt), priced("m"), budget=Budget(max_cost_usd=200_000)
    )
    assert computed == [True]


@pytest.mark.parametrize("sent", [True, False])
def test_a_call_that_is_cancelled_costs_something_only_if_it_was_sent(sent: bool) -> None:
    """Before the request is sent, the call only waits for a free connection."""

    async def story(asking: Asking) -> None:
        asking.provider.script("m", Step(hang=True, cut=None if sent else "before"))
        call = asyncio.create_task(asking.ask())
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.wait([call])

    asking = asking_after(story, priced("m", max_output_tokens=4096))
    tokens_out = asking.calls()[0]["tokens_out"]
    assert tokens_out == (DEFAULT_TOKENS_PER_SECOND // 10 if sent else None)


def test_an_answer_without_counts_is_estimated_by_its_length() -> None:
    """A reply without token counts is charged by its length, not by its maximum."""
    step = Step(text=TEXT, omit_usage=True)
    asking = asking_after(scripted(step), priced("m", max_output_tokens=4096))

    call: Any = asking.calls()[0]
    assert call["metadata"]["estimated"]["tokens_out"] == call["tokens_out"] == WRITTEN


IMPOSSIBLE = {
    "negative input": TokenUsage(tokens_in=-1, tokens_out=2),
    "negative output": TokenUsage(tokens_in=3, tokens_out=-2),
    "too large": TokenUsage(tokens_in=10**12, tokens_out=2),
    "more cached than read": TokenUsage(tokens_in=3, tokens_out=2, tokens_cached=4),
    "more for an hour than written": TokenUsage(
        tokens_in=3, tokens_out=2, tokens_cache_written=1, tokens_cache_written_1h=2
    ),
    "more sound than output": TokenUsage(tokens_in=3, tokens_out=2, tokens_audio_out=3),
    "fewer tokens than words": TokenUsage(tokens_in=3, tokens_out=2),
    "negative uses": TokenUsage(tokens_in=3, tokens_out=200, provider_tool_uses={"search": -1}),
}


@pytest.mark.req("cw/3.counts")
@pytest.mark.parametrize("usage", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_counts_of_a_complete_reply_are_charged_at_the_reservation(
    usage: TokenUsage,
) -> None:
    """The counts would return budget, or hide cost of the provider."""

    async def complete(model: str, request: ModelRequest) -> ModelReply:
        return ModelReply(text="four " * 100, model=model, usage=usage)

    async def story(asking: Asking) -> None:
        provider: Any = asking.models.table[Tier.SMALL].provider
        provider.complete = complete
        assert (await asking.ask()).estimated

    asking = asking_after(story, priced("m", max_output_tokens=4096))
    [call] = asking.calls()
    assert call["tokens_out"] == 4096
    used = asking.run.scope.to_dict()
    assert used["tokens"] == used["tokens_estimated"] == used["cost_usd"]


def test_a_price_that_is_not_known_makes_no_cost_of_zero() -> None:
    """The call, the answer and the run have no cost; a refused call of this model costs nothing."""

    async def story(asking: Asking) -> None:
        asking.provider.script("first", Step(status=404))
        asking.provider.script("m", COUNTED)
        assert (await asking.ask()).cost_usd is None

    asking = asking_after(story, chain(unpriced("first"), unpriced("m")))
    assert [call["cost_usd"] for call in asking.calls()] == [0, None]
    usage = asking.run.scope.to_dict()
    assert (usage["cost_usd"], usage["cost_usd_known"], usage["unpriced_calls"]) == (None, 0, 1)


@pytest.mark.req("002/20.4")
@pytest.mark.parametrize(
    "budget", [Budget(max_tokens=500), Budget(max_cost_dollars=Decimal(500))], ids=str
)
def test_a_call_asks_for_no_more_output_than_its_budget_can_pay(budget: Budget) -> None:
    """The provider gets the lower limit, and the reservation fits to the token."""

    async def story(asking: Asking) -> None:
        asking.provider.script("m", COUNTED)
        asked: list[int] = []
        asking.run.journal.at_barrier = lambda: _note(asked, asking)
        await asking.ask()
        assert asked == [500]

    async def _note(asked: list[int], asking: Asking) -> None:
        held = asking.run.scope.reserved_amounts
        asked.append(int(max(held.values())))

    asking = asking_after(story, priced("m", max_output_tokens=4096), budget=budget)
    sent = asking.provider.arrivals[0].body["max_tokens"]
    assert 256 < sent < 500
    assert asking.run.scope.usage.tokens_used == 5


def test_a_call_that_cannot_get_the_least_output_is_refused() -> None:
    """The configured minimum of output tokens is enforced.

    A request for fewer tokens is accepted.
    """

    async def story(asking: Asking) -> None:
        with pytest.raises(BudgetExceededError) as refused:
            await asking.ask()
        assert refused.value.cause.limit == 200
        asking.provider.script("m", COUNTED)
        await asking.ask(key="short", max_output_tokens=20)

    asking = asking_after(story, priced("m", max_output_tokens=4096), budget=Budget(max_tokens=200))
    assert [arrived.body["max_tokens"] for arrived in asking.provider.arrivals] == [20]


def test_a_run_that_is_executed_again_finds_a_call_that_was_made_smaller() -> None:
    """The journaled request is the same, whatever budget was left."""

    async def story(asking: Asking) -> None:
        asking.provider.script("m", COUNTED)
        await asking.ask()
        asking.begin(asking.run.journal)
        await asking.ask()
        assert len(asking.provider.arrivals) == 1

    asking_after(story, priced("m", max_output_tokens=4096), budget=Budget(max_tokens=500))


def test_a_call_within_a_cost_limit_looks_its_price_up_twice() -> None:
    """Before the attempt, the estimate is priced once; fitting it to the budget needs no price."""
    asked_for: list[TokenUsage] = []

    def price(provider: str, model: str, usage: TokenUsage) -> Cost:
        asked_for.append(usage)
        return _dear_if_long(provider, model, usage)

    async def story(asking: Asking) -> None:
        asking.provider.script("m", COUNTED)
        completion = await asking.ask()
        assert completion.cost_usd == 5

    budget = Budget(max_cost_dollars=Decimal(20_000))
    model = unpriced("m", max_output_tokens=4096)
    asking = asking_after(story, model, budget=budget, list_price=price)

    assert [usage.tokens_out for usage in asked_for] == [4096, 2]
    assert asking.provider.arrivals[0].body["max_tokens"] == 4096


@pytest.mark.parametrize("dollars", [600, 601, 777, 2000, 2001])
def test_the_output_that_fits_a_cost_limit_is_exact_for_prices_that_depend_on_the_input(
    dollars: int,
) -> None:
    """The reserved cost is the list price of the lower output limit; one token more is too much."""
    long = (Message(role="user", content="a long text " * 25),)
    seen: list[tuple[int, Decimal]] = []

    async def story(asking: Asking) -> None:
        async def at_barrier() -> None:
            held = asking.run.scope.reserved_amounts
            seen.append((int(held[Dimension.TOKENS]), Decimal(held[Dimension.COST_USD])))

        asking.provider.script("m", COUNTED)
        asking.run.journal.at_barrier = at_barrier
        await asking.ask(messages=long)

    budget = Budget(max_cost_dollars=Decimal(dollars))
    model = unpriced("m", max_output_tokens=4096, min_output_tokens=1)
    asking = asking_after(story, model, budget=budget, list_price=_dear_if_long)

    most = asking.provider.arrivals[0].body["max_tokens"]
    ((tokens, held),) = seen
    for tokens_out, fits in ((most, True), (most + 1, False)):
        usage = TokenUsage(tokens_in=tokens - most, tokens_out=tokens_out)
        cost = _dear_if_long("openai", "m", usage).total
        assert (cost <= dollars) == fits
        assert (cost == held) == fits


def _dear_if_long(provider: str, model: str, usage: TokenUsage) -> Cost:
    """Return a dollar a token, and three for each input and output token after a long prompt."""
    each = 3 if usage.tokens_in > 100 else 1
    output = Decimal(each * usage.tokens_out)
    return Cost(output + each * usage.tokens_in, output)
