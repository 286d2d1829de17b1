"""Calls models by name through the run's call gateway, with retries, fallbacks and charges.

A logical call makes a call for each of its candidates (``candidates.py``) until one answers. Each
call has its own retries, estimate and price, so the trace shows which models were called at which
cost.

A process remembers which structured-output mode works for an endpoint. This never overrides a
journal: a run that is executed again starts with the mode that its own journal contains.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.retry import RetryPolicy
from caseworker.core.budget.stops import Stop
from caseworker.core.budget.usage import NOTHING, BudgetExceededError, Charge
from caseworker.core.trace.payloads import REDACTED, Payloads
from caseworker.engine.call import Answered, CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import Journal
from caseworker.models.candidates import (
    Candidate,
    Endpoint,
    LogicalCall,
    candidates_of,
    model_request_hash,
)
from caseworker.models.client_bodies import ClientBody
from caseworker.models.completion import Completion, ModelAnswerIncomplete
from caseworker.models.embeddings import EmbeddingsCall
from caseworker.models.families import family_of
from caseworker.models.forms import ReplyForm, is_prose
from caseworker.models.maximum import Content, content_of_body, content_of_inputs
from caseworker.models.message_log import MessageLog, StoredPrompt, stated
from caseworker.models.model_call import ModelCall
from caseworker.models.ports import ModelFault, ModelRequest
from caseworker.models.pricing import ListPrice
from caseworker.models.relayed_call import RelayedCall, TokenCount
from caseworker.models.table import AllowedModels, ChatModel, ModelTable, Tier
from caseworker.models.turns import Turns
from caseworker.platform.fair_threads import PacedThread

log = structlog.get_logger(__name__)

__all__ = [
    "ChatModel",
    "Completion",
    "LogicalCall",
    "ModelAnswerIncomplete",
    "ModelGateway",
    "Tier",
]

_SIMPLER_FORM = frozenset({ModelFault.FORM_UNSUPPORTED, ModelFault.SCHEMA_REFUSED})
"""Failures that a simpler form may avoid."""

_EXHAUSTED = _SIMPLER_FORM | {
    ModelFault.UNAVAILABLE,
    ModelFault.MISCONFIGURED,
    ModelFault.UNREADABLE_REPLY,
    "TimeoutError",
}
"""Failures of a model after which its next fallback is called."""

ONE_API_CALL: Charge = {Dimension.API_CALLS: 1}

NAMED_ONLY = (
    "The request only names a document or an object at the provider, so that its largest possible"
    " size is reserved; sent inline, a document costs less."
)

_NOT_PARAMETERS = frozenset({"messages", "input", "system", "instructions", "model", "after"})
"""Fields of a client's body that the trace does not show as parameters."""
BYTES_PER_CHAR = 32
"""Bytes of a body that take as long to measure as one character takes to redact."""
LONG_BODY_BYTES = 256 * 1024
"""Size of bodies that are written in a thread."""


class ModelGateway:
    """Calls the configured models by name."""

    def __init__(
        self,
        models: ModelTable | Mapping[str, ChatModel],
        list_price: ListPrice,
        retry: RetryPolicy,
        payloads: Payloads = REDACTED,
        turns: Turns | None = None,
        *,
        recorded_embeddings_bytes: int | None = None,
    ) -> None:
        """Create a gateway for these models; ``payloads`` decides how traces store prompts.

        A run records up to ``recorded_embeddings_bytes`` of vectors; None means none.
        Calls to rate-limited models wait for a slot from ``turns``.
        """
        self.table = models if isinstance(models, ModelTable) else ModelTable(models)
        self._turns = turns
        self._list_price = list_price
        self._retry = retry
        self._payloads = payloads
        self._recorded_embeddings_bytes = recorded_embeddings_bytes or 0
        self._redaction = PacedThread()
        self._learned: dict[Endpoint, ReplyForm] = {}
        """The strictest form known to work for an endpoint, by provider identity and model."""

    def display(self, value: Any) -> Any:
        """Return a JSON value as traces may show it."""
        return self._payloads.display(value)

    async def aclose(self) -> None:
        """Flush pending rate-limit updates and close the providers' connections."""
        if self._turns is not None:
            await self._turns.aclose()
        models = (model for first in self.table.values() for model in first.chain)
        for provider in {id(model.provider): model.provider for model in models}.values():
            await provider.aclose()

    async def complete(self, context: FlowContext, logical_call: LogicalCall) -> Completion:
        """Call a model; if it fails, call its fallbacks one after another.

        Raises:
            CallFailedError: every model failed after all retries; holds the last failure and the
                total number of attempts.
            ModelNotConfiguredError: the model is unknown, or the tenant may not use it.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        tier, model = logical_call.tier, logical_call.model
        table = self.table.restricted(context.run.services.get(AllowedModels))
        chain = table.chain(tier, model, logical_call.fallbacks)
        counts_for = table.tier_of(tier, model)
        charge: Charge = {**dict.fromkeys(table.counted(tier, model), 1), **logical_call.charge}
        original, path = logical_call.request(), context.path.call(logical_call.key)
        calls = context.run.calls
        attempts, failed_nodes = 0, tuple[str, ...]()
        later = [*candidates_of(chain, original, path, calls.journal, self._learned)]
        while True:
            candidate, *later = later
            call = await self._model_call(
                context,
                logical_call,
                candidate,
                original,
                key=candidate.key_below(path),
                per_call=NOTHING if failed_nodes else charge,
                metadata=candidate.metadata(counts_for, original),
                attempts_before=attempts,
            )
            try:
                answered = await calls.perform(
                    call, parent=context.trace_parent, scope=context.scope
                )
            except CallFailedError as failed:
                failed.attempts = attempts = attempts + failed.attempts
                failed_nodes += (failed.node_id,)
                later = [*self._candidates_after(failed, call, candidate, later)]
                if not later:
                    raise
                continue
            if call.prompt is not None:
                _note_stored(call.prompt, call, calls.journal)
            completion = call.completion(answered)
            if candidate.form is ReplyForm.SCHEMA and _is_all_prose(completion):
                self._learn_simpler(candidate, later)
            return replace(completion, failed=failed_nodes) if failed_nodes else completion

    async def _model_call(
        self,
        context: FlowContext,
        logical_call: LogicalCall,
        candidate: Candidate,
        original: ModelRequest,
        **about: Any,
    ) -> ModelCall:
        """Return the call of a candidate; ``about`` are further fields of it."""
        chat_model, request = candidate.model, candidate.request(original)
        messages = logical_call.messages
        is_log = isinstance(messages, MessageLog) and request.messages is original.messages
        prompt = cast("MessageLog", messages) if is_log else None
        call = ModelCall(
            kind="llm",
            name=logical_call.name,
            request_hash=model_request_hash(chat_model, request, prompt),
            trace_request=await self._request_for_trace(chat_model, request, prompt),
            request=request,
            prompt=prompt,
            wants_json=original.json_schema is not None,
            on_delta=logical_call.on_delta,
            **self._common_fields(context, chat_model),
            **about,
        )
        known_bytes = 0 if prompt is None else prompt.measured_bytes
        content = call.content
        if content is not None and content.text_bytes - known_bytes > LONG_BODY_BYTES:
            await asyncio.to_thread(getattr, content, "near_tokens")
        if call.cost is None:
            call.refuse_without_price(context.scope)
        return call

    def _common_fields(self, context: FlowContext, chat_model: ChatModel) -> dict[str, Any]:
        """Return the fields that all calls of a model have in common."""
        return {
            "model": chat_model.model,
            "chat_model": chat_model,
            "per_attempt": ONE_API_CALL,
            "retry": self._retry,
            "timeout_seconds": chat_model.timeout_seconds,
            "run": context.run,
            "list_price": self._list_price,
            "payloads": self._payloads,
            "turns": self._turns,
        }

    def _candidates_after(
        self,
        failed: CallFailedError,
        call: ModelCall,
        candidate: Candidate,
        later: Sequence[Candidate],
    ) -> Sequence[Candidate]:
        """Return the candidates to call after a failure; empty if none of them may succeed."""
        if failed.error_class in _SIMPLER_FORM and candidate.simpler_form(later) is not None:
            if failed.error_class == ModelFault.FORM_UNSUPPORTED:
                self._learn_simpler(candidate, later)
            return later
        fallbacks = [each for each in later if each.number > candidate.number]
        if not fallbacks or failed.error_class not in _EXHAUSTED:
            return ()
        log.warning(
            "model.fallback",
            tier=call.metadata.get("tier"),
            model=call.model,
            error_class=failed.error_class,
            error=str(failed),
            fallback=fallbacks[0].model.model,
        )
        return fallbacks

    def _learn_simpler(self, candidate: Candidate, later: Sequence[Candidate]) -> None:
        """Remember to start with the next simpler form at this endpoint, if there is one."""
        if (simpler := candidate.simpler_form(later)) is not None:
            self._learned[candidate.endpoint] = simpler

    async def relay(
        self, context: FlowContext, chat_model: ChatModel, client_body: ClientBody, **about: Any
    ) -> Answered:
        """Make the call of :meth:`relayed`, whose reply a relay passes on; return its result.

        Raises:
            CallFailedError: the call failed, and its retries are exhausted or it is not retryable.
            OutcomeUnknownError: an earlier attempt may have taken effect and must not be repeated.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        call = await self.relayed(context, chat_model, client_body, **about)
        call.relay.head.add_done_callback(partial(_forbid_repetition, call))
        try:
            return await context.calls.perform(
                call, parent=context.trace_parent, scope=context.scope
            )
        except BudgetExceededError as refused:
            raise explained(refused, call) from None

    async def relayed(
        self,
        context: FlowContext,
        chat_model: ChatModel,
        client_body: ClientBody,
        *,
        alias: str,
        key: str,
        stored: StoredPrompt | None = None,
        **about: Any,
    ) -> RelayedCall:
        """Return the call of a model with a body that a client wrote.

        ``alias`` is the configured name of the model. ``stored`` are the first messages of the
        body, if an earlier call has stored them. ``about`` are further fields of the call, such as
        ``body``, the body for the provider.
        """
        body: Mapping[str, Any] = about["body"]
        limits = [body[name] for name in about["limit_fields"] if body.get(name) is not None]
        call_type: Callable[..., RelayedCall] = RelayedCall
        if not (has_output := bool(about["limit_fields"])):
            max_bytes = self._recorded_embeddings_bytes
            call_type = partial(EmbeddingsCall, max_recorded_bytes=max_bytes)
        limit = max(limits, default=None if has_output else 0)
        call = call_type(
            key=context.path.call("llm", key),
            kind="llm",
            name="llm" if has_output else "embeddings",
            per_call=dict.fromkeys(self.table.counted(Tier.SMALL, alias), 1),
            metadata={"provider": chat_model.provider.name, "alias": alias},
            content=await self._content(client_body, chat_model, has_output=has_output),
            trace_request=await self._body_for_trace(client_body, body, stored),
            request=ModelRequest(messages=(), max_output_tokens=limit),
            is_bounded=context.scope.limits_spending(),
            is_long=client_body.written_bytes > LONG_BODY_BYTES,
            **self._common_fields(context, chat_model),
            **about,
        )
        if call.cost is None:
            call.refuse_without_price(context.scope)
        return call

    async def _content(
        self, client_body: ClientBody, chat_model: ChatModel, *, has_output: bool
    ) -> Content:
        """Return the content of a client's body for a model; a long one is measured in a thread."""
        family, size_bytes = family_of(chat_model.model), client_body.written_bytes
        measure = partial(content_of_inputs, client_body, family)
        if has_output:
            largest = chat_model.max_image_tokens or family.largest_image_tokens
            measure = partial(content_of_body, client_body, family, largest_image_tokens=largest)
        content = await self._redaction.call(measure, size_bytes // BYTES_PER_CHAR)
        if size_bytes > LONG_BODY_BYTES:
            await asyncio.to_thread(getattr, content, "near_tokens")
        return content

    async def _body_for_trace(
        self, client_body: ClientBody, body: Mapping[str, Any], stored: StoredPrompt | None
    ) -> Mapping[str, Any] | None:
        """Return a client's body as the trace stores it, without the messages of ``stored``."""
        added = client_body.messages[stored.messages if stored else 0 :]
        if stored is not None and stored.parameters == client_body.hashes:
            parameters, chars = dict[str, Any](), self._payloads.chars_to_redact(added)
        else:
            parameters = {name: it for name, it in body.items() if name not in _NOT_PARAMETERS}
            chars = client_body.written_bytes // BYTES_PER_CHAR
        redact = partial(self._payloads.prompt, added, parameters)
        return _after(stored, await self._redaction.call(redact, chars))

    def token_count(
        self, context: FlowContext, chat_model: ChatModel, *, key: str, **about: Any
    ) -> TokenCount:
        """Return the call that counts the tokens of a client's body; see :class:`TokenCount`.

        ``about`` are further fields of the call.
        """
        return TokenCount(
            key=context.path.call("count", key),
            kind="system",
            name="count_tokens",
            model=chat_model.model,
            request_hash=key,
            per_attempt=ONE_API_CALL,
            retry=replace(self._retry, max_retries=0),
            timeout_seconds=chat_model.timeout_seconds,
            chat_model=chat_model,
            tenant=context.run.tenant,
            turns=self._turns,
            **about,
        )

    async def _request_for_trace(
        self, chat_model: ChatModel, request: ModelRequest, log: MessageLog | None
    ) -> Mapping[str, Any] | None:
        """Return the request as the trace stores it; for a conversation, only the new messages."""
        stored = None if log is None else log.stored
        added = request.messages[stored.messages if stored else 0 :]
        if stored is None:
            messages = list(stated(added))
        else:
            messages = [message.reference or message.to_json() for message in added]
        parameters = _parameters(chat_model, request)
        same = stored is not None and stored.parameters == parameters
        redact = partial(self._payloads.prompt, messages, {} if same else parameters)
        size = self._payloads.chars_to_redact(messages)
        return _after(stored, await self._redaction.call(redact, size))


def explained(refused: Stop, call: ModelCall) -> Stop:
    """Return the refusal of a call; it says so if the call reserves a whole context window."""
    if call.content is None or not call.content.fills_context:
        return refused
    return Stop(replace(refused.cause, reason=f"{refused}. {NAMED_ONLY}"))


def _note_stored(prompt: MessageLog, call: ModelCall, journal: Journal) -> None:
    """Record in the log of a call's messages that the journal has them."""
    before = journal.recorded(call.key.text)
    if before is None or before.request_hash == call.request_hash:
        parameters = _parameters(call.chat_model, call.request)
        prompt.note_stored(call.key.text, len(call.request.messages), parameters)


def _forbid_repetition(call: RelayedCall, _: object) -> None:
    """Repeat no call whose reply has begun: the client would get parts of two replies."""
    call.repeatable = False


def _after(
    stored: StoredPrompt | None, displayed: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return a shown request with a reference to the messages that are stored before it."""
    if stored is None or displayed is None:
        return displayed
    return {**displayed, "after": {"call_key": stored.call_key, "messages": stored.messages}}


def _parameters(chat_model: ChatModel, request: ModelRequest) -> Mapping[str, Any]:
    """Return the request parameters that a trace shows in addition to the messages."""
    is_external = chat_model.provider.external
    return {
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "json_schema": request.json_schema if is_external else None,  # other providers ignore it
        "tools": [tool.name for tool in request.tools] if request.tools else None,
    }


def _is_all_prose(completion: Completion) -> bool:
    """Return whether a complete answer contains no JSON and requests no tool."""
    is_complete = completion.incomplete is None and not completion.tool_calls
    return is_complete and is_prose(completion.text)
