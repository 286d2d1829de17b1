"""The configured models by name. A tier is a name as well, and may be another name of a model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from caseworker.control.budget import Dimension
from caseworker.kernel.problems import listed
from caseworker.llm.forms import StructuredOutput
from caseworker.llm.ports import ModelProvider, RateLimit
from caseworker.llm.pricing import TokenPrice


class Tier(StrEnum):
    """The names of the models that cases call: first the small one, then the big one."""

    SMALL = "small"
    BIG = "big"


BUILT_IN = "offline"
"""The provider that is the built-in planner: it is used only where no model is configured."""

CALLS_OF = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}
"""What counts the logical calls of a tier."""


class ModelNotConfiguredError(LookupError):
    """No model that the tenant of a run may use has the name that it asks for."""


class AllowedModels(tuple[str, ...]):
    """A service of runs whose tenant may use these names of models alone."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel:
    """A model and how it is asked."""

    provider: ModelProvider
    model: str
    name: str | None = None
    """Under which it is configured: that of a tier for its fallbacks too; None: it is unlisted."""
    max_output_tokens: int
    min_output_tokens: int
    """What it is asked for at least, however little the budget of a call has left."""
    timeout_seconds: float
    structured_output: StructuredOutput
    """How it is asked for JSON."""
    temperature: float | None = None
    price: TokenPrice | None = None
    """The stated price; None leaves that to the list of prices."""
    limit: RateLimit | None = None
    """How often it may be asked, by all processes together; None: as often as anybody wants."""
    capabilities: tuple[str, ...]
    """What it takes or does beside text, as far as that is configured."""
    fallbacks: tuple["ChatModel", ...] = ()
    """Models that are asked, in this order, when this one cannot answer."""

    @property
    def chain(self) -> tuple["ChatModel", ...]:
        """This model and its fallbacks."""
        return (self, *self.fallbacks)


class ModelTable(dict[str, ChatModel]):
    """The first models of all names; tiers without a model have no entry. It is never changed."""

    allow_unlisted = False
    """Whether callers may name others of a tier's provider."""

    def restricted(self, allowed: Collection[str] | None) -> "ModelTable":
        """Return the models of these names alone, fallbacks included; None: all models."""
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
        """Return the models to ask, in order: the named ones, then the configured fallbacks.

        A name is one of the table, or that of a provider for a model of the tier.

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
        """Return the tier for which calls of a model count; None: they count for none."""
        if name is None or name not in self:
            return tier
        used = (each for each in Tier if self.get(each) is self[name])
        return Tier(name) if name in CALLS_OF else next(used, None)

    def counted(self, tier: Tier, name: str | None = None) -> tuple[Dimension, ...]:
        """Return what counts a logical call of a model."""
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
