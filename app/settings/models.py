"""Settings of the two model tiers."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from app.settings.values import (
    ApiKey,
    Endpoint,
    Positive,
    Seconds,
    Section,
    Temperature,
    Text,
    Usd,
)

Provider = Literal["offline", "openai", "anthropic"]


class ModelSettings(Section):
    """A model and how it is asked."""

    openai_model: ClassVar[str | None] = None
    """The model that the provider openai uses unless another is named."""

    provider: Provider | None = None
    """Null is `openai` (or anything that speaks its protocol) if a key or base_url is configured,
    else `offline`: the built-in planner, which needs no model."""
    model: Text | None = None
    """Name of the model; null is gpt-5-nano for the small tier and gpt-5 for the big one."""
    base_url: Endpoint | None = None
    """Endpoint of the provider, such as http://127.0.0.1:11434/v1; it may need no key. Null is the
    provider's own, or OPENAI_BASE_URL of the environment."""
    api_key: ApiKey | None = None
    """Key of the provider; OPENAI_API_KEY and ANTHROPIC_API_KEY serve both tiers."""
    temperature: Temperature | None = None
    """Randomness of replies; null leaves it to the provider."""
    max_output_tokens: Positive = 4096
    """Longest reply, in tokens; part of what a call reserves before it is made."""
    timeout_seconds: Seconds = 30.0
    """How long one attempt may take."""
    structured_output: Literal["auto", "schema", "json", "text"] = "auto"
    """How the model is made to reply with JSON: held to a schema, in JSON mode, or asked in words.
    `auto` takes the best that the endpoint accepts and heeds; `text` spares one that knows none of
    it the trials."""
    price_per_million_in_usd: Usd | None = None
    """Price of a million input tokens; null is the public list price."""
    price_per_million_out_usd: Usd | None = None
    """Price of a million output tokens; null is the public list price."""
    price_per_million_cached_usd: Usd | None = None
    """Price of a million input tokens from the provider's cache, beside the two prices above; null
    is no discount on them."""

    @property
    def chosen_provider(self) -> Provider:
        """The provider that these settings come to."""
        if self.provider:
            return self.provider
        return "openai" if self.api_key or self.base_url else "offline"

    @property
    def chosen_model(self) -> str:
        """The model that these settings come to; empty if they name none."""
        if self.model:
            return self.model
        return {"openai": self.openai_model, "offline": "offline"}.get(self.chosen_provider) or ""

    def problem(self) -> tuple[str, str] | None:
        """Return the key that does not fit the others and what it must be, if there is one."""
        if self.chosen_provider == "openai" and not (self.api_key or self.base_url):
            return (
                "provider",
                "openai needs OPENAI_API_KEY in the environment, or a base_url that needs no key",
            )
        if self.chosen_provider == "anthropic" and not self.api_key:
            return "provider", "anthropic needs ANTHROPIC_API_KEY in the environment"
        if not self.chosen_model:
            return "model", f"must name a model, since the provider is {self.chosen_provider}"
        prices = (self.price_per_million_in_usd, self.price_per_million_out_usd)
        if prices.count(None) == 1:
            return "price_per_million_in_usd", "must be given together with ..._out_usd"
        if self.price_per_million_cached_usd is not None and None in prices:
            return "price_per_million_cached_usd", "must be given together with the other prices"
        return None


class FallbackSettings(ModelSettings):
    """A model that stands in for another one of its tier."""


Fallbacks = Annotated[
    tuple[FallbackSettings, ...],
    Field(json_schema_extra={"expected": "a list of models, each with the keys of a tier"}),
]


class TierSettings(ModelSettings):
    """The model of a tier, and those that stand in for it."""

    fallbacks: Fallbacks = ()
    """Models that are asked, in this order, when the one above cannot answer: its retries are used
    up, or its key, account or name is refused. Each has the keys above, such as
    `{provider: openai, model: qwen3, base_url: "http://127.0.0.1:11434/v1"}`. In the environment
    the list is written as JSON; the key of the first one is MODELS_<TIER>_FALLBACKS_1_API_KEY."""


class SmallModelSettings(TierSettings):
    """The small tier, where every case begins."""

    openai_model = "gpt-5-nano"


class BigModelSettings(TierSettings):
    """The big tier, for what the small one could not do."""

    openai_model = "gpt-5"


class ModelsSettings(Section):
    """The models. Keys come from the environment only."""

    small: SmallModelSettings = SmallModelSettings()
    big: BigModelSettings = BigModelSettings()
