"""How agents ask models: by name, through the run's call gateway, metered.

A *logical call* is one question to a model and counts once. It may take several exchanges: a model
that does not support a form of structured output is asked again in a simpler one, and when a model
cannot answer at all, its next fallback is asked. Each exchange is a call of its own, with
its own retries, estimate and price, so the trace shows which models were asked and what that cost.
What the process has learned about an endpoint never contradicts a journal: a run that is executed
again starts with the form that its own journal holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from caseworker.control.budget import Amount, Dimension
from caseworker.control.retry import RetryPolicy
from caseworker.control.usage import NOTHING, Charge
from caseworker.engine.call import CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from caseworker.engine.step_path import StepPath
from caseworker.llm.completion import Completion, ModelAnswerIncomplete
from caseworker.llm.exchange import Exchange, Exchanges, OnDelta
from caseworker.llm.forms import ReplyForm, forms_for, in_form, is_prose
from caseworker.llm.message_log import MessageLog
from caseworker.llm.ports import Message, ModelFault, ModelRequest, ToolDefinition
from caseworker.llm.pricing import ListPrice
from caseworker.llm.table import CALLS_OF, AllowedModels, ChatModel, ModelTable, Tier
from caseworker.llm.turns import Turns
from caseworker.trace.payloads import REDACTED, Payloads

log = structlog.get_logger(__name__)

__all__ = ["ChatModel", "Completion", "ModelAnswerIncomplete", "ModelGateway", "Tier"]

_SIMPLER_FORM = frozenset({ModelFault.FORM_UNSUPPORTED, ModelFault.SCHEMA_REFUSED})
"""Failures of one form that a simpler one need not have."""

_EXHAUSTED = _SIMPLER_FORM | {
    ModelFault.UNAVAILABLE,
    ModelFault.MISCONFIGURED,
    ModelFault.UNREADABLE_REPLY,
    "TimeoutError",
}
"""Failures of one model that another one need not have."""


@dataclass(slots=True, kw_only=True)
class _LogicalCall:
    """One question to a model and its progress."""

    context: FlowContext
    tier: Tier | None
    """For which it counts."""
    name: str
    key: StepPath
    log: MessageLog | None
    request: ModelRequest
    """As it was asked for, whichever model answers it."""
    on_delta: OnDelta | None
    once: Mapping[Dimension, Amount]
    """Still to be charged; nothing once the first exchange was made."""
    attempts: int = 0
    failed: tuple[str, ...] = ()
    """The CallNodes of the calls that have failed."""

    def key_of(self, number: int, form: ReplyForm) -> StepPath:
        """Return the path of the question to the ``number``-th model, from 0, in one form."""
        key = self.key.call("fallback", number) if number else self.key
        return key if form is ReplyForm.SCHEMA else key.call(form.value)

    def exchange(self, chosen: ChatModel, number: int, form: ReplyForm) -> Exchange:
        """Return the question to the ``number``-th model, from 0, in one form."""
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
        """Return what gets the parts of a further exchange: its attempts count on."""
        if (on_delta := self.on_delta) is None:
            return None
        before = self.attempts
        return lambda attempt, delta: on_delta(before + attempt, delta)


class ModelGateway:
    """Asks the configured models."""

    def __init__(
        self,
        models: ModelTable | Mapping[str, ChatModel],
        list_price: ListPrice,
        retry: RetryPolicy,
        payloads: Payloads = REDACTED,
        turns: Turns | None = None,
    ) -> None:
        """Ask these models by their names; traces keep of prompts what ``payloads`` says.

        Models whose use is limited are asked when it is the caller's turn among ``turns``.
        """
        self.table = models if isinstance(models, ModelTable) else ModelTable(models)
        self._turns = turns
        self._exchanges = Exchanges(list_price, retry, payloads, turns)
        self._learned: dict[tuple[int, str], ReplyForm] = {}
        """The best form that an endpoint was found to have, by provider and model."""

    async def aclose(self) -> None:
        """Close the providers' connections."""
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
        """Ask a model and its fallbacks; ``max_output_tokens`` can only narrow what is configured.

        ``name`` is what the trace calls it; ``key`` is its path inside the step, the same whenever
        the run is executed again. ``on_delta`` asks for a stream: it gets each part of the reply as
        it comes, with the number of the attempt, from 1; a later attempt begins the reply anew, and
        a replayed call has no parts. ``temperature`` takes the place of the configured one.
        ``model`` names the model that is asked first, left out that of the tier; ``fallbacks`` name
        those that are asked next, before those of the configuration. A name is one of the table, or
        that of a provider for a model of the tier.
        ``charge`` is charged once with the call.
        Of ``messages`` that are a ``MessageLog``, a call stores and hashes only what it adds.

        Raises:
            CallFailedError: no model has answered, retries included; it holds the last failure and
                the number of all attempts.
            ModelNotConfiguredError: there is no such model, or the tenant may not use it.
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
        """Ask one model, in a simpler form where it does not support a better one."""
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
        """Return the forms to try, starting with the one that the run or the process arrived at."""
        if asked.request.json_schema is None:
            return (ReplyForm.SCHEMA,)
        forms = forms_for(chosen.structured_output, asked.request.json_schema)
        for at in reversed(range(len(forms))):
            # An earlier execution of the run may have asked this already.
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
