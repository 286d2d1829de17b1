"""One call to one model in one structured-output mode: its cost, its attempts and its result.

Before an attempt, the cost is estimated at its maximum; the output limit is lowered if less budget
remains. After an attempt, the cost is computed from the provider's token counts. It is estimated if
the request was sent but the answer or its counts were lost. It is zero if nothing was sent.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, cast

import structlog

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import FreeAmounts, Scope
from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.core.trace.payloads import Payloads
from caseworker.engine.call import FREE, Answered, AttemptError, Call, RateSlot, Reply, Spent
from caseworker.engine.context import RunContext, TokenRatio
from caseworker.engine.events import OUTPUT_LIMITED, Event
from caseworker.models.completion import Completion
from caseworker.models.counts import is_possible
from caseworker.models.families import family_of
from caseworker.models.forms import json_in_reply, storable_json, storable_text
from caseworker.models.lost_usage import uncounted_usage
from caseworker.models.maximum import Bound, Content, content_of_request
from caseworker.models.message_log import MessageLog
from caseworker.models.ports import (
    Delta,
    Incomplete,
    ModelError,
    ModelFault,
    ModelReply,
    ModelRequest,
    RequestOrigin,
    SendState,
    TokenUsage,
    ToolCall,
)
from caseworker.models.pricing import (
    Cost,
    ListPrice,
    PriceUnknownError,
)
from caseworker.models.table import ChatModel
from caseworker.models.turns import Turns

log = structlog.get_logger(__name__)

OnDelta = Callable[[int, Delta], None]
"""Callback invoked for each part of a streamed reply, with the attempt number (starting at 1) and
the part."""

_NOT_SENT = TokenUsage(tokens_in=0, tokens_out=0)
_COUNTS = tuple(TokenUsage.__dataclass_fields__)
_NO_COST = Cost(Decimal(0), Decimal(0))
_NO_BOUND = Bound(_NOT_SENT, _NO_COST)

USUAL_OUTPUT_TOKENS = 4_096
"""Output limit that a request without one gets at least, if the budget can pay it."""


@dataclass(kw_only=True, eq=False)
class ModelCall(Call):
    """One request to one model in one structured-output mode.

    Attempts are free if the provider is local to this process (its ``external`` is False).
    Otherwise an attempt requests at least the model's ``min_output_tokens``. It requests fewer only
    if the request itself sets a lower limit.
    """

    chat_model: ChatModel
    request: ModelRequest
    prompt: MessageLog | None = None
    """The log whose first messages are those of the request, if there is one."""
    wants_json: bool = False
    """Whether the reply must be JSON, in any structured-output mode."""
    run: RunContext
    list_price: ListPrice
    payloads: Payloads
    turns: Turns | None = None
    on_delta: OnDelta | None = None
    """Receives the parts of the reply as they arrive. A replayed reply has no parts."""
    attempts_before: int = 0
    """Number of attempts that earlier calls made for the same answer."""
    content: Content | None = None
    """Content of the request; None computes it from ``request``."""
    is_bounded: bool = False
    """Whether cost or tokens are limited by more than the service's ceilings."""
    _refusal: Stop | None = field(init=False, default=None)
    _bound: Bound = field(init=False, default=_NO_BOUND)
    """Maximum of an attempt that is not fitted to a budget."""
    _tokens_out: int = field(init=False, default=0)
    """Output limit of the current or the next attempt, for all choices together."""
    _limited_by: Dimension | None = field(init=False, default=None)
    """The limit of the budget that the output limit results from; None if there is none."""
    _delivery: SendState = field(init=False, default_factory=lambda: SendState(is_sent=False))

    def __post_init__(self) -> None:
        self.external = self.chat_model.provider.external
        if self.external:
            if self.content is None:
                family = family_of(self.chat_model.model)
                self.content = content_of_request(self.request, family, self.prompt)
            self._bound = self._hard_bound
            self._tokens_out = self._bound.usage.tokens_out

    @property
    def cost(self) -> Cost | None:
        """Maximum cost of an attempt; None if the price is unknown."""
        return self._bound.cost

    @property
    def _log(self) -> Any:
        """The logger, whose entries identify the call and its model."""
        model, provider = self.chat_model.model, self.chat_model.provider.name
        return log.bind(model=model, provider=provider, call_key=self.key.text)

    @property
    def _choices(self) -> int:
        """Number of answers that the provider writes for one request."""
        return 1 if self.content is None else self.content.choices * self.content.passes

    @property
    def _sets_limit(self) -> bool:
        """Whether the request has no output limit, so that it gets one that the budget can pay."""
        return self.is_bounded and self.request.max_output_tokens is None

    def _bound_of(self, tokens_in: int) -> Bound:
        """Return the maximum for a bound of the input."""
        content = cast("Content", self.content)
        limit = self.request.max_output_tokens
        limit = self.chat_model.largest_output_tokens if limit is None else limit
        usage = content.usage(tokens_in, limit * self._choices)
        return Bound(usage, self._cost_of(usage))

    @cached_property
    def _hard_bound(self) -> Bound:
        return self._bound_of(cast("Content", self.content).hard_tokens)

    @cached_property
    def _near_bound(self) -> Bound:
        content = cast("Content", self.content)
        counted = self.run.token_ratios.get(self.chat_model.model)
        near = content.near_tokens if counted is None else content.near_tokens_like(counted)
        return self._bound_of(near)

    def refuse_without_price(self, scope: Scope) -> None:
        """Refuse the call, because its price is unknown, if the scope has a cost limit."""
        if not scope.requires_prices():
            return
        unknown = PriceUnknownError(self.chat_model.provider.name, self.chat_model.model)
        cause = StopCause(
            kind=StopKind.BUDGET,
            dimension=Dimension.COST_USD,
            scope=scope.name,
            reason=f"The run limits its cost, and {unknown}",
        )
        self._refusal = Stop(cause)
        self.external, self.per_call, self.per_attempt, self.timeout_seconds = False, {}, {}, None

    @property
    def refusal(self) -> Stop | None:
        """Why the call is refused before it is sent; None if it is not."""
        return self._refusal

    def maximum(self, free: FreeAmounts) -> Spent | None:
        """Return the maximum usage with the hard bound of the input.

        Returns None if the output does not fit next to it; then the near bound counts.
        """
        if not self.external:
            return None
        self._bound = self._hard_bound
        self._tokens_out = self._output_in(free)
        usual = USUAL_OUTPUT_TOKENS * self._choices if self._sets_limit else math.inf
        if self._tokens_out < min(self._bound.usage.tokens_out, usual):
            return None
        return self._spent(self._tokens_out)

    def estimate(self, free: FreeAmounts) -> Spent:
        """Lower the output limit so that the request fits the budget; return its maximum usage.

        The near bound of the input counts.
        """
        if not self.external:
            return FREE
        self._bound = self._near_bound
        self._tokens_out = self._output_in(free)
        return self._spent(self._tokens_out)

    def _output_in(self, free: FreeAmounts) -> int:
        """Return the output limit for a free budget, for all choices together.

        A request without a limit gets what half of the budget pays, and at least
        ``USUAL_OUTPUT_TOKENS`` if they fit, so that parallel calls fit as well.
        """
        usage, cost = self._bound
        full, affordable, dimension = usage.tokens_out, math.inf, Dimension.TOKENS
        tokens, dollars = free.get(Dimension.TOKENS), free.get(Dimension.COST_USD)
        if tokens is not None:
            affordable = math.floor(tokens) - usage.tokens_in
        is_scarce = self._sets_limit or (cost and dollars is not None and cost.total > dollars)
        if is_scarce and cost and cost.output and dollars is not None:
            rest = Decimal(dollars) - (cost.total - cost.output)
            payable = math.floor(rest * full / cost.output)
            if payable < affordable:
                affordable, dimension = payable, Dimension.COST_USD
        lowest = min(full, self.chat_model.min_output_tokens * self._choices)
        limit: float = full
        if self._sets_limit and affordable < math.inf:
            usual = USUAL_OUTPUT_TOKENS * self._choices
            limit = max(affordable // 2, usual if usual <= affordable else lowest)
        output = int(max(lowest, min(full, limit, affordable)))
        self._limited_by = dimension if output < full else None
        return output

    def rate_slot(self) -> RateSlot | None:
        """Return a new position in the queue of a rate-limited model, else None."""
        if self.turns is None or self.chat_model.limit is None or not self.external:
            return None
        return self.turns.turn(self.chat_model.limit, self.run.tenant)

    async def send(self, attempt: int) -> Reply:
        """Send the request once.

        Raises:
            AttemptError: the model failed; the error class is a ``ModelFault``.
            Stop: cost is limited but the model's price is unknown.
        """
        if self._refusal is not None:
            raise self._refusal
        chat_model, is_streamed = self.chat_model, False

        def show(delta: Delta) -> None:
            nonlocal is_streamed
            is_streamed = True
            if self.on_delta is not None:
                self.on_delta(self.attempts_before + attempt, delta)

        self._delivery = SendState()
        fitted = self._tokens_out < self._bound.usage.tokens_out
        request = replace(
            self.request,
            delivery=self._delivery,
            max_output_tokens=self._tokens_out if fitted else self.request.max_output_tokens,
            origin=RequestOrigin(run_id=self.run.run_id, call=self.key.text, attempt=attempt),
            on_delta=None if self.on_delta is None else show,
            stream=chat_model.stream,
        )
        try:
            reply = await chat_model.provider.complete(chat_model.model, request)
        except ModelError as error:
            raise self._failed(error, attempt) from error
        if self.on_delta is not None and not is_streamed:  # the provider does not stream
            for delta in (Delta("thinking", reply.thinking), Delta("content", reply.text)):
                if delta.text:
                    show(delta)
        says = reply.text.strip() or (reply.tool_calls and request.tools)
        if reply.incomplete is None and not says:  # tool calls count only if tools were offered
            reply = replace(reply, incomplete=Incomplete.EMPTY)
        usage, spent = self._answered(reply)
        self._report_output_limit(reply)
        if reply.repairs:
            self._log.info("model.reply_repaired", kinds=list(reply.repairs))
        value = journaled(reply, usage, spent)
        return Reply(value, spent, noted(value, chat_model.model))

    def lost(self) -> Spent:
        """Return the charge for an attempt whose answer will never arrive.

        Nothing is charged if the request was not sent. The provider's final counts hold if they
        arrived before the end; otherwise see :mod:`caseworker.models.lost_usage`.
        """
        if not self._delivery.is_sent or not self.external:
            return FREE
        reply = self._delivery.reply
        usage = reply.counted() if reply is not None and reply.has_final_counts else None
        if usage is not None and is_possible(usage, "".join(reply.received if reply else ())):
            return self._charged(usage)
        return self._charged(self._uncounted(), estimated=True)

    def completion(self, answered: Answered) -> Completion:
        """Build the completion from a journaled answer; keep only the JSON if it was requested."""
        value: Mapping[str, Any] = answered.value
        cost, incomplete = value.get("cost_usd"), value.get("incomplete")
        text = json_in_reply(value["text"]) if self.wants_json else value["text"]
        calls = () if incomplete == Incomplete.EMPTY else value.get("tool_calls", ())
        read = {
            "text": text,
            "call_key": self.key.text if text == value["text"] else None,
            "node_id": answered.node_id,
            "cost_usd": None if cost is None else Decimal(cost),
            "incomplete": None if incomplete is None else Incomplete(incomplete),
            "provider": self.chat_model.provider.name,
            "repairs": tuple(value.get("repairs", ())),
            "tool_calls": tuple(ToolCall(**call) for call in calls) if calls else (),
        }
        return Completion(**{**value, **read})

    def _failed(self, error: ModelError, attempt: int) -> AttemptError:
        """Log a failed attempt; return its error, with no cost if the provider rejected it."""
        self._log.warning(
            "model.failed",
            attempt=attempt,
            error_class=error.fault.value,
            error=str(error),
            status=error.status,
        )
        if self.turns is not None and self.chat_model.limit is not None:
            self.turns.refused(self.chat_model.limit, error)
        written = error.fault is ModelFault.UNREADABLE_REPLY
        refused = error.status is not None and error.status >= 400 and not written
        return AttemptError(
            str(error),
            error_class=error.fault.value,
            retryable=error.retryable,
            retry_after_seconds=error.retry_after_seconds,
            spent=FREE if refused else self.lost(),
            raw_reply=self.payloads.display(error.raw_reply and storable_text(error.raw_reply)),
        )

    def _answered(self, reply: ModelReply) -> tuple[TokenUsage, Spent]:
        """Return a reply's token usage and cost; both are estimates if it has no possible counts.

        Impossible counts are replaced by the maximum that was reserved.
        """
        usage, arrived = reply.usage, self._delivery.read_reply
        texts = (reply.text, reply.thinking, *(call.arguments for call in reply.tool_calls))
        if usage is None:
            usage = self._uncounted(texts) if self.external else _NOT_SENT
            return usage, self._charged(usage, estimated=self.external)
        received = "".join(texts if arrived is None else arrived.received)
        if not self.external or is_possible(usage, received):
            self._note_ratio(usage)
            return usage, self._charged(usage)
        self._log.warning("model.counts_impossible")
        spent = self._spent(self._tokens_out, estimated=True)
        tokens_in, tokens_out = self._bound.usage.tokens_in, self._tokens_out
        return TokenUsage(tokens_in=tokens_in, tokens_out=tokens_out), spent

    def _report_output_limit(self, reply: ModelReply) -> None:
        """Emit an event if a reply was cut off at an output limit that the budget set."""
        if reply.incomplete is not Incomplete.LENGTH or self._limited_by is None:
            return
        if self.run.events is not None:
            about = {
                "call_key": self.key.text,
                "max_output_tokens": self._tokens_out // self._choices,
                "setting": f"budget.max_{self._limited_by.value}",
            }
            self.run.events.emit(Event(type=OUTPUT_LIMITED, data=about))

    def _note_ratio(self, usage: TokenUsage) -> None:
        """Keep how the provider's count compares to the near bound, if that was computed."""
        content = self.content
        if content is not None and content.is_text and "near_text_tokens" in vars(content):
            ratios, model = self.run.token_ratios, self.chat_model.model
            before = ratios.get(model, TokenRatio(0.0, 0))
            near = content.near_text_tokens
            ratio = max(before.ratio, usage.tokens_in / max(1, near))
            ratios[model] = TokenRatio(ratio, max(before.near_tokens, near))

    def _uncounted(self, texts: Iterable[str] = ()) -> TokenUsage:
        """Return the usage of an attempt without final counts."""
        reserved, tools = self._near_bound.usage, cast("Content", self.content).tools
        if tools and self._delivery.reply is not None:  # their uses are seen in the reply
            unused = sum(
                each.tokens_per_use
                * (each.max_uses - self._delivery.reply.tool_uses.get(each.name, 0))
                for each in tools
            )
            tokens_in = max(0, reserved.tokens_in - unused)
            reserved = replace(reserved, tokens_in=tokens_in, provider_tool_uses={})
        return uncounted_usage(
            replace(reserved, tokens_out=self._tokens_out),
            self._delivery,
            texts=texts,
            choices=self._choices,
            tokens_per_second=self.chat_model.tokens_per_second,
            model=self.chat_model.model,
        )

    def _charged(self, usage: TokenUsage, *, estimated: bool = False) -> Spent:
        """Return the charge for a usage."""
        cost = self._cost_of(usage) if self.external else _NO_COST
        return Spent(
            tokens_in=usage.tokens_in,
            tokens_out=usage.tokens_out,
            cost_usd=None if cost is None else cost.total,
            estimated=estimated,
        )

    def _spent(self, tokens_out: int, *, estimated: bool = False) -> Spent:
        """Return the usage of the whole prompt with ``tokens_out`` output tokens."""
        (usage, cost), dollars = self._bound, None
        if cost is not None:
            dollars = cost.total
            if tokens_out < usage.tokens_out:
                dollars -= cost.output - cost.output * tokens_out / usage.tokens_out
        return Spent(
            tokens_in=usage.tokens_in, tokens_out=tokens_out, cost_usd=dollars, estimated=estimated
        )

    def _cost_of(self, usage: TokenUsage) -> Cost | None:
        """Look up the cost of an attempt; return None if the price is unknown."""
        tools_usd = Decimal(0)
        if usage.provider_tool_uses:
            prices, unpriced = self.chat_model.provider_tools, dict[str, int]()
            for name, uses in usage.provider_tool_uses.items():
                if name in prices:
                    tools_usd += prices[name].usd_per_use * uses
                else:
                    unpriced[name] = uses
            usage = replace(usage, provider_tool_uses=unpriced)
        cost = None
        if (price := self.chat_model.price) is not None:
            cost = price.cost_of(usage)
        else:
            with suppress(PriceUnknownError):
                cost = self.list_price(self.chat_model.provider.name, self.chat_model.model, usage)
        return cost and cost._replace(total=cost.total + tools_usd)


def noted(value: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the attributes that an answer adds to the call node; defaults are omitted."""
    about = {
        "repairs": value.get("repairs"),
        "finish_reason": value.get("finish_reason"),
        "response_model": value["model"] if value["model"] != model else None,
        "tokens_cached": value.get("tokens_cached"),
    }
    return {name: noted for name, noted in about.items() if noted}


def journaled(reply: ModelReply, usage: TokenUsage, spent: Spent) -> dict[str, Any]:
    """Return the journal record of an answer; empty fields are omitted."""
    about = {
        "cost_usd": None if spent.cost_usd is None else str(spent.cost_usd),
        "finish_reason": reply.finish_reason,
        "incomplete": reply.incomplete and reply.incomplete.value,
        "incomplete_reason": reply.incomplete_reason,
        **{name: getattr(usage, name) for name in _COUNTS},
        "tool_calls": reply.tool_calls and [call.to_json() for call in reply.tool_calls],
        "thinking": reply.thinking,
        "provider_state": reply.provider_state,
        "repairs": reply.repairs,
        "estimated": spent.estimated,
    }
    counted = {"text": reply.text, "model": reply.model, "tokens_in": 0, "tokens_out": 0}
    journaled: dict[str, Any] = storable_json(
        counted | {name: value for name, value in about.items() if value}
    )
    return journaled
