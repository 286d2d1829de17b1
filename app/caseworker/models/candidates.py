"""The candidates of a logical call: the models that may answer it, each in one reply form.

A *logical call* is one request by an agent or step and is counted once. It may need several calls,
one for each *candidate*: a model in one structured-output mode. If a model does not support a mode,
the next candidate is the same model in a simpler mode. If a model fails, it is the next fallback.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caseworker.core.budget.usage import Charge
from caseworker.engine.ports import HASH_CHARS, CallOutcome, Journal
from caseworker.engine.step_path import StepPath
from caseworker.models.forms import ReplyForm, StatedSchema, forms_for, in_form
from caseworker.models.message_log import MessageLog
from caseworker.models.model_call import OnDelta
from caseworker.models.ports import Message, ModelRequest, ToolDefinition
from caseworker.models.table import CALLS_OF, ChatModel, Tier

Endpoint = tuple[int, str]
"""Identity of a provider, and the name of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalCall:
    """One request by an agent or step to a model and its fallbacks."""

    name: str
    """Name of the call in the trace."""
    key: str
    """Identifies the call inside the step, and is the same each time the run is executed."""
    messages: Sequence[Message]
    """If it is a ``MessageLog``, each call stores and hashes only the messages added since the
    previous call."""
    tier: Tier = Tier.SMALL
    model: str | None = None
    """The first model to call; None is the tier's model. It is a key of the model table or a model
    name of the tier's provider."""
    fallbacks: Sequence[str] = ()
    """Models to call next, before the configured fallbacks."""
    json_schema: Mapping[str, Any] | None = None
    tools: Sequence[ToolDefinition] = ()
    seed: int | None = None
    max_output_tokens: int | None = None
    """It can only lower the model's configured limit."""
    temperature: float | None = None
    """Replaces the configured temperature."""
    on_delta: OnDelta | None = None
    """Requests a stream. It is invoked for each part of the reply with the attempt number, which
    starts at 1. A later attempt starts the reply again. A replayed call streams no parts."""
    charge: Charge = field(default_factory=dict)
    """Charged once, regardless of the number of attempts."""

    def request(self) -> ModelRequest:
        """Return the request, before it is adapted to a model."""
        return ModelRequest(
            messages=tuple(self.messages),
            json_schema=self.json_schema,
            tools=tuple(self.tools),
            seed=self.seed,
            temperature=self.temperature,
            max_output_tokens=self.max_output_tokens,
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may answer, and the structured-output mode in which to call it."""

    number: int
    """Position of the model in its chain, from 0. Models after the first are fallbacks."""
    model: ChatModel
    form: ReplyForm

    @property
    def endpoint(self) -> Endpoint:
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

    def simpler_form(self, later: Sequence["Candidate"]) -> ReplyForm | None:
        """Return the form of the same model that is next among ``later``; None if none is."""
        is_same = bool(later) and later[0].number == self.number
        return later[0].form if is_same else None


def candidates_of(
    models: Sequence[ChatModel],
    original: ModelRequest,
    path: StepPath,
    journal: Journal,
    learned: Mapping[Endpoint, ReplyForm],
) -> Iterator[Candidate]:
    """Yield each model in the modes to try, from the one that the journal or this process uses.

    ``learned`` is the strictest form known to work for an endpoint. Without a schema, a model has a
    single candidate.
    """
    for number, model in enumerate(models):
        if original.json_schema is None:
            yield Candidate(number, model, ReplyForm.SCHEMA)
            continue
        forms = forms_for(model.structured_output, original.json_schema)
        of_model = [Candidate(number, model, form) for form in forms]
        best = learned.get(of_model[0].endpoint)
        accepted = [
            each for each in of_model if best is None or each.form.simplicity >= best.simplicity
        ]
        yield from _from_recorded(of_model, original, path, journal) or accepted or of_model


def _from_recorded(
    candidates: Sequence[Candidate], original: ModelRequest, path: StepPath, journal: Journal
) -> Sequence[Candidate]:
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
