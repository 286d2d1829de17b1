"""Calls models by name through the run's call gateway, with retries, fallbacks and charges.

A *logical call* is one request by an agent or step and is counted once. It may need several calls,
one for each *candidate*: a model in one structured-output mode. If a model does not support a mode,
the next candidate is the same model in a simpler mode. If a model fails, it is the next fallback.
Each call has its own retries, estimate and price, so the trace shows which models were called at
which cost.

A process remembers which structured-output mode works for an endpoint. This never overrides a
journal: a run that is executed again starts with the mode that its own journal contains.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.retry import RetryPolicy
from caseworker.core.budget.stops import Stop
from caseworker.core.budget.usage import NOTHING, BudgetExceededError, Charge
from caseworker.core.trace.payloads import REDACTED, Payloads
from caseworker.engine.call import Answered, CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import HASH_CHARS, CallOutcome, Journal
from caseworker.engine.step_path import StepPath
from caseworker.models.client_bodies import ClientBody
from caseworker.models.completion import Completion, ModelAnswerIncomplete
from caseworker.models.embeddings import EmbeddingsCall
from caseworker.models.families import family_of
from caseworker.models.forms import ReplyForm, StatedSchema, forms_for, in_form, is_prose
from caseworker.models.maximum import content_of_body, content_of_inputs
from caseworker.models.message_log import MessageLog, StoredPrompt, stated
from caseworker.models.model_call import ModelCall, OnDelta
from caseworker.models.ports import Message, ModelFault, ModelRequest, ToolDefinition
from caseworker.models.pricing import ListPrice
from caseworker.models.relay import RelayedCall, TokenCount
from caseworker.models.table import CALLS_OF, AllowedModels, ChatModel, ModelTable, Tier
from caseworker.models.turns import Turns
from caseworker.platform.fair_threads import PacedThread

log = structlog.get_logger(__name__)

__all__ = ["ChatModel", "Completion", "ModelAnswerIncomplete", "ModelGateway", "Tier"]

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


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A model that may answer, and the structured-output mode in which to call it."""

    number: int
    """Position of the model in its chain, from 0. Models after the first are fallbacks."""
    model: ChatModel
    form: ReplyForm

    @property
    def endpoint(self) -> tuple[int, str]:
        """Identity of the provider, and the model."""
        return id(self.model.provider), self.model.model

    def key_below(self, key: StepPath) -> StepPath:
        """Return the path of the call within the path of the logical call."""
        key = key.call("fallback", self.number) if self.number else key
        return key if self.form is ReplyForm.SCHEMA else key.call(self.form.value)

    def request(self, original: ModelRequest) -> ModelRequest:
        """Adapt the original request to the model and the mode."""
        limit = self.model.max_output_tokens
        completed = replace(
            original,
            max_output_tokens=min(limit, original.max_output_tokens or limit),
            temperature=self.model.temperature
            if original.temperature is None
            else original.temperature,
            timeout_seconds=self.model.timeout_seconds,
        )
        return completed if self.form is ReplyForm.SCHEMA else in_form(completed, self.form)

    def metadata(self, tier: Tier | None, original: ModelRequest) -> dict[str, Any]:
        """Return the metadata of the call's node."""
        metadata: dict[str, Any] = {} if tier is None else {"tier": tier.value}
        metadata["provider"] = self.model.provider.name
        if self.model.name is not None and self.model.name not in CALLS_OF:
            metadata["alias"] = self.model.name
        if original.json_schema is not None:
            metadata["structured_output"] = self.form.value
        if self.number:
            metadata["fallback"] = self.number
        return metadata


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
        self._learned: dict[tuple[int, str], ReplyForm] = {}
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

    async def complete(
        self,
        context: FlowContext,
        *,
        tier: Tier = Tier.SMALL,
        name: str,
        key: str,
        messages: Sequence[Message],
        json_schema: Mapping[str, Any] | None = None,
        seed: int | None = None,
        max_output_tokens: int | None = None,
        tools: Sequence[ToolDefinition] = (),
        on_delta: OnDelta | None = None,
        temperature: float | None = None,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        charge: Charge = NOTHING,
    ) -> Completion:
        """Call a model; if it fails, call its fallbacks one after another.

        ``name`` is the name of the call in the trace. ``key`` identifies the call inside the step
        and is the same each time the run is executed. ``max_output_tokens`` can only lower the
        model's configured limit. ``temperature`` overrides the configured one.

        ``on_delta`` requests a stream. It is invoked for each part of the reply with the attempt
        number, which starts at 1. A later attempt starts the reply again. A replayed call streams
        no parts.

        ``model`` is the first model to call; by default it is the tier's model. ``fallbacks`` are
        called next, before the configured fallbacks. A name is either a key of the model table or a
        model name of the tier's provider.

        ``charge`` is charged once, regardless of the number of attempts.

        If ``messages`` is a ``MessageLog``, each call stores and hashes only the messages added
        since the previous call.

        Raises:
            CallFailedError: every model failed after all retries; holds the last failure and the
                total number of attempts.
            ModelNotConfiguredError: the model is unknown, or the tenant may not use it.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        table = self.table.restricted(context.run.services.get(AllowedModels))
        chain, counts_for = table.chain(tier, model, fallbacks), table.tier_of(tier, model)
        per_call: Charge = {**dict.fromkeys(table.counted(tier, model), 1), **charge}
        path, log_of_all = context.path.call(key), _log_of(messages)
        original = ModelRequest(
            messages=tuple(messages),
            json_schema=json_schema,
            tools=tuple(tools),
            seed=seed,
            temperature=temperature,
            max_output_tokens=max_output_tokens,
        )
        calls, journal = context.run.calls, context.run.calls.journal
        attempts, failed_nodes = 0, tuple[str, ...]()
        candidates = [*self._candidates(chain, original, path, journal)]
        while True:
            candidate, *candidates = candidates
            simpler = (
                candidates[0].form
                if candidates and candidates[0].number == candidate.number
                else None
            )
            chat_model, request = candidate.model, candidate.request(original)
            prompt = log_of_all if request.messages is original.messages else None
            parameters = _parameters(request, external=chat_model.provider.external)
            call = ModelCall(
                key=candidate.key_below(path),
                kind="llm",
                name=name,
                model=chat_model.model,
                request_hash=model_request_hash(chat_model, request, prompt),
                per_call=per_call,
                per_attempt=ONE_API_CALL,
                retry=self._retry,
                timeout_seconds=chat_model.timeout_seconds,
                metadata=candidate.metadata(counts_for, original),
                trace_request=await self._request_for_trace(request, parameters, prompt),
                chat_model=chat_model,
                request=request,
                prompt=prompt,
                wants_json=json_schema is not None,
                run=context.run,
                list_price=self._list_price,
                payloads=self._payloads,
                turns=self._turns,
                on_delta=on_delta,
                attempts_before=attempts,
            )
            known_bytes = 0 if prompt is None else prompt.measured_bytes
            content = call.content
            if content is not None and content.text_bytes - known_bytes > LONG_BODY_BYTES:
                await asyncio.to_thread(getattr, content, "near_tokens")
            if call.cost is None:
                call.refuse_without_price(context.scope)
            try:
                answered = await calls.perform(
                    call, parent=context.trace_parent, scope=context.scope
                )
            except CallFailedError as failed:
                per_call, attempts = NOTHING, attempts + failed.attempts
                failed_nodes += (failed.node_id,)
                if simpler is not None and failed.error_class in _SIMPLER_FORM:
                    if failed.error_class == ModelFault.FORM_UNSUPPORTED:
                        self._learned[candidate.endpoint] = simpler
                    continue
                candidates = [each for each in candidates if each.number > candidate.number]
                if not candidates or failed.error_class not in _EXHAUSTED:
                    failed.attempts = attempts
                    raise
                log.warning(
                    "model.fallback",
                    tier=None if counts_for is None else counts_for.value,
                    model=chat_model.model,
                    error_class=failed.error_class,
                    error=str(failed),
                    fallback=candidates[0].model.model,
                )
                continue
            if prompt is not None:
                before = journal.recorded(call.key.text)
                if before is None or before.request_hash == call.request_hash:
                    prompt.note_stored(call.key.text, len(request.messages), parameters)
            completion = call.completion(answered)
            if (
                simpler is not None
                and candidate.form is ReplyForm.SCHEMA
                and _is_all_prose(completion)
            ):
                self._learned[candidate.endpoint] = simpler
            return replace(completion, failed=failed_nodes) if failed_nodes else completion

    async def relay(self, context: FlowContext, chat_model: ChatModel, **about: Any) -> Answered:
        """Make the call of :meth:`relayed`, whose reply a relay passes on; return its result.

        Raises:
            CallFailedError: the call failed, and its retries are exhausted or it is not retryable.
            OutcomeUnknownError: an earlier attempt may have taken effect and must not be repeated.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        call = await self.relayed(context, chat_model, **about)
        call.relay.head.add_done_callback(partial(_forbid_repetition, call))
        try:
            return await context.calls.perform(
                call, parent=context.trace_parent, scope=context.scope
            )
        except BudgetExceededError as refused:
            if call.content is None or not call.content.fills_context:
                raise
            reason = f"{refused}. {NAMED_ONLY}"
            raise Stop(replace(refused.cause, reason=reason)) from None

    async def relayed(
        self,
        context: FlowContext,
        chat_model: ChatModel,
        *,
        alias: str,
        key: str,
        body: ClientBody,
        provider_body: Mapping[str, Any],
        stored: StoredPrompt | None = None,
        **about: Any,
    ) -> RelayedCall:
        """Return the call of a model with a body that a client wrote.

        ``alias`` is the configured name of the model. ``provider_body`` is the body for the
        provider, and ``about`` are further fields of the call. ``stored`` are the first messages of
        the body, if an earlier call has stored them.
        """
        limits = [
            provider_body[name]
            for name in about["limit_fields"]
            if provider_body.get(name) is not None
        ]
        has_output = bool(about["limit_fields"])
        limit = max(limits, default=None if has_output else 0)
        table, limits_only = self.table, ModelRequest(messages=(), max_output_tokens=limit)
        family = family_of(chat_model.model)
        measure = partial(content_of_inputs, body, family)
        call_type: Callable[..., RelayedCall] = partial(
            EmbeddingsCall, max_recorded_bytes=self._recorded_embeddings_bytes
        )
        if has_output:
            largest_image = chat_model.max_image_tokens or family.largest_image_tokens
            measure = partial(content_of_body, body, family, largest_image_tokens=largest_image)
            call_type = RelayedCall
        size = body.written_bytes // BYTES_PER_CHAR
        content = await self._redaction.call(measure, size)
        if body.written_bytes > LONG_BODY_BYTES:
            await asyncio.to_thread(getattr, content, "near_tokens")
        trace_parameters = {
            name: it for name, it in provider_body.items() if name not in _NOT_PARAMETERS
        }
        added = body.messages[stored.messages if stored else 0 :]
        same = stored is not None and stored.parameters == body.hashes
        redact = partial(self._payloads.prompt, added, {} if same else trace_parameters)
        chars = self._payloads.chars_to_redact(added) if same else size
        displayed = await self._redaction.call(redact, chars)
        call = call_type(
            key=context.path.call("llm", key),
            kind="llm",
            name="llm" if has_output else "embeddings",
            model=chat_model.model,
            per_call=dict.fromkeys(table.counted(Tier.SMALL, alias), 1),
            per_attempt=ONE_API_CALL,
            retry=self._retry,
            timeout_seconds=chat_model.timeout_seconds,
            metadata={"provider": chat_model.provider.name, "alias": alias},
            trace_request=_after(stored, displayed),
            chat_model=chat_model,
            request=limits_only,
            content=content,
            is_bounded=context.scope.limits_spending(),
            run=context.run,
            list_price=self._list_price,
            payloads=self._payloads,
            turns=self._turns,
            body=provider_body,
            is_long=body.written_bytes > LONG_BODY_BYTES,
            **about,
        )
        if call.cost is None:
            call.refuse_without_price(context.scope)
        return call

    def token_count(
        self,
        context: FlowContext,
        chat_model: ChatModel,
        *,
        key: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        path: str,
        is_superseded: Callable[[], bool],
    ) -> TokenCount:
        """Return the call that counts the tokens of a client's body; see :class:`TokenCount`."""
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
            body=body,
            headers=headers,
            path=path,
            tenant=context.run.tenant,
            turns=self._turns,
            is_superseded=is_superseded,
        )

    def _candidates(
        self,
        models: Sequence[ChatModel],
        original: ModelRequest,
        path: StepPath,
        journal: Journal,
    ) -> Iterator[_Candidate]:
        """Yield each model in the modes to try, from the one that the journal or this process uses.

        Without a schema, a model has a single candidate.
        """
        for number, model in enumerate(models):
            if original.json_schema is None:
                yield _Candidate(number, model, ReplyForm.SCHEMA)
                continue
            forms = forms_for(model.structured_output, original.json_schema)
            of_model = [_Candidate(number, model, form) for form in forms]
            best = self._learned.get(of_model[0].endpoint)
            accepted = [
                each for each in of_model if best is None or each.form.simplicity >= best.simplicity
            ]
            yield from _from_recorded(of_model, original, path, journal) or accepted or of_model

    async def _request_for_trace(
        self,
        request: ModelRequest,
        parameters: Mapping[str, Any],
        log: MessageLog | None,
    ) -> Mapping[str, Any] | None:
        """Return the request as the trace stores it; for a conversation, only the new messages."""
        stored = None if log is None else log.stored
        added = request.messages[stored.messages if stored else 0 :]
        if stored is None:
            messages = list(stated(added))
        else:
            messages = [message.reference or message.to_json() for message in added]
        same = stored is not None and stored.parameters == parameters
        redact = partial(self._payloads.prompt, messages, {} if same else parameters)
        size = self._payloads.chars_to_redact(messages)
        displayed = await self._redaction.call(redact, size)
        return _after(stored, displayed)


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


def model_request_hash(chat_model: ChatModel, request: ModelRequest, log: MessageLog | None) -> str:
    """Return a hash of the request, which prevents replaying the reply to a different request.

    The hash is a prefix of the SHA-256 of a JSON document. A message log supplies the hash state
    for the messages that it has already hashed.
    """
    schema = request.json_schema
    identity: dict[str, Any] = {
        "provider": chat_model.provider.name,
        "model": chat_model.model,
        "schema": schema.digest if isinstance(schema, StatedSchema) else schema,
        "seed": request.seed,
    }
    if request.temperature != chat_model.temperature:
        identity["temperature"] = request.temperature
    rest = json.dumps(identity, sort_keys=True)[1:-1]
    if request.tools:  # "tools" is the last name in sorted order
        rest += f', "tools": [{", ".join([tool.form(_canonical) for tool in request.tools])}]'
    head = f'{{"max_output_tokens": {json.dumps(request.max_output_tokens)}, "messages": ['
    if log is None:
        message_texts = ", ".join([message.canonical_json() for message in request.messages])
        hasher = hashlib.sha256(f"{head}{message_texts}".encode())
    else:
        hasher = log.hashed(head, len(request.messages))
    hasher.update(f"], {rest}}}".encode())
    return hasher.hexdigest()[:HASH_CHARS]


def _canonical(tool: ToolDefinition) -> str:
    return json.dumps(tool.to_json(), sort_keys=True)


def _from_recorded(
    candidates: Sequence[_Candidate], original: ModelRequest, path: StepPath, journal: Journal
) -> Sequence[_Candidate]:
    """Return the candidates from the simplest one that an earlier execution of the run called.

    Returns an empty list if it called none of them with the same request.
    """
    for at in reversed(range(len(candidates))):
        candidate = candidates[at]
        before = journal.recorded(candidate.key_below(path).text)
        if before is None or before.outcome is CallOutcome.NOT_MADE:
            continue
        request = candidate.request(original)
        if before.imported or before.request_hash == model_request_hash(
            candidate.model, request, None
        ):
            return candidates[at:]
    return ()


def _parameters(request: ModelRequest, *, external: bool) -> Mapping[str, Any]:
    """Return the request parameters that a trace shows in addition to the messages."""
    return {
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "json_schema": request.json_schema if external else None,  # other providers ignore it
        "tools": [tool.name for tool in request.tools] if request.tools else None,
    }


def _log_of(messages: Sequence[Message]) -> MessageLog | None:
    return messages if isinstance(messages, MessageLog) else None


def _is_all_prose(completion: Completion) -> bool:
    """Return whether a complete answer contains no JSON and requests no tool."""
    is_complete = completion.incomplete is None and not completion.tool_calls
    return is_complete and is_prose(completion.text)
