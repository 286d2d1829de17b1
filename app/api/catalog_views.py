"""Tools, models and node types as callers see them."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from app.api.field_types import View
from app.llm.forms import StructuredOutput
from app.llm.tiers import TierModel
from app.tools.servers import ServerListing


class ToolView(View):
    """A tool that agents may use."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of its arguments."""
    external: bool
    """True if a call leaves the service."""
    idempotent: bool
    """True if a call whose outcome is unknown is made again."""
    parallel_safe: bool
    transient: Annotated[list[str], BeforeValidator(sorted)]
    """Codes of failures after which it is tried again."""
    timeout_seconds: float
    """Per attempt."""
    requires_approval: bool
    """True if a person must agree before each call."""


class ToolServerView(View):
    """A tool server and what it offers now; its tools are called ``<server>.<tool>``."""

    name: str
    available: bool
    problem: str | None
    """Why it cannot be used at present."""
    tools: list[ToolView]
    """By name; none while it cannot be used."""

    @classmethod
    def of(cls, listing: ServerListing) -> Self:
        """Return the view of a server."""
        return cls(
            name=listing.server,
            available=listing.problem is None,
            problem=listing.problem,
            tools=[ToolView.model_validate(spec) for spec in listing.tools],
        )


class ToolList(View):
    """The tools that agents may use, by name."""

    tools: list[ToolView]
    """Those of the service itself."""
    servers: list[ToolServerView]
    """The MCP servers that are configured, asked now."""


class ModelView(View):
    """A model and how it is called."""

    provider: str
    """``offline`` is built in: it parses the question itself and calls no other service."""
    model: str
    external: bool
    """True if a call leaves the service and may cost something."""
    structured_output: StructuredOutput
    """How it is made to reply with JSON: ``auto`` is the best way that its endpoint supports."""
    temperature: float | None
    max_output_tokens: int
    timeout_seconds: float
    """Per attempt."""

    @classmethod
    def of(cls, chosen: TierModel) -> Self:
        """Return the view of a model."""
        return cls(**_shown(chosen))


class TierView(ModelView):
    """The model of a tier, and its fallbacks."""

    fallbacks: list[ModelView]
    """Called in this order when those before them cannot answer."""

    @classmethod
    def of(cls, chosen: TierModel) -> Self:
        """Return the view of a tier, by its first model."""
        return cls(**_shown(chosen), fallbacks=[ModelView.of(each) for each in chosen.fallbacks])


def _shown(chosen: TierModel) -> dict[str, Any]:
    return {
        "provider": chosen.provider.name,
        "model": chosen.model,
        "external": chosen.provider.external,
        "structured_output": chosen.structured_output,
        "temperature": chosen.temperature,
        "max_output_tokens": chosen.max_output_tokens,
        "timeout_seconds": chosen.timeout_seconds,
    }


class ModelTiers(View):
    """The models of both tiers: a run starts on the small one."""

    small: TierView
    big: TierView


class ModelList(View):
    """The models that runs call."""

    models: ModelTiers


class NodeTypeView(View):
    """A type of step that graphs can be made of."""

    name: str
    description: str
    executes: bool
    """False: such a step can only be linked."""
    inputs: dict[str, list[str] | None]
    """By channel, the handles that edges may lead to; null is any name."""
    outputs: dict[str, list[str] | None]
    """By channel, the handles that edges may come from; null is any name."""
    data: dict[str, Any]
    """JSON Schema of the step's data."""


class NodeTypeList(View):
    """The types of step that graphs can be made of, by name."""

    node_types: list[NodeTypeView]
