"""The configured models by name. A tier is also a name and may be an alias of another model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from caseworker.core.budget.budget import Dimension
from caseworker.core.graph.problems import listed
from caseworker.models.fields.provider_tools import ToolPrice
from caseworker.models.forms import StructuredOutput
from caseworker.models.ports import ModelProvider, RateLimit
from caseworker.models.pricing import TokenPrice


class Tier(StrEnum):
    """Names of the two configured models: the small one, and the one to escalate to."""

    SMALL = "small"
    BIG = "big"


DEFAULT_OUTPUT_TOKENS = 4_096
"""Output limit of the requests that the service writes, for models without a configured one."""

BUILT_IN = "offline"
"""Provider name of the built-in planner, which is used only if no model is configured."""

CALLS_OF = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}
"""Maps each tier to the budget dimension that counts its logical calls."""


class ModelNotConfiguredError(LookupError):
    """The requested model name is unknown, or the run's tenant may not use it."""


class AllowedModels(tuple[str, ...]):
    """Allowlist of model names for the run's tenant; provided as a run service."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """A configured model with its request settings."""

    provider: ModelProvider
    model: str
    name: str | None = None
    """Configured name of the model. A tier's fallback has the tier's name. None if the model is not
    listed in the configuration."""
    max_output_tokens: int
    """Output limit of the requests that the service writes."""
    largest_output_tokens: int
    """Largest output of the model, which a client's request without a limit may get."""
    max_image_tokens: int | None = None
    """Tokens of the largest image that the model takes; None means those of its family."""
    min_output_tokens: int
    """Minimum output limit to request, in tokens, even if less budget remains."""
    timeout_seconds: float
    structured_output: StructuredOutput
    """Structured-output mode for JSON requests."""
    temperature: float | None = None
    price: TokenPrice | None = None
    """Configured price; None means that the price list applies."""
    limit: RateLimit | None = None
    """Rate limit shared by all processes; None means unlimited."""
    stream: bool
    """Whether the provider may be asked for streams, so that interrupted replies are known in part.
    """
    tokens_per_second: float
    """Highest output speed of one choice, by which unseen parts of interrupted replies count."""
    capabilities: tuple[str, ...]
    """Names of supported features beyond text, as configured."""
    provider_tools: Mapping[str, ToolPrice]
    """Prices of the tools that the provider executes, by their type without its date."""
    fallbacks: tuple["ChatModel", ...] = ()
    """Models to call, in this order, if this one fails."""

    @property
    def chain(self) -> tuple["ChatModel", ...]:
        """This model and its fallbacks."""
        return (self, *self.fallbacks)


class ModelTable(dict[str, ChatModel]):
    """Maps each model name to the model to call first. A tier without a model has no entry.

    The table is never modified.
    """

    allow_unlisted = False
    """Whether callers may use models of a tier's provider that the configuration does not list."""

    def restricted(self, allowed: Collection[str] | None) -> "ModelTable":
        """Return a table with only the given names, in fallbacks too; None allows all models."""
        if allowed is None:
            return self
        may = {self[name].name for name in allowed if name in self}
        allowed_models = {
            id(each): replace(each, fallbacks=tuple(f for f in each.fallbacks if f.name in may))
            for each in self.values()
            if each.name in may
        }
        return ModelTable(
            {
                name: allowed_models[id(self[name])]
                for name in self
                if id(self[name]) in allowed_models
            }
        )

    def chain(
        self, tier: Tier, name: str | None = None, fallbacks: Sequence[str] = ()
    ) -> Sequence[ChatModel]:
        """Return the models to call, in order and without duplicates.

        These are ``name`` (default: the tier's model), then ``fallbacks``, then the configured
        fallbacks of the first. A name is either a key of the table or a model name of the tier's
        provider.

        Raises:
            ModelNotConfiguredError: a name is neither of these.
        """
        models = [self._model(tier, each) for each in dict.fromkeys((name or tier, *fallbacks))]
        after = self.get(name or tier) or self[tier]
        first: dict[tuple[str | None, str, int], ChatModel] = {}
        for each in (*models, *after.fallbacks):
            first.setdefault((each.name, each.model, id(each.provider)), each)
        return tuple(first.values())

    def tier_of(self, tier: Tier, name: str | None = None) -> Tier | None:
        """Return the tier whose call limit counts calls to the model ``name``; None if none does.

        ``tier`` is the result if no model is named or the name is unknown.
        """
        if name is None or name not in self:
            return tier
        used = (each for each in Tier if self.get(each) is self[name])
        return Tier(name) if name in CALLS_OF else next(used, None)

    def counted(self, tier: Tier, name: str | None = None) -> tuple[Dimension, ...]:
        """Return the budget dimensions that count a logical call to a model."""
        counts_for = self.tier_of(tier, name)
        of_tier = () if counts_for is None else (CALLS_OF[counts_for],)
        return (*of_tier, Dimension.LLM_CALLS)

    def _model(self, tier: Tier, name: str) -> ChatModel:
        of_tier = self.get(tier)
        tier_models = () if of_tier is None else of_tier.chain
        model = self.get(name) or next((each for each in tier_models if each.model == name), None)
        if model is None and of_tier is not None and self.allow_unlisted:
            return replace(of_tier, model=name, name=None, price=None, limit=None, fallbacks=())
        if model is None:
            raise ModelNotConfiguredError(f"There is no model {name!r}; there are: {listed(self)}.")
        return model
