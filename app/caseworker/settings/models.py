"""Settings for models: the two tiers and any number of named models."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from caseworker.settings.values import (
    Count,
    Endpoint,
    Names,
    Positive,
    Seconds,
    Section,
    Text,
    key,
    variable_of,
)


def _base(url: str) -> str:
    if "?" in url or "#" in url:
        raise ValueError("must be a URL without a query or fragment")
    return url


def _api_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    # Clients would fail on characters not allowed in HTTP headers, and quote the key.
    if not (text and text.isascii() and text.isprintable()):
        raise ValueError("must be a key of printable ASCII characters")
    return key


BaseUrl = Annotated[Endpoint, AfterValidator(_base)]
ApiKey = Annotated[SecretStr, AfterValidator(_api_key)]
Usd = Annotated[Decimal, Field(ge=0)]

_NEEDS = {"openai": ("api_key", "base_url"), "anthropic": ("api_key",), "tiingo": ("api_key",)}
"""Settings of which each provider requires at least one; plugin providers validate their own."""


class ProviderSettings(Section):
    """A provider, its credentials and its endpoint."""

    built_in: ClassVar[str]  # default provider without key and endpoint
    live: ClassVar[str]  # default provider with one of them

    provider: str | None = None
    api_key: ApiKey | None = None
    """API key. Defaults to <PROVIDER>_API_KEY: for the two tiers always, for other models only if
    base_url is null."""
    base_url: BaseUrl | None = None
    """URL of the endpoint, such as http://127.0.0.1:11434/v1, which may need no key. Null is the
    provider's default."""

    @property
    def chosen_provider(self) -> str:
        """Name of the configured provider, or of the default one for the given key and endpoint."""
        return self.provider or (self.live if self.api_key or self.base_url else self.built_in)

    @model_validator(mode="after")
    def _has_what_the_provider_needs(self) -> Self:
        provider, needs = self.chosen_provider, _NEEDS.get(self.chosen_provider, ())
        if needs and not any(getattr(self, name) for name in needs):
            usual = "its own api_key" if self.base_url else f"{provider.upper()}_API_KEY"
            names = ", or ".join(needs).replace("api_key", f"{usual} in the environment")
            raise ValueError(f"provider: {provider} requires {names}")
        return self


Capability = Literal["image", "file", "audio", "reasoning", "responses"]

BUILT_IN = "offline"
"""Name of the provider for the built-in planner, which answers cases if no model is configured."""
STUB = "stub"
"""Name of the provider that needs no model. It falls back to the planner, which can answer cases.
"""


class ProviderToolSettings(Section):
    """What one use of a tool costs that the provider executes, and how often a call may use it."""

    usd_per_use: Usd
    tokens_per_use: Count
    """Input tokens of one result, at most."""
    max_uses: Positive


def _tool(usd: str, tokens: int) -> ProviderToolSettings:
    return ProviderToolSettings(usd_per_use=Decimal(usd), tokens_per_use=tokens, max_uses=5)


SEARCH_PRICES: Mapping[str, Mapping[str, ProviderToolSettings]] = {
    "openai": {
        "web_search": _tool("0.01", 10_000),
        "web_search_preview": _tool("0.025", 10_000),
        "tool_search": _tool("0", 0),
    },
    "anthropic": {"web_search": _tool("0.01", 10_000)},
}
"""Prices of searches by provider and tool, on 2026-11-29, from
https://developers.openai.com/api/docs/pricing and
https://platform.claude.com/docs/en/about-claude/pricing. The results of web searches are billed as
input tokens, without a published maximum: 10,000 is an estimate. A search of tools loads tools of
the request itself, which are reserved with the request."""


class ModelSettings(ProviderSettings):
    """A model and its request parameters."""

    built_in, live = BUILT_IN, "openai"
    usual_model: ClassVar[str] = ""  # default model of openai

    provider: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] | None = None
    """`openai` (or a compatible API), `anthropic`, `recorded`, `stub` (calls tools, no model),
    `offline` (the built-in planner) or an entry point of the group caseworker.providers. Null is
    `openai` with a key or base_url, else `offline`."""
    model: Text | None = key(
        None, "Model name; null with openai: gpt-5-nano for small, gpt-5 for big."
    )
    recording: Text | None = key(
        None, "File written by serve or eval with `--record`, for the provider `recorded`."
    )
    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    """Sampling temperature; null uses the provider's default."""
    max_output_tokens: Positive | None = key(
        None,
        "Maximum output tokens per reply. Null: 4096 for agents and steps; at the gateway, the"
        " largest output of the model.",
    )
    max_image_tokens: Positive | None = key(
        None, "Tokens of the largest image that the model takes; null: the rule of its family."
    )
    requests_per_minute: Positive | None = key(
        None,
        ("Maximum requests per minute of all processes; further calls are queued. Null: no limit."),
    )
    tokens_per_minute: Positive | None = key(
        None, "Maximum input and output tokens per minute of all processes. Null: no limit."
    )
    timeout_seconds: Seconds = key(30.0, "Timeout of one attempt.")
    structured_output: Literal["auto", "schema", "json", "text"] = "auto"
    """Structured-output mode: how JSON output is requested. `schema` sends a JSON schema, `json`
    uses JSON mode, `text` only the prompt; `auto` uses the strictest mode that works."""
    price_per_million_in_usd: Usd | None = key(None, "Price of input tokens; null: list price.")
    price_per_million_out_usd: Usd | None = key(None, "Price of output tokens; null: list price.")
    price_per_million_cached_usd: Usd | None = key(
        None, "Price of cached input tokens; null: no discount."
    )

    price_per_million_audio_in_usd: Usd | None = key(
        None, "Price of input tokens of sound; null: that of input tokens."
    )
    price_per_million_audio_out_usd: Usd | None = key(
        None, "Price of output tokens of sound; null: that of output tokens."
    )
    stream: bool = key(
        True,
        "Whether replies are requested as streams, so that interrupted ones are charged by what"
        " arrived.",
    )
    tokens_per_second: Annotated[float, Field(gt=0, strict=True)] | None = None
    """Highest output speed of one reply, by which unseen parts of interrupted replies are charged.
    Null: the provider's published speed, or 200."""

    capabilities: tuple[Capability, ...] = key(
        (), "Capabilities of the model beyond text, shown by GET /models."
    )
    provider_tools: dict[Text, ProviderToolSettings | None] = key(
        {},
        "Maximum cost of tools that the provider executes in calls of external runs: `{web_search:"
        " {usd_per_use: 0.01, tokens_per_use: 10000, max_uses: 5}}`. Web search has this price with"
        " openai and anthropic. Runs that limit cost or tokens cannot use tools without a price;"
        " `{web_search: null}` removes one.",
    )

    @property
    def chosen_provider_tools(self) -> Mapping[str, ProviderToolSettings]:
        """The priced tools, with those of the provider's price list."""
        priced = {**SEARCH_PRICES.get(self.chosen_provider, {}), **self.provider_tools}
        return {name: price for name, price in priced.items() if price is not None}

    @property
    def chosen_model(self) -> str:
        """Name of the configured model, or the provider's default; may be empty."""
        usual = {"openai": self.usual_model, BUILT_IN: BUILT_IN, STUB: STUB}
        return self.model or usual.get(self.chosen_provider, "")

    @model_validator(mode="after")
    def _has_model_and_prices(self) -> Self:
        if not self.chosen_model:
            raise ValueError(f"model: required because the provider is {self.chosen_provider}")
        prices = self.price_per_million_in_usd, self.price_per_million_out_usd
        limits = (
            self.price_per_million_cached_usd,
            self.price_per_million_audio_in_usd,
            self.price_per_million_audio_out_usd,
        )
        if None in prices and {*prices, *limits} != {None}:
            raise ValueError(
                "price_per_million_in_usd: must be set together with price_per_million_out_usd"
            )
        return self


TIERS = ("small", "big")
_ALIAS = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


class NamedModelSettings(ModelSettings):
    """A model that agents refer to by name."""

    built_in = "openai"

    fallbacks: Names = ()
    """Names of models to call, in this order, if this one fails."""

    @model_validator(mode="after")
    def _is_no_planner(self) -> Self:
        if self.chosen_provider == BUILT_IN:
            raise ValueError(f"provider: {BUILT_IN} supports only cases; set a model provider")
        return self


class TierSettings(ModelSettings):
    """A model tier with fallbacks; cases escalate from the small tier to the big one."""

    usual_model = "gpt-5"

    use: Text | None = key(None, "Name of a model in models.named; replaces the other keys.")
    fallbacks: tuple[ModelSettings, ...] = ()
    """Models with the keys above, called in this order after a failure: `[{model: gpt-5-mini}]`. In
    the environment, the list is JSON; the first key is MODELS_<TIER>_FALLBACKS_1_API_KEY."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        fields = type(self).model_fields
        changed = [each for each in fields if getattr(self, each) != fields[each].default]
        if self.use is not None and changed != ["use"]:
            changed.remove("use")
            raise ValueError(f"use: replaces the other keys; remove {', '.join(changed)}")
        return self


class SmallModelSettings(TierSettings):
    """The small tier, where every case starts."""

    usual_model = "gpt-5-nano"


Chain = Mapping[str, ModelSettings]
"""A model and its fallbacks, in call order, keyed by settings key, such as ``named.fast``."""


class ModelsSettings(Section):
    """Models; OPENAI_BASE_URL sets the base_url of tiers whose provider is openai."""

    allow_unlisted: bool = key(
        False, "Whether agents may use unconfigured models of a tier's provider."
    )
    named: dict[str, NamedModelSettings] = key(
        {}, "Models by name; see docs/models.md. Set their API keys as MODELS_NAMED_<NAME>_API_KEY."
    )
    small: SmallModelSettings = SmallModelSettings()
    big: TierSettings = TierSettings()

    def chains(self) -> dict[str, Chain]:
        """Return the model and its fallbacks for every name and tier that has a model.

        If no model is configured, both tiers use the built-in planner.

        Raises:
            ValueError: a name refers to no model, or names form a cycle.
        """
        chains: dict[str, dict[str, ModelSettings]] = {name: {} for name in (*TIERS, *self.named)}
        for name, chain in chains.items():
            self._follow(name, "", (), chain)
        models = {
            name: chain
            for name, chain in chains.items()
            if next(iter(chain.values())).chosen_provider != BUILT_IN
        }
        return {**(models or chains)}

    def _follow(
        self, name: str, place: str, via: tuple[str, ...], chain: dict[str, ModelSettings]
    ) -> None:
        """Append a model and its fallbacks to ``chain``; ``via`` holds names already seen."""
        if name in via:
            raise ValueError(f"{place}: circular reference: {' -> '.join((*via, name))}")
        tier = {"small": self.small, "big": self.big}.get(name)
        if tier is not None and tier.use is not None:
            self._follow(tier.use, f"{name}.use", (*via, name), chain)
        elif tier is not None and (not via or tier.chosen_provider != BUILT_IN):
            planner = [ModelSettings()] if tier.chosen_provider == STUB else []
            fallbacks = enumerate(tier.fallbacks or planner, 1)
            chain |= {name: tier, **{f"{name}.fallbacks.{at}": each for at, each in fallbacks}}
        elif name not in self.named:
            names = ", ".join(self.named) or "none"
            raise ValueError(f"{place}: unknown model {name!r} (models.named: {names})")
        elif f"named.{name}" not in chain:
            chain[f"named.{name}"] = self.named[name]
            for at, other in enumerate(self.named[name].fallbacks, 1):
                self._follow(other, f"named.{name}.fallbacks.{at}", (*via, name), chain)

    @model_validator(mode="after")
    def _names_lead_to_models(self) -> Self:
        variables: dict[str, str] = {}
        for name in self.named:
            other = variables.setdefault(variable_of((name,)), name)
            if name in TIERS:
                raise ValueError(
                    f"named.{name}: this name is reserved for a tier; use another name"
                )
            if not _ALIAS.fullmatch(name):
                rule = "1 to 64 of the characters a-z 0-9 . _ - and starts with a letter or digit"
                raise ValueError(f"named.{name}: a name has {rule}")
            if other != name:
                raise ValueError(
                    f"named.{name}: this name and {other} map to the same environment variables"
                )
        self.chains()
        return self
