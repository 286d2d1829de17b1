"""The two tiers of models, and what is known of the models in them."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from app.llm.forms import StructuredOutput
from app.llm.ports import ModelProvider
from app.llm.pricing import TokenPrice


class Tier(StrEnum):
    """Which of the two configured tiers is asked."""

    SMALL = "small"
    BIG = "big"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierModel:
    """A model of a tier and how it is asked."""

    provider: ModelProvider
    model: str
    max_output_tokens: int
    timeout_seconds: float
    structured_output: StructuredOutput
    """How it is made to reply with JSON where that is wanted."""
    temperature: float | None = None
    price: TokenPrice | None = None
    """What it costs; None leaves that to the list of prices."""
    fallbacks: tuple["TierModel", ...] = ()
    """Who is asked, in this order, when this one cannot answer."""

    @property
    def chain(self) -> tuple["TierModel", ...]:
        """This model and those that stand in for it."""
        return (self, *self.fallbacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model answered and what that cost, retries included or replayed from the journal."""

    text: str
    """Where JSON was asked for, the JSON alone if there is any."""
    provider: str
    """Whose model answered, which may be that of a fallback."""
    model: str
    """The model that answered, as its provider names it."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int = 0
    """The part of ``tokens_in`` that the provider read from its cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` that was spent on reasoning."""
    cost_usd: Decimal
