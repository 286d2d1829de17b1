"""The model for an agent or a step, as written in definitions."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from caseworker.core.budget.budget import MAX_LIMIT
from caseworker.core.graph.problems import listed
from caseworker.models.table import ModelTable, Tier
from caseworker.nodes.node_type import Fault
from caseworker.nodes.strict_parsing import StepData
from caseworker.platform.suggestions import suggestion
from caseworker.platform.validation import refusal

MAX_FALLBACKS = 8

ModelName = Annotated[str, Field(min_length=1, max_length=128)]


class ModelOptions(StepData):
    """Options for model calls."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Maximum number of output tokens. It can only lower the limit configured for the model. Null
    means the configured limit."""


class ModelSpec(ModelOptions):
    """The model to call. Its options are written either here or in ``options``."""

    tier: Literal["small", "big"] = "small"
    name: ModelName | None = None
    """Name of a configured model. Default: the tier's model. For a model of the tier, the
    provider's model name is also accepted."""
    fallbacks: Annotated[list[ModelName], Field(max_length=MAX_FALLBACKS)] = Field(
        default_factory=list
    )
    """Names of models to call, in this order, if the model fails."""
    options: ModelOptions = Field(default_factory=ModelOptions)
    stream: bool = True
    """Whether answers are streamed while the model writes them."""

    @model_validator(mode="after")
    def _has_no_duplicate_settings(self) -> "ModelSpec":
        for name in sorted(self.options.model_fields_set & self.model_fields_set):
            raise refusal(f"{name} is also set in options: set it in one place only.")
        return self

    @property
    def options_for_call(self) -> dict[str, Any]:
        """The model and its options as keyword arguments for the gateway."""
        spec, options = self, self.options
        longest, temperature = spec.max_output_tokens, spec.temperature
        return {
            "tier": Tier(self.tier),
            "model": self.name,
            "fallbacks": self.fallbacks,
            "temperature": options.temperature if temperature is None else temperature,
            "max_output_tokens": options.max_output_tokens if longest is None else longest,
        }

    def faults(self, models: ModelTable) -> Iterator[Fault]:
        """Yield a fault for each named model that is not configured."""
        tier = Tier(self.tier)
        if self.name not in models and tier not in models:
            yield "model.tier", no_model(tier, models)
            return
        tier_models = models[tier].chain if tier in models else ()
        names = {*models, *(each.model for each in tier_models)}
        choices = {"model.name": self.name}
        choices |= {f"model.fallbacks.{at}": name for at, name in enumerate(self.fallbacks)}
        for place, name in choices.items():
            if name is None or name in names or (models.allow_unlisted and tier in models):
                continue
            message = f"No such model is configured. Use one of: {listed(names)}."
            yield place, message + suggestion(name, names)


def no_model(tier: Tier, models: ModelTable) -> str:
    """Return the error message for a tier without a model; it names the settings to change."""
    return (
        f"No {tier} model is configured: set models.{tier}, or models.{tier}.use to one of:"
        f" {listed(models)}."
    )
