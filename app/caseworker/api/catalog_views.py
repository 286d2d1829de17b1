"""API schemas of tools, models and node types."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from caseworker.api.field_types import View
from caseworker.models.forms import StructuredOutput
from caseworker.models.table import ChatModel
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
    """True if a call with an unknown outcome is repeated."""
    parallel_safe: bool
    transient: Annotated[list[str], BeforeValidator(sorted)]
    """Failure codes that cause a retry."""
    timeout_seconds: float
    """Per attempt."""
    requires_approval: bool
    """True if a person must approve each call."""


class ToolServerView(View):
    """A tool server and its current tools, which are named ``<server>.<tool>``."""

    name: str
    available: bool
    problem: str | None
    """Why it is unavailable."""
    tools: list[ToolView]
    """Sorted by name; empty while the server is unavailable."""

    @classmethod
    def of(cls, listing: ServerListing) -> Self:
        """Convert the listing of a server."""
        return cls(
            name=listing.server,
            available=listing.problem is None,
            problem=listing.problem,
            tools=[ToolView.model_validate(spec) for spec in listing.tools],
        )


class ToolList(View):
    """The tools that agents may use, by name."""

    tools: list[ToolView]
    """Tools of the service itself."""
    servers: list[ToolServerView]
    """The configured MCP servers, queried by this request."""


class ModelView(View):
    """A model and its request parameters."""

    provider: str
    """``offline`` is the built-in planner: it parses the question locally and calls no other
    service."""
    model: str
    external: bool
    """True if a call leaves the service and may cost money."""
    structured_output: StructuredOutput
    """How JSON output is requested: ``auto`` is the best method that the endpoint supports."""
    temperature: float | None
    max_output_tokens: int
    timeout_seconds: float
    """Per attempt."""
    capabilities: list[str]
    """Capabilities in addition to text: ``image``, ``file``, ``audio``, ``reasoning``,
    ``responses``."""

    @classmethod
    def of(cls, chosen: ChatModel, **more: Any) -> Self:
        """Convert a model."""
        about = {name: getattr(chosen, name) for name in ChatModel.__slots__}
        about |= {"provider": chosen.provider.name, "external": chosen.provider.external, **more}
        return cls(**{name: about[name] for name in cls.model_fields})


class NamedModelView(ModelView):
    """The model for a name, and its fallbacks."""

    fallbacks: list[ModelView]
    """Called in this order when the previous model fails."""

    @classmethod
    def with_fallbacks(cls, chosen: ChatModel) -> Self:
        """Convert a model with its fallbacks."""
        return cls.of(chosen, fallbacks=[ModelView.of(each) for each in chosen.fallbacks])


class ModelList(View):
    """The models that runs may call."""

    models: dict[str, NamedModelView]
    """By the name that agents and steps use. ``small`` and ``big`` are the tiers; cases start on
    the small one. A tier without a model is omitted."""


class NodeTypeView(View):
    """A node type for steps of graphs."""

    name: str
    description: str
    executes: bool
    """False if steps of this type are never executed and can only be linked."""
    inputs: dict[str, list[str] | None]
    """Input handles that edges may target, by channel; null allows any name."""
    outputs: dict[str, list[str] | None]
    """Output handles that edges may start from, by channel; null allows any name."""
    data: dict[str, Any]
    """JSON Schema of the step's data."""


class NodeTypeList(View):
    """The node types for steps of graphs, by name."""

    node_types: list[NodeTypeView]
