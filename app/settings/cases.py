"""Settings of what runs may spend, of the case agent, its models and its tools."""

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_type_hints
from zoneinfo import ZoneInfo

from pydantic import Field, TypeAdapter, create_model, model_validator
from tzlocal import get_localzone_name

from app.control.budget import Budget, json_name
from app.settings.values import (
    Amount,
    ApiKey,
    Count,
    Endpoint,
    Names,
    Positive,
    Seconds,
    Section,
    Share,
    Text,
    Usd,
    contradiction,
)

ProviderName = Annotated[
    str,
    Field(
        pattern=r"^[a-z][a-z0-9_]{0,31}$",
        json_schema_extra={"expected": "the name of a provider such as openai"},
    ),
]


class LimitSettings(Section):
    """A section that limits runs: it has the fields of a budget beside its own."""

    @property
    def limits(self) -> Budget:
        """The limits of the section."""
        names = (json_name(field.name) for field in fields(Budget))
        return Budget(**{name: getattr(self, name) for name in names})


Limited = TypeVar("Limited", bound=LimitSettings)


def limited(**defaults: float) -> Callable[[type[Limited]], type[Limited]]:
    """Give a section the fields of a budget, under their names in JSON, with these defaults."""
    described = TypeAdapter(Budget).json_schema()["properties"]
    limits: dict[str, Any] = {}
    for field, kind in get_type_hints(Budget, include_extras=True).items():
        if (name := json_name(field)) in described:
            text = described[name]["description"]
            limits[name] = kind, Field(defaults.get(name), description=text)

    def complete(section: type[Limited]) -> type[Limited]:
        return create_model(section.__name__, __base__=section, __doc__=section.__doc__, **limits)

    return complete


@limited(max_llm_calls_small=6, max_llm_calls_big=2, max_tool_calls=6, max_seconds=60.0)
class BudgetSettings(LimitSettings):
    """What a case run may spend unless its caller says otherwise: null is unlimited, 0 nothing."""

    wrap_up_reserve: Count = 1
    """Calls of the small model, out of its limit, that a case which would halt without them keeps
    for its final answer; a limit below 2 keeps none."""


@limited()
class AdmissionSettings(LimitSettings):
    """What no run of any kind may exceed, whatever its caller says, and how many may wait."""

    max_queued: Positive = 10_000
    """Runs that may wait for a worker; more are answered 429."""
    max_graph_kb: Positive = 1024
    """Longest graph as JSON, in KiB, with all the graphs it contains; so are the next three."""
    max_graph_steps: Positive = 10_000
    """Steps of a graph."""
    max_graph_edges: Positive = 50_000
    """Edges of a graph."""
    max_graph_depth: Positive = 8
    """Graphs inside one another, the outermost included."""


class ActSettings(Section):
    """The gate that lets the case agent go on, stop or escalate."""

    max_steps: Count = 3
    """Rounds of the small model in mode hrm_small_then_escalate."""
    max_steps_fallback_only: Annotated[int, Field(ge=0, le=1, strict=True)] = 1
    """Rounds of the small model in mode fallback_only, never more than max_steps: one pass always
    runs; 1 lets the gate judge it, 0 only verifies it."""
    min_improvement: Share = 0.01
    """Least rise of the metric that counts as progress."""
    no_progress_patience: Count = 1
    """Rounds without progress that are tolerated."""


class VerifierSettings(Section):
    """What the verifier asks of an answer."""

    pass_metric: Share = 1.0
    """Share of the checks of an answer that must hold for it to pass."""


class FlagSettings(Section):
    """How cases are run unless their caller says otherwise."""

    mode: Literal["hrm_small_then_escalate", "fallback_only"] = "hrm_small_then_escalate"
    """Several rounds on the small model before the big one, or a single one."""
    escalate_when: Literal["fail", "fail_or_budget"] = "fail_or_budget"
    """Whether only failure, or also the small model's used-up limits call for the big model."""
    max_input_chars: Count = 8192
    """Longest input of a run, in characters."""
    timezone: ZoneInfo | None = None
    """Zone, such as Europe/Berlin, for dates of cases that name none; null is the system's."""
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] | None = None
    """Seed for runs that bring none; null sends none to models."""

    @property
    def zone_name(self) -> str:
        """The IANA name of the configured zone, or of the system's."""
        return self.timezone.key if self.timezone else get_localzone_name()


class RetrySettings(Section):
    """How a failed call to a model provider or over the network is tried again."""

    max_retries: Count = 2
    """Further attempts after the first."""
    base_seconds: Amount = 0.5
    """Wait before the first retry."""
    factor: Annotated[float, Field(ge=1, le=100, strict=True)] = 2.0
    """What each further wait is multiplied by."""
    jitter: Share = 0.2
    """Share by which a wait may be longer or shorter by chance: 0.2 is plus or minus 20 %."""
    max_seconds: Seconds = 30.0
    """Longest wait between two attempts."""


class PriceSettings(Section):
    """Where the stock tools get daily prices from."""

    provider: Literal["packaged", "tiingo"] | None = None
    """The set that comes with the service (five companies, 2000 to 2013), or tiingo.com by key.
    Null is `tiingo` if a key is configured, else `packaged`."""
    api_key: ApiKey = None
    """Key of the provider; TIINGO_API_KEY serves as well, unless base_url is set."""
    base_url: Endpoint | None = None
    """Where the provider is, if it is reached some other way than directly."""
    timeout_seconds: Seconds = 15.0
    """How long one answer may take."""

    @property
    def chosen_provider(self) -> Literal["packaged", "tiingo"]:
        """The provider that these settings come to."""
        return self.provider or ("tiingo" if self.api_key else "packaged")

    @model_validator(mode="after")
    def _a_live_provider_has_its_key(self) -> Self:
        if self.api_key is None and self.provider != "packaged":
            if self.base_url:  # the usual key is sent to the provider itself and to nobody else
                raise contradiction("base_url", "needs TOOLS_PRICES_API_KEY in the environment")
            if self.provider == "tiingo":
                problem = "tiingo needs TIINGO_API_KEY in the environment"
                raise contradiction("provider", problem)
        return self


class ToolSettings(Section):
    """Which of the registered tools a run may use."""

    allow: Names | None = None
    """Names of the tools that may be used; null is all of them."""
    deny: Names = ()
    """Names of tools that may not be used, even if `allow` names them."""
    plugins: Names = ()
    """Tools to add, by dotted name such as my_package.tools:Weather. Packages can also add tools
    by entry points in the group caseworker.tools."""
    prices: PriceSettings = PriceSettings()


class ModelSettings(Section):
    """A model and how it is asked."""

    openai_model: ClassVar[str] = ""
    """The model that the provider openai uses unless another is named."""

    provider: ProviderName | None = None
    """`offline`, `openai`, `anthropic`, `recorded`, or one that a package adds by an entry point of
    the group caseworker.providers. Null is `openai` (or anything that speaks its protocol) if a key
    or base_url is configured, else `offline`: the built-in planner, which needs no model."""
    model: Text | None = None
    """Name of the model; null is gpt-5-nano for the small tier and gpt-5 for the big one."""
    base_url: Endpoint | None = None
    """Endpoint of the provider, such as http://127.0.0.1:11434/v1; it may need no key. Null is the
    provider's own, or OPENAI_BASE_URL of the environment."""
    api_key: ApiKey = None
    """Key of the provider; OPENAI_API_KEY and ANTHROPIC_API_KEY serve both tiers."""
    recording: Text | None = None
    """File that the provider `recorded` replays, as `caseworker eval --record` has written it."""
    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    """Randomness of replies; null leaves it to the provider."""
    max_output_tokens: Positive = 4096
    """Longest reply, in tokens; part of what a call reserves before it is made."""
    timeout_seconds: Seconds = 30.0
    """How long one attempt may take."""
    structured_output: Literal["auto", "schema", "json", "text"] = "auto"
    """How the model is made to reply with JSON: held to a schema, in JSON mode, or asked in words.
    `auto` takes the best that the endpoint accepts and heeds; `text` tries none of the others."""
    price_per_million_in_usd: Usd | None = None
    """Price of a million input tokens; null is the public list price."""
    price_per_million_out_usd: Usd | None = None
    """Price of a million output tokens; null is the public list price."""
    price_per_million_cached_usd: Usd | None = None
    """Price of a million cached input tokens, beside the two above; null is no discount on them."""

    @property
    def chosen_provider(self) -> str:
        """The provider that these settings come to."""
        return self.provider or ("openai" if self.api_key or self.base_url else "offline")

    @property
    def chosen_model(self) -> str:
        """The model that these settings come to; empty if they name none."""
        usual = {"openai": self.openai_model, "offline": "offline"}
        return self.model or usual.get(self.chosen_provider, "")

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        provider = self.chosen_provider
        if provider == "openai" and not (self.api_key or self.base_url):
            usual = "OPENAI_API_KEY in the environment, or a base_url that needs no key"
            raise contradiction("provider", f"openai needs {usual}")
        if provider == "anthropic" and not self.api_key:
            raise contradiction("provider", "anthropic needs ANTHROPIC_API_KEY in the environment")
        if provider == "recorded" and not self.recording:
            raise contradiction("recording", "must name a file, since the provider is recorded")
        if not self.chosen_model:
            raise contradiction("model", f"must name a model, since the provider is {provider}")
        prices = self.price_per_million_in_usd, self.price_per_million_out_usd
        if prices.count(None) == 1:
            problem = "must be given together with price_per_million_out_usd"
            raise contradiction("price_per_million_in_usd", problem)
        if self.price_per_million_cached_usd is not None and None in prices:
            problem = "must be given together with the other prices"
            raise contradiction("price_per_million_cached_usd", problem)
        return self


class TierSettings(ModelSettings):
    """The model of a tier, and those that stand in for it."""

    fallbacks: tuple[ModelSettings, ...] = ()
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
