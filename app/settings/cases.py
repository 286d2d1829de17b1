"""Settings of the case agent: small model first, big model when that fails (seed 002)."""

from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field
from tzlocal import get_localzone_name

from app.settings.values import (
    ApiKey,
    Count,
    Endpoint,
    Names,
    Seconds,
    Section,
    Seed,
    Share,
    Switch,
)

Mode = Literal["hrm_small_then_escalate", "fallback_only"]


def _zone_name(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError("must be a time zone") from error
    return name


ZoneName = Annotated[
    str,
    AfterValidator(_zone_name),
    Field(json_schema_extra={"expected": "an IANA time zone such as Europe/Berlin"}),
]


class ActSettings(Section):
    """The gate that lets the case agent go on, stop or escalate."""

    max_steps: Count = 3
    """Rounds of the small model in mode hrm_small_then_escalate."""
    max_steps_fallback_only: Switch = 1
    """Rounds of the small model in mode fallback_only: one pass always runs; 1 lets the gate
    judge it, 0 only verifies it. It is never more than max_steps."""
    min_improvement: Share = 0.01
    """Least rise of the metric that counts as progress."""
    no_progress_patience: Count = 1
    """Rounds without progress that are borne."""


class VerifierSettings(Section):
    """What the verifier asks of an answer."""

    pass_metric: Share = 1.0
    """Share of the checks of an answer that must hold for it to pass."""


class FlagSettings(Section):
    """How cases are run unless their caller says otherwise."""

    mode: Mode = "hrm_small_then_escalate"
    """Several rounds on the small model before the big one, or a single one."""
    escalate_when: Literal["fail", "fail_or_budget"] = "fail_or_budget"
    """Whether only failure, or also the small model's used-up limits call for the big model."""
    max_input_chars: Count = 8192
    """Longest input of a run, in characters."""
    timezone: ZoneName | None = None
    """Zone that dates are read in unless a case names its own; null is the system's."""
    seed: Seed | None = None
    """Seed for runs that bring none; null sends none to models."""

    @property
    def zone_name(self) -> str:
        """The IANA name of the configured zone, or of the system's."""
        return self.timezone or get_localzone_name()


class PriceSettings(Section):
    """Where the stock tools get daily prices from."""

    provider: Literal["packaged", "tiingo"] | None = None
    """The set that comes with the service (five companies, 2000 to 2013), or tiingo.com by key.
    Null is `tiingo` if a key is configured, else `packaged`."""
    api_key: ApiKey | None = None
    """Key of the provider; TIINGO_API_KEY serves as well, unless base_url is set."""
    base_url: Endpoint | None = None
    """Where the provider is, if it is reached some other way than directly."""
    timeout_seconds: Seconds = 15.0
    """How long one answer may take."""

    @property
    def chosen_provider(self) -> Literal["packaged", "tiingo"]:
        """The provider that these settings come to."""
        return self.provider or ("tiingo" if self.api_key else "packaged")

    def problem(self) -> tuple[str, str] | None:
        """Return the key that does not fit the others and what it must be, if there is one."""
        if self.api_key is not None or self.provider == "packaged":
            return None
        if self.base_url:  # the usual key goes to the provider itself and to nobody else
            return "base_url", "needs TOOLS_PRICES_API_KEY in the environment"
        if self.provider == "tiingo":
            return "provider", "tiingo needs TIINGO_API_KEY in the environment"
        return None


class ToolSettings(Section):
    """Which of the registered tools a run may use."""

    allow: Names | None = None
    """Names of the tools that may be used; null is all of them."""
    deny: Names = ()
    """Names of tools that may not be used, whatever else is said."""
    plugins: Names = ()
    """Tools to add, by dotted name such as my_package.tools:Weather. Packages can also add tools
    by entry points in the group caseworker.tools."""
    prices: PriceSettings = PriceSettings()
