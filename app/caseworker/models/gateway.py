"""Calls models by name through the run's call gateway, with retries, fallbacks and charges.

A *logical call* is one request by an agent or step and is counted once. It may need several
exchanges. If a model does not support a structured-output mode, the request is repeated in a
simpler one. If a model fails, its next fallback is called. Each exchange is a separate call with
its own retries, estimate and price, so the trace shows which models were called at which cost.

A process remembers which structured-output mode works for an endpoint. This never overrides a
journal: a run that is executed again starts with the mode that its own journal contains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.retry import RetryPolicy
from caseworker.core.budget.usage import NOTHING, Charge
from caseworker.core.trace.payloads import REDACTED, Payloads
from caseworker.engine.call import CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from caseworker.engine.step_path import StepPath
from caseworker.models.completion import Completion, ModelAnswerIncomplete
from caseworker.models.exchange import Exchange, Exchanges, OnDelta
from caseworker.models.forms import ReplyForm, forms_for, in_form, is_prose
from caseworker.models.message_log import MessageLog
from caseworker.models.ports import Message, ModelFault, ModelRequest, ToolDefinition
from caseworker.models.pricing import ListPrice
from caseworker.models.table import CALLS_OF, AllowedModels, ChatModel, ModelTable, Tier
from caseworker.models.turns import Turns

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


@dataclass(slots=True, kw_only=True)
class _LogicalCall:
    """A logical call in progress."""

    context: FlowContext
    tier: Tier | None
    """The tier whose calls are counted; None if the model belongs to no tier."""
    name: str
    key: StepPath
    log: MessageLog | None
    request: ModelRequest
    """The original request, before it is adapted to a model and a form."""
    on_delta: OnDelta | None
    once: Mapping[Dimension, Amount]
    """Charges due with the next exchange; empty after the first one."""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """The call nodes of failed exchanges."""

    def key_of(self, number: int, form: ReplyForm) -> StepPath:
        """Return the call path for the model at index ``number`` in one reply form."""
        key = self.key.call("fallback", number) if number else self.key
        return key if form is ReplyForm.SCHEMA else key.call(form.value)

    def exchange(self, chosen: ChatModel, number: int, form: ReplyForm) -> Exchange:
        """Build the request for the model at index ``number`` in one reply form."""
        asked = self.request
        longest, temperature = asked.max_output_tokens, asked.temperature
        whole = replace(
            asked,
            max_output_tokens=min(chosen.max_output_tokens, longest or chosen.max_output_tokens),
            temperature=chosen.temperature if temperature is None else temperature,
            timeout_seconds=chosen.timeout_seconds,
        )
        metadata = {"provider": chosen.provider.name}
        if self.tier is not None:
            metadata = {"tier": self.tier.value, **metadata}
        if chosen.name is not None and chosen.name not in CALLS_OF:
            metadata["alias"] = chosen.name
        if asked.json_schema is not None:
            metadata["structured_output"] = form.value
        request = in_form(whole, form)
        return Exchange(
            model=chosen,
            request=request,
            log=self.log if request.messages is asked.messages else None,
            name=self.name,
            key=self.key_of(number, form),
            metadata={**metadata, "fallback": number} if number else metadata,
            wants_json=asked.json_schema is not None,
        )

    def on_delta_from_here(self) -> OnDelta | None:
        """Return a callback for the next exchange that continues the numbering of attempts."""
        if (on_delta := self.on_delta) is None:
            return None
        before = self.attempts
        return lambda attempt, delta: on_delta(before + attempt, delta)


class ModelGateway:
    """Calls the configured models by name."""

    def __init__(
        self,
        models: ModelTable | Mapping[str, ChatModel],
        list_price: ListPrice,
        retry: RetryPolicy,
        payloads: Payloads = REDACTED,
        turns: Turns | None = None,
    ) -> None:
        """Create a gateway for these models; ``payloads`` decides how traces store prompts.

        Calls to rate-limited models wait for a slot from ``turns``.
        """
        self.table = models if isinstance(models, ModelTable) else ModelTable(models)
        self._turns = turns
        self._exchanges = Exchanges(list_price, retry, payloads, turns)
        self._learned: dict[tuple[int, str], ReplyForm] = {}
        """The strictest form known to work for an endpoint, by provider identity and model."""

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
        table = self.table.restricted(context.services.get(AllowedModels))
        models = list(enumerate(table.chain(tier, model, fallbacks)))
        counts_for = table.tier_of(tier, model)
        asked = _LogicalCall(
            context=context,
            tier=counts_for,
            name=name,
            key=context.path.call(key),
            log=messages if isinstance(messages, MessageLog) else None,
            request=ModelRequest(
                messages=tuple(messages),
                json_schema=json_schema,
                tools=tuple(tools),
                seed=seed,
                temperature=temperature,
                max_output_tokens=max_output_tokens,
            ),
            on_delta=on_delta,
            once={**dict.fromkeys(table.counted(tier, model), 1), **charge},
        )
        while True:
            number, chosen = models.pop(0)
            try:
                return await self._ask(asked, chosen, number)
            except CallFailedError as failed:
                if models and failed.error_class in _EXHAUSTED:
                    log.warning(
                        "model.fallback",
                        tier=None if counts_for is None else counts_for.value,
                        model=chosen.model,
                        error_class=failed.error_class,
                        error=str(failed),
                        fallback=models[0][1].model,
                    )
                    continue
                failed.attempts = asked.attempts
                raise

    async def _ask(self, asked: _LogicalCall, chosen: ChatModel, number: int) -> Completion:
        """Call one model, retrying in a simpler form if it does not support the current one."""
        forms = list(self._forms_for(asked, chosen, number))
        while True:
            form = forms.pop(0)
            exchange = asked.exchange(chosen, number, form)
            once, asked.once = asked.once, {}
            try:
                completion = await self._exchanges.perform(
                    exchange, asked.context, once=once, on_delta=asked.on_delta_from_here()
                )
            except CallFailedError as failed:
                asked.attempts += failed.attempts
                asked.failed += (failed.node_id,)
                if not forms or failed.error_class not in _SIMPLER_FORM:
                    raise
                if failed.error_class == ModelFault.FORM_UNSUPPORTED:
                    self._learned[_endpoint(chosen)] = forms[0]
            else:
                whole = completion.incomplete is None and not completion.tool_calls
                prose = whole and is_prose(completion.text)
                if forms and form is ReplyForm.SCHEMA and prose:
                    self._learned[_endpoint(chosen)] = forms[0]
                return replace(completion, failed=asked.failed) if asked.failed else completion

    def _forms_for(
        self, asked: _LogicalCall, chosen: ChatModel, number: int
    ) -> Sequence[ReplyForm]:
        """Return the forms to try, from the one that the journal or this process has settled on."""
        if asked.request.json_schema is None:
            return (ReplyForm.SCHEMA,)
        forms = forms_for(chosen.structured_output, asked.request.json_schema)
        for at in reversed(range(len(forms))):
            # An earlier execution of the run may have journaled this request.
            before = asked.context.calls.journal.recorded(asked.key_of(number, forms[at]).text)
            if before is None or before.outcome is CallOutcome.NOT_MADE:
                continue
            same = asked.exchange(chosen, number, forms[at]).request_hash
            if before.taken_over or before.request_hash == same:
                return forms[at:]
        best = self._learned.get(_endpoint(chosen))
        known = [form for form in forms if best is None or form.simplicity >= best.simplicity]
        return known or forms


def _endpoint(chosen: ChatModel) -> tuple[int, str]:
    return id(chosen.provider), chosen.model
