"""Between our words for prompts and replies and those of pydantic-ai."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_ai import messages as ai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from app.llm.ports import Message, ModelReply, ModelRequest, TokenUsage

Schema = Mapping[str, Any]
StructuredOutput = Callable[[Schema, ModelProfile], ModelRequestParameters]
"""How a model with such a profile is asked for a reply that follows a JSON Schema."""

_REPLY_NAME = "reply"
_REPLY_PURPOSE = "Give the reply."


def messages_of(request: ModelRequest) -> list[ai.ModelMessage]:
    """The prompt in the library's terms."""
    return [_message(message) for message in request.messages]


def _message(message: Message) -> ai.ModelMessage:
    match message.role:
        case "system":
            return ai.ModelRequest(parts=[ai.SystemPromptPart(content=message.content)])
        case "user":
            return ai.ModelRequest(parts=[ai.UserPromptPart(content=message.content)])
        case "assistant":
            return ai.ModelResponse(parts=[ai.TextPart(content=message.content)])


def settings_of(request: ModelRequest, profile: ModelProfile) -> ModelSettings:
    """What the request fixes; what it leaves open is the provider's default.

    Models that reason take no temperature, so none is sent to them.
    """
    settings = ModelSettings()
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    if request.temperature is not None and _takes_temperature(profile):
        settings["temperature"] = request.temperature
    if request.seed is not None:
        settings["seed"] = request.seed
    return settings


def _takes_temperature(profile: ModelProfile) -> bool:
    reasons = profile.get("openai_supports_reasoning", False) and profile.get(
        "thinking_enabled_by_default", False
    )
    return not (reasons or profile.get("anthropic_disallows_sampling_settings", False))


def native_output(schema: Schema, profile: ModelProfile) -> ModelRequestParameters:
    """Ask through the protocol's own field, constrained by the schema where it is closed.

    A strict provider treats every object as closed. For a schema with an open object, such as the
    arguments of a tool yet to be chosen, that would allow only ``{}`` there, so such a schema is
    sent as advice.
    """
    if not profile.get("supports_json_schema_output", False):
        return _prompted_output(schema)
    return ModelRequestParameters(
        output_mode="native",
        output_object=_output_object(schema, strict=None if is_closed(schema) else False),
    )


def tool_output(schema: Schema, _profile: ModelProfile) -> ModelRequestParameters:
    """Ask for the call of a tool with these arguments, or natively where the model prefers it."""
    if schema.get("type") != "object":
        return _prompted_output(schema)
    tool = ToolDefinition(
        name=_REPLY_NAME,
        description=_REPLY_PURPOSE,
        parameters_json_schema=dict(schema),
        kind="output",
    )
    return ModelRequestParameters(
        output_mode="auto", output_object=_output_object(schema), output_tools=[tool]
    )


def json_mode() -> ModelRequestParameters:
    """Ask for any JSON object, where the protocol can; the prompt says which."""
    return ModelRequestParameters(
        output_mode="prompted",
        output_object=_output_object({"type": "object"}),
        prompted_output_template=False,
    )


def _prompted_output(schema: Schema) -> ModelRequestParameters:
    return ModelRequestParameters(output_mode="prompted", output_object=_output_object(schema))


def _output_object(schema: Schema, *, strict: bool | None = None) -> OutputObjectDefinition:
    return OutputObjectDefinition(json_schema=dict(schema), name=_REPLY_NAME, strict=strict)


def is_closed(schema: object) -> bool:
    """Whether every object in the schema says that it allows no further properties."""
    if isinstance(schema, Mapping):
        open_object = schema.get("type") == "object" and (
            schema.get("additionalProperties") is not False
        )
        return not open_object and all(map(is_closed, schema.values()))
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return all(map(is_closed, schema))
    return True


def reply_of(response: ai.ModelResponse, model: str) -> ModelReply:
    """The provider's answer in our terms; text is empty when it declined to give one."""
    calls = [part for part in response.parts if isinstance(part, ai.ToolCallPart)]
    texts = [part.content for part in response.parts if isinstance(part, ai.TextPart)]
    return ModelReply(
        text=calls[0].args_as_json_str() if calls else "".join(texts),
        model=response.model_name or model,
        usage=usage_of(response.usage),
        finish_reason="stop" if calls else response.finish_reason,
    )


def usage_of(usage: RequestUsage) -> TokenUsage | None:
    """What was counted; None when nothing was said, or nothing that can be true."""
    tokens_in, tokens_out = usage.input_tokens, usage.output_tokens
    if usage.unmeasured_requests or min(tokens_in, tokens_out) < 0 or tokens_in + tokens_out == 0:
        return None
    reasoning = usage.output_reasoning_tokens or usage.details.get("reasoning_tokens", 0)
    return TokenUsage(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=max(0, min(usage.cache_read_tokens, tokens_in)),
        tokens_reasoning=max(0, min(reasoning, tokens_out)),
    )
