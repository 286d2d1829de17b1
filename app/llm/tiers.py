"""The two configured tiers of models."""

from dataclasses import dataclass
from enum import StrEnum

from app.control.budget import Dimension
from app.llm.forms import StructuredOutput
from app.llm.ports import ModelProvider, RateLimit
from app.llm.pricing import TokenPrice


class Tier(StrEnum):
    """Which of the two configured tiers is asked."""

    SMALL = "small"
    BIG = "big"


BUILT_IN = "offline"
"""The provider that is the built-in planner: it is used only where no model is configured."""

CALLS_OF = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}
"""What counts the logical calls of a tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierModel:
    """A model of a tier and how it is asked."""

    provider: ModelProvider
    model: str
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
    fallbacks: tuple["TierModel", ...] = ()
    """Models that are asked, in this order, when this one cannot answer."""

    @property
    def chain(self) -> tuple["TierModel", ...]:
        """This model and its fallbacks."""
        return (self, *self.fallbacks)
