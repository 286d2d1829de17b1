"""Tools and models as callers see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict

from app.llm.exchange import TierModel
from app.llm.forms import StructuredOutput
from app.tools.ports import ToolSpec

_DOCUMENTED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """A tool that agents may use."""

    __pydantic_config__ = _DOCUMENTED

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments."""
    external: bool
    """True if a call leaves the service."""
    idempotent: bool
    """True if a call whose outcome is unknown is made again."""
    parallel_safe: bool
    transient: Sequence[str]
    """Codes of failures after which it is tried again."""
    timeout_seconds: float
    """Per attempt."""

    @classmethod
    def of(cls, spec: ToolSpec) -> Self:
        """Return the view of a tool."""
        return cls(
            name=spec.name,
            description=spec.description,
            parameters=spec.parameters,
            external=spec.external,
            idempotent=spec.idempotent,
            parallel_safe=spec.parallel_safe,
            transient=sorted(spec.transient),
            timeout_seconds=spec.timeout_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """The tools that agents may use, by name."""

    tools: Sequence[ToolView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model and how it is asked."""

    __pydantic_config__ = _DOCUMENTED

    provider: str
    """``offline`` is built in: it parses the question itself and asks nobody."""
    model: str
    external: bool
    """True if a call leaves the service and may cost something."""
    structured_output: StructuredOutput
    """How it is made to reply with JSON: ``auto`` is the best way that its endpoint heeds."""
    temperature: float | None
    max_output_tokens: int
    timeout_seconds: float
    """Per attempt."""

    @classmethod
    def of(cls, chosen: TierModel) -> Self:
        """Return the view of a model."""
        return cls(**_shown(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierView(ModelView):
    """The model of a tier, and those that stand in for it."""

    fallbacks: Sequence[ModelView]
    """Asked in this order when the ones before cannot answer."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTiers:
    """The models of both tiers: a run starts on the small one."""

    small: TierView
    big: TierView


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    """The models that runs ask."""

    models: ModelTiers


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTypeView:
    """A type of step that graphs can be made of."""

    __pydantic_config__ = _DOCUMENTED

    name: str
    description: str
    executes: bool
    """False: such a step can only be linked."""
    inputs: Mapping[str, Sequence[str] | None]
    """By channel, the handles that edges may lead to; null is any name."""
    outputs: Mapping[str, Sequence[str] | None]
    """By channel, the handles that edges may come from; null is any name."""
    data: Mapping[str, Any]
    """JSON Schema of the step's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTypeList:
    """The types of step that graphs can be made of, by name."""

    node_types: Sequence[NodeTypeView]
