"""The configured models by name. A tier is also a name and may be an alias of another model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from caseworker.core.budget.budget import Dimension
from caseworker.core.graph.problems import listed
from caseworker.models.forms import StructuredOutput
from caseworker.models.ports import ModelProvider, RateLimit
from caseworker.models.pricing import TokenPrice


class Tier(StrEnum):
    """The names of the models that cases call: the small one first, then the big one."""

    SMALL = "small"
    BIG = "big"


BUILT_IN = "offline"
"""The provider name of the built-in planner, which is used only if no model is configured."""

CALLS_OF = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}
"""The budget dimension that counts the logical calls of a tier."""


class ModelNotConfiguredError(LookupError):
    """The requested model name is unknown, or the run's tenant may not use it."""


class AllowedModels(tuple[str, ...]):
    """A run service: the model names to which the run's tenant is restricted."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """A configured model with its request settings."""

    provider: ModelProvider
    model: str
    name: str | None = None
    """The configured name; fallbacks of a tier carry the tier's name. None: an unlisted model."""
    max_output_tokens: int
    min_output_tokens: int
    """The minimum output limit to request, even if less budget remains."""
    timeout_seconds: float
    structured_output: StructuredOutput
    """The reply form for JSON requests."""
    temperature: float | None = None
    price: TokenPrice | None = None
    """The configured price; None uses the price list."""
    limit: RateLimit | None = None
    """The rate limit shared by all processes; None means unlimited."""
    capabilities: tuple[str, ...]
    """Supported features beyond text, as far as configured."""
    fallbacks: tuple["ChatModel", ...] = ()
    """Models to call, in this order, if this one fails."""

    @property
    def chain(self) -> tuple["ChatModel", ...]:
        """This model and its fallbacks."""
        return (self, *self.fallbacks)


class ModelTable(dict[str, ChatModel]):
    """The first model of each name; a tier without a model has no entry. It is never changed."""

    allow_unlisted = False
    """Whether callers may name unlisted models of a tier's provider."""

    def restricted(self, allowed: Collection[str] | None) -> "ModelTable":
        """Return a table of only these model names, fallbacks included; None keeps all models."""
        if allowed is None:
            return self
        may = {self[name].name for name in allowed if name in self}
        kept = {
            id(each): replace(each, fallbacks=tuple(f for f in each.fallbacks if f.name in may))
            for each in self.values()
            if each.name in may
        }
        return ModelTable({name: kept[id(self[name])] for name in self if id(self[name]) in kept})

    def chain(
        self, tier: Tier, name: str | None = None, fallbacks: Sequence[str] = ()
    ) -> Sequence[ChatModel]:
        """Return the models to call, in order: the named ones, then the configured fallbacks.

        A name is either a key of the table or a model name of the tier's provider.

        Raises:
            ModelNotConfiguredError: a name is neither.
        """
        named = [self._found(tier, each) for each in dict.fromkeys((name or tier, *fallbacks))]
        after = self.get(name or tier) or self[tier]
        first: dict[tuple[str | None, str, int], ChatModel] = {}
        for each in (*named, *after.fallbacks):
            first.setdefault((each.name, each.model, id(each.provider)), each)
        return tuple(first.values())

    def tier_of(self, tier: Tier, name: str | None = None) -> Tier | None:
        """Return the tier that counts calls of a model, or None if no tier does."""
        if name is None or name not in self:
            return tier
        used = (each for each in Tier if self.get(each) is self[name])
        return Tier(name) if name in CALLS_OF else next(used, None)

    def counted(self, tier: Tier, name: str | None = None) -> tuple[Dimension, ...]:
        """Return the budget dimensions that count a logical call of a model."""
        counts_for = self.tier_of(tier, name)
        return (*(CALLS_OF[each] for each in Tier if each is counts_for), Dimension.LLM_CALLS)

    def _found(self, tier: Tier, name: str) -> ChatModel:
        of_tier = self.get(tier)
        own = () if of_tier is None else of_tier.chain
        found = self.get(name) or next((each for each in own if each.model == name), None)
        if found is None and of_tier is not None and self.allow_unlisted:
            return replace(of_tier, model=name, name=None, price=None, limit=None, fallbacks=())
        if found is None:
            raise ModelNotConfiguredError(f"There is no model {name!r}; there are: {listed(self)}.")
        return found
