"""Executes one request to one model in one structured-output mode.

Each exchange is a separate call in the trace, the journal and the budget.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cached_property, partial
from itertools import count
from typing import Any

import structlog

from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.retry import RetryPolicy
from caseworker.core.trace.payloads import Payloads
from caseworker.engine.call import Answered, AttemptError, CallSpec, RateSlot, Reply, Spent
from caseworker.engine.concurrency import RedactionThread
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import HASH_CHARS
from caseworker.engine.step_path import StepPath
from caseworker.models.completion import Completion
from caseworker.models.forms import StatedSchema, read_json, storable, storable_json
from caseworker.models.message_log import MessageLog, StoredPrompt, message_json
from caseworker.models.metering import Metering
from caseworker.models.ports import (
    Delta,
    Incomplete,
    Message,
    ModelError,
    ModelReply,
    ModelRequest,
    RequestOrigin,
    TokenUsage,
    ToolCall,
)
from caseworker.models.pricing import ListPrice
from caseworker.models.table import ChatModel
from caseworker.models.turns import Turns

log = structlog.get_logger(__name__)

OnDelta = Callable[[int, Delta], None]
"""Callback invoked for each part of a streamed reply, with the attempt number (starting at 1) and
the part."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request to one model in one structured-output mode."""

    model: ChatModel
    request: ModelRequest
    name: str
    """Name of the call in the trace."""
    key: StepPath
    """Path that identifies the call in the run. It is the same each time the run is executed."""
    metadata: Mapping[str, Any]
    wants_json: bool = False
    """Whether the reply must be JSON, in any structured-output mode."""
    log: MessageLog | None = None
    """The message log, if the request sends exactly its messages; otherwise None."""

    @cached_property
    def request_hash(self) -> str:
        """Return a hash of the request, which prevents replaying the reply to a different request.

        The hash is a prefix of the SHA-256 of a JSON document. A message log supplies the hash
        state for the messages that it has already hashed.
        """
        request, schema = self.request, self.request.json_schema
        asked: dict[str, Any] = {
            "provider": self.model.provider.name,
            "model": self.model.model,
            "schema": schema.digest if isinstance(schema, StatedSchema) else schema,
            "seed": request.seed,
        }
        if request.tools:
            asked["tools"] = [tool.to_json() for tool in request.tools]
        if request.temperature != self.model.temperature:
            asked["temperature"] = request.temperature
        head = f'{{"max_output_tokens": {json.dumps(request.max_output_tokens)}, "messages": ['
        if self.log is None:
            said = ", ".join(map(message_json, request.messages))
            hasher = hashlib.sha256(f"{head}{said}".encode())
        else:
            hasher = self.log.hashed(head, len(request.messages))
        hasher.update(f"], {json.dumps(asked, sort_keys=True)[1:]}".encode())
        return hasher.hexdigest()[:HASH_CHARS]

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """Request parameters that a trace shows in addition to the messages."""
        request, external = self.request, self.model.provider.external
        return {
            "max_output_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "json_schema": request.json_schema if external else None,  # other providers ignore it
            "tools": [tool.name for tool in request.tools] or None,
        }

    def note_stored(self) -> None:
        """Record in the message log which journaled call stores the prompt up to this point."""
        log, count = self.log, len(self.request.messages)
        if log is None or (log.stored is not None and log.stored.messages > count):
            return
        log.stored = StoredPrompt(
            call_key=self.key.text if log.stored is None else log.stored.call_key,
            messages=count,
            parameters=self.parameters,
        )


class Exchanges:
    """Executes model requests through the run's call gateway, with token estimates and prices."""

    def __init__(
        self, list_price: ListPrice, retry: RetryPolicy, payloads: Payloads, turns: Turns | None
    ) -> None:
        self._list_price = list_price
        self._retry = retry
        self._payloads = payloads
        self._turns = turns
        self._redaction = RedactionThread()

    async def perform(
        self,
        exchange: Exchange,
        context: FlowContext,
        *,
        once: Mapping[Dimension, Amount],
        on_delta: OnDelta | None = None,
    ) -> Completion:
        """Send the request and retry it if necessary; charge ``once`` with the first attempt only.

        ``on_delta`` receives the parts of the reply as they arrive. A replayed reply has no parts.

        Raises:
            CallFailedError: the model failed after all retries; the error class is a ``ModelFault``
                or ``TimeoutError``.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        chosen, external = exchange.model, exchange.model.provider.external
        size = None if exchange.log is None else exchange.log.size_bytes
        metering = Metering(chosen, exchange.request, self._list_price, messages_bytes=size)
        call = CallSpec(
            key=exchange.key,
            kind="llm",
            name=exchange.name,
            model=chosen.model,
            request_hash=exchange.request_hash,
            external=False,
            retry=self._retry,
            metadata=exchange.metadata,
            request=await self._shown(exchange),
        )
        refusal = metering.refusal(context.scope)
        if refusal is None:
            fits = external and any(map(context.scope.limits_of, _METERED))
            call = replace(
                call,
                once=once,
                per_attempt={Dimension.API_CALLS: 1},
                estimate=metering.estimate,
                fit=metering.fit if fits else None,
                lost=metering.lost,
                external=external,
                turn=self._turn_of(chosen, context),
                timeout_seconds=chosen.timeout_seconds,
            )
        numbers = count(1)

        async def attempt() -> Reply:
            if refusal is not None:
                raise refusal
            run_id, number = context.run_id, next(numbers)
            origin = RequestOrigin(run_id=run_id, call=exchange.key.text, attempt=number)
            request = replace(metering.next_attempt(), origin=origin)
            return await self._attempt(chosen, request, metering, on_delta)

        before = context.calls.journal.recorded(exchange.key.text)
        answered = await context.calls.perform(
            call, attempt, parent=context.trace_parent, scope=context.scope
        )
        if before is None or before.request_hash == call.request_hash:
            exchange.note_stored()
        return completion_of(exchange, answered)

    async def _attempt(
        self,
        chosen: ChatModel,
        request: ModelRequest,
        metering: Metering,
        on_delta: OnDelta | None,
    ) -> Reply:
        origin, shown = request.origin, False

        def show(delta: Delta) -> None:
            nonlocal shown
            shown = True
            if on_delta is not None and origin is not None:
                on_delta(origin.attempt, delta)

        if on_delta is not None:
            request = replace(request, on_delta=show)
        try:
            reply = await chosen.provider.complete(chosen.model, request)
        except ModelError as error:
            log.warning(
                "model.failed",
                model=chosen.model,
                provider=chosen.provider.name,
                call_key=None if origin is None else origin.call,
                attempt=None if origin is None else origin.attempt,
                error_class=error.fault.value,
                error=str(error),
                status=error.status,
            )
            if self._turns is not None and chosen.limit is not None:
                self._turns.refused(chosen.limit, error)
            raw = error.raw_reply and storable(error.raw_reply)
            raise AttemptError(
                str(error),
                error_class=error.fault.value,
                retryable=error.retryable,
                retry_after_seconds=error.retry_after_seconds,
                spent=metering.failed(error),
                raw_reply=self._payloads.shown(raw),
            ) from error
        if not shown:  # the provider does not stream
            for delta in (Delta("thinking", reply.thinking), Delta("content", reply.text)):
                if delta.text:
                    show(delta)
        says = reply.text.strip() or (reply.tool_calls and request.tools)
        if reply.incomplete is None and not says:  # tool calls count only if tools were offered
            reply = replace(reply, incomplete=Incomplete.EMPTY)
        usage, spent = metering.answered(reply)
        if reply.repairs:
            log.info(
                "model.reply_repaired",
                model=chosen.model,
                provider=chosen.provider.name,
                call_key=None if origin is None else origin.call,
                kinds=list(reply.repairs),
            )
        return Reply(_journaled(reply, usage, spent), spent, _noted(reply, usage, chosen.model))

    def _turn_of(self, chosen: ChatModel, context: FlowContext) -> Callable[[], RateSlot] | None:
        if self._turns is None or chosen.limit is None or not chosen.provider.external:
            return None
        return partial(self._turns.turn, chosen.limit, context.run.tenant)

    async def _shown(self, exchange: Exchange) -> Mapping[str, Any] | None:
        """Return the request as the trace stores it; for a conversation, only the new messages."""
        stored = None if exchange.log is None else exchange.log.stored
        added = exchange.request.messages[stored.messages if stored else 0 :]
        messages = [
            (message.reference if stored else None) or _shown_message(message) for message in added
        ]
        same = stored is not None and stored.parameters == exchange.parameters
        redact = partial(self._payloads.prompt, messages, {} if same else exchange.parameters)
        shown = await self._redaction.call(redact, sum(len(str(each)) for each in messages))
        if stored is None:
            return shown
        after = {"call_key": stored.call_key, "messages": stored.messages}
        return None if shown is None else {**shown, "after": after}


_METERED = (Dimension.TOKENS, Dimension.COST_USD)


def _noted(reply: ModelReply, usage: TokenUsage, asked: str) -> dict[str, Any]:
    """Return the attributes that the answer adds to the call node; defaults are omitted."""
    about = {
        "repairs": list(reply.repairs),
        "finish_reason": reply.finish_reason and storable(reply.finish_reason),
        "response_model": storable(reply.model) if reply.model != asked else None,
        "tokens_cached": usage.tokens_cached,
    }
    return {name: value for name, value in about.items() if value}


def _journaled(reply: ModelReply, usage: TokenUsage, spent: Spent) -> dict[str, Any]:
    """Return the journal record of an answer; empty fields are omitted."""
    about = {
        "cost_usd": None if spent.cost_usd is None else str(spent.cost_usd),
        "finish_reason": reply.finish_reason and storable(reply.finish_reason),
        "incomplete": reply.incomplete and reply.incomplete.value,
        "incomplete_reason": reply.incomplete_reason and storable(reply.incomplete_reason),
        **asdict(usage),
        "tool_calls": [call.to_json() for call in reply.tool_calls],
        "thinking": reply.thinking,
        "provider_state": reply.provider_state,
        "repairs": reply.repairs,
        "estimated": spent.estimated,
    }
    counted = {
        "text": storable(reply.text),
        "model": storable(reply.model),
        "tokens_in": 0,
        "tokens_out": 0,
    }
    return counted | {name: storable_json(value) for name, value in about.items() if value}


def _shown_message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.extras()}


def completion_of(exchange: Exchange, answered: Answered) -> Completion:
    """Build the completion from a journaled answer; if JSON was requested, keep only the JSON."""
    value: Mapping[str, Any] = answered.value
    cost, incomplete = value.get("cost_usd"), value.get("incomplete")
    text = read_json(value["text"]) if exchange.wants_json else value["text"]
    read = {
        "text": text,
        "call_key": exchange.key.text if text == value["text"] else None,
        "node_id": answered.node_id,
        "cost_usd": None if cost is None else Decimal(cost),
        "incomplete": None if incomplete is None else Incomplete(incomplete),
        "provider": exchange.model.provider.name,
        "repairs": tuple(value.get("repairs", ())),
        "tool_calls": tuple(
            ToolCall(**call)
            for call in value.get("tool_calls", ())
            if incomplete != Incomplete.EMPTY
        ),
    }
    return Completion(**{**value, **read})
