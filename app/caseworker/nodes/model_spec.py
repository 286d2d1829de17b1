"""Which model an agent or a step asks, as their definitions say it."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from caseworker.control.budget import MAX_LIMIT
from caseworker.kernel.problems import listed
from caseworker.llm.table import ModelTable, Tier
from caseworker.nodes.node_type import Fault
from caseworker.nodes.reading import StepData, refusal

MAX_FALLBACKS = 8

ModelName = Annotated[str, Field(min_length=1, max_length=128)]


class ModelOptions(StepData):
    """How a model is asked."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """The longest answer; it can only narrow what is configured for the model."""


class ModelSpec(ModelOptions):
    """Which model is asked, and how; options may stand here or in ``options``."""

    tier: Literal["small", "big"] = "small"
    name: ModelName | None = None
    """A configured model; left out, that of the tier. A model of the tier may be named as its
    provider names it."""
    fallbacks: Annotated[list[ModelName], Field(max_length=MAX_FALLBACKS)] = Field(
        default_factory=list
    )
    """Further models, by such names, that are asked in this order when one cannot answer."""
    options: ModelOptions = Field(default_factory=ModelOptions)
    stream: bool = True
    """Whether answers are shown while they are written."""

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> "ModelSpec":
        for name in sorted(self.options.model_fields_set & self.model_fields_set):
            raise refusal(f"{name} stands in options as well: write it in one of both places.")
        return self

    @property
    def asked(self) -> dict[str, Any]:
        """Which model the gateway asks, and how."""
        given, options = self, self.options
        longest, temperature = given.max_output_tokens, given.temperature
        return {
            "tier": Tier(self.tier),
            "model": self.name,
            "fallbacks": self.fallbacks,
            "temperature": options.temperature if temperature is None else temperature,
            "max_output_tokens": options.max_output_tokens if longest is None else longest,
        }

    def faults(self, models: ModelTable) -> Iterator[Fault]:
        """Yield what names a model that is not configured."""
        tier = Tier(self.tier)
        if self.name not in models and tier not in models:
            yield "model.tier", no_model(tier, models)
            return
        own = models[tier].chain if tier in models else ()
        known = {*models, *(each.model for each in own)}
        named = {"model.name": self.name}
        named |= {f"model.fallbacks.{at}": name for at, name in enumerate(self.fallbacks)}
        for place, name in named.items():
            if name is None or name in known or (models.allow_unlisted and tier in models):
                continue
            yield place, f"No such model is configured; there are: {listed(known)}."


def no_model(tier: Tier, models: ModelTable) -> str:
    """Return what to configure for a tier without a model."""
    return (
        f"No {tier} model is configured: set models.{tier}, or models.{tier}.use to one of:"
        f" {listed(models)}."
    )
