"""Tools, models and node types as callers see them."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from caseworker.api.field_types import View
from caseworker.llm.forms import StructuredOutput
from caseworker.llm.table import ChatModel
from caseworker.tools.servers import ServerListing


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
    capabilities: list[str]
    """What it takes or does beside text: ``image``, ``file``, ``audio``, ``reasoning``,
    ``responses``."""

    @classmethod
    def of(cls, chosen: ChatModel, **more: Any) -> Self:
        """Return the view of a model."""
        about = {name: getattr(chosen, name) for name in ChatModel.__slots__}
        about |= {"provider": chosen.provider.name, "external": chosen.provider.external, **more}
        return cls(**{name: about[name] for name in cls.model_fields})


class NamedModelView(ModelView):
    """The model of a name, and its fallbacks."""

    fallbacks: list[ModelView]
    """Called in this order when those before them cannot answer."""

    @classmethod
    def with_fallbacks(cls, chosen: ChatModel) -> Self:
        """Return the view of a name, by its first model."""
        return cls.of(chosen, fallbacks=[ModelView.of(each) for each in chosen.fallbacks])


class ModelList(View):
    """The models that runs call."""

    models: dict[str, NamedModelView]
    """By the names that agents and steps use. ``small`` and ``big`` are the tiers: a case starts on
    the small one. A tier without a model is left out."""


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
