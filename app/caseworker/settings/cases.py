"""Settings for limits of runs, the case agent and its tools."""

import re
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from typing import Annotated, Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, TypeAdapter, create_model, model_validator
from tzlocal import get_localzone_name

from caseworker.control.budget import Budget, json_name, json_number
from caseworker.runs.quotas import Quota
from caseworker.settings.models import ProviderSettings
from caseworker.settings.values import Count, Endpoint, Names, Positive, Seconds, Section, Text, key


def _one_call(calls: int) -> int:
    if calls > 1:
        raise ValueError("must be 0 or 1: a final answer takes one call")
    return calls


OneCall = Annotated[Count, AfterValidator(_one_call)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]


class LimitSettings(Section):
    """A section that contains all fields of a budget, in addition to its own."""

    @property
    def limits(self) -> Budget:
        """The budget fields of the section."""
        return Budget(**{f.name: getattr(self, json_name(f.name)) for f in fields(Budget)})

    @property
    def requires_prices(self) -> bool:
        """Whether the cost limit was set explicitly, so that unpriced models are rejected."""
        return "max_cost_usd" in self.model_fields_set


Limited = TypeVar("Limited", bound=LimitSettings)


def limited(defaults: Budget) -> Callable[[type[Limited]], type[Limited]]:
    """Add the fields of a budget to a section, under their JSON names and with these defaults."""
    described = TypeAdapter(Budget).json_schema()["properties"]
    limits: dict[str, Any] = {}
    for field in fields(Budget):
        name, default = json_name(field.name), json_number(getattr(defaults, field.name))
        limits[name] = field.type, key(default, described[name]["description"])
    return lambda section: create_model(
        section.__name__, __base__=section, __doc__=section.__doc__, **limits
    )


@limited(Budget(max_llm_calls_small=6, max_llm_calls_big=2, max_tool_calls=6, max_seconds=60.0))
class BudgetSettings(LimitSettings):
    """Default limits of a case run; null is unlimited, 0 allows nothing."""

    min_output_tokens: Positive = key(
        256, "Output tokens a model call asks for at least; a budget with little left lowers it."
    )
    wrap_up_reserve: OneCall = key(
        1, "1 reserves one call, of a limit above 1, for the final answer; 0 turns that off."
    )


@limited(
    Budget(
        max_tokens=5_000_000,
        max_seconds=3600.0,
        max_steps=10_000,
        max_api_calls=1000,
        max_cost_usd=10,
        max_tool_calls=1000,
    )
)
class AdmissionSettings(LimitSettings):
    """Limits that no run can exceed, regardless of its request, and limits of the queue.

    The default max_cost_usd permits models without a known price; an explicit one rejects them.
    """

    max_queued: Positive = key(10_000, "Runs that wait for a worker; more are answered 429.")
    max_delay_days: Annotated[Positive, Field(le=3650)] = key(90, "How far ahead start_at may be.")
    max_schedules: Positive = key(1000, "Schedules of a tenant; more are answered 429.")
    max_graph_kb: Positive = key(1024, "Longest graph as JSON, in KiB, with all its inner graphs.")
    max_graph_steps: Positive = key(10_000, "Steps of a graph with all its inner graphs.")
    max_graph_edges: Positive = key(50_000, "Edges of a graph with all its inner graphs.")
    max_graph_depth: Positive = key(8, "Graphs inside one another, the outermost included.")


Money = Annotated[Decimal, Field(ge=0, le=Decimal("1e12"), allow_inf_nan=False)]


class QuotaSettings(Section):
    """Default quota of each tenant; /quotas sets a tenant's own quota."""

    max_running: Count | None = key(None, "Runs executed at once; further ones wait; null: any.")
    max_queued: Count | None = key(None, "Runs that wait; further ones are answered 429.")
    max_runs_per_minute: Count | None = key(None, "Accepted runs; further ones are answered 429.")
    max_cost_usd_per_day: Money | None = key(None, "Of the runs accepted on one day, in UTC.")
    max_cost_usd_per_month: Money | None = key(None, "Of the runs accepted in one month, in UTC.")
    max_stored_bytes: Count | None = key(
        10 << 30, "Stored in all; more is answered 429. The tenant default stores without limit."
    )
    max_definitions: Count | None = key(10_000, "Versions of graphs and agents; not of default.")
    max_threads: Count | None = key(100_000, "Threads; not of default.")
    models: Names | None = key(None, "The only models that runs may use, by name; null: any.")

    @property
    def quota(self) -> Quota:
        """The section as a domain value."""
        return Quota(**{name: getattr(self, name) for name in Quota.__dataclass_fields__})


class ActSettings(Section):
    """The gate that decides whether the case agent continues, stops or escalates."""

    max_steps: Count = key(3, "Rounds of the small model in mode hrm_small_then_escalate.")
    max_steps_fallback_only: Annotated[int, Field(ge=0, le=1, strict=True)] = 1
    """The same in mode fallback_only, at most max_steps: 1 sends the single pass to the gate, 0 to
    the verifier only."""
    min_improvement: Share = key(0.01, "Least rise of the metric that counts as progress.")
    no_progress_patience: Count = key(1, "Rounds without progress that are tolerated.")


class VerifierSettings(Section):
    """Requirements of the verifier."""

    pass_metric: Share = key(1.0, "Share of an answer's checks that must hold.")
    second_plan: Literal["auto", "off"] = "auto"
    """Whether a model's choice of operation needs confirmation if no other check confirms it.
    Confirmation takes one more call of its tier: a second plan in another form."""


class FlagSettings(Section):
    """Defaults of case runs."""

    mode: Literal["hrm_small_then_escalate", "escalate", "fallback_only"] = (
        "hrm_small_then_escalate"
    )
    """Several rounds on the small model before the big one (short: escalate), or a single round."""
    escalate_when: Literal["fail", "fail_or_budget"] = "fail_or_budget"
    """Whether to escalate to the big model only on failure, or also when the small model's limits
    are exhausted."""
    max_input_chars: Count = key(8192, "Longest input of a run, in characters.")
    timezone: ZoneInfo | None = key(None, "Of dates without one, as Europe/Berlin; null: system's.")
    seed: Annotated[Count, Field(lt=2**31)] | None = key(None, "Of runs without one; null: none.")

    @property
    def zone_name(self) -> str:
        """The IANA name of the configured time zone, or of the system's."""
        return self.timezone.key if self.timezone else get_localzone_name()


class RetrySettings(Section):
    """Retries of failed calls to model providers and other network services."""

    max_retries: Count = key(2, "Further attempts after the first.")
    base_seconds: Annotated[float, Field(ge=0, strict=True)] = key(0.5, "Before the first retry.")
    factor: Annotated[Seconds, Field(ge=1, le=100)] = key(2.0, "Growth of each further wait.")
    jitter: Share = key(0.2, "Random part of a wait: 0.2 is up to 20 % more or less.")
    max_seconds: Seconds = key(30.0, "Longest wait between two attempts.")


class PriceSettings(ProviderSettings):
    """Source of the daily prices for the stock tools."""

    built_in, live = "packaged", "tiingo"

    provider: Literal["packaged", "tiingo"] | None = None
    """Five companies, 2000 to 2013, or tiingo.com; null is `tiingo` with a key, else `packaged`."""
    timeout_seconds: Seconds = key(15.0, "How long one answer may take.")


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("must be the name of an environment variable")
    return name


Variable = Annotated[Text, AfterValidator(_variable)]


class McpServerSettings(Section):
    """An MCP server: a program that the service starts, or a URL."""

    command: Text | None = key(None, "Program to start; it is spoken to over its stdin and stdout.")
    args: tuple[str, ...] = key((), "Its arguments.")
    env: tuple[Variable, ...] = key((), "Environment variables that it gets, by name.")
    url: Endpoint | None = key(None, "Address of a server that speaks streamable HTTP.")
    headers: dict[Text, Variable] = key({}, "Headers: each names the variable with its value.")
    allow: Names | None = key(None, "The server's names of tools that may be used; null is all.")
    timeout_seconds: Seconds = key(30.0, "How long one call may take.")
    start_timeout_seconds: Seconds = key(10.0, "How long it may take to start and list its tools.")
    max_result_kb: Positive = key(8192, "Longest message that is read from it, in KiB.")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("command: give either the command of a program or a url")
        if self.headers and self.url is None:
            raise ValueError("headers: belong to a url")
        if (self.env or self.args) and self.command is None:
            raise ValueError("args: belong to a command, as env does")
        return self


ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]


class McpSettings(Section):
    """MCP servers that provide tools; only the operator can configure them."""

    servers: dict[ServerName, McpServerSettings] = key({}, "Servers by name: see docs/mcp.md.")


class ToolSettings(Section):
    """Which of the registered tools runs may use."""

    allow: Names | None = key(None, "Names of the tools that may be used; null is all of them.")
    deny: Names = key((), "Names of tools that may not be used, even if `allow` names them.")
    requires_approval: Names = key(
        (), "Names of tools each call of which a person must approve; `server.*`: all of a server."
    )
    approval_timeout_seconds: Seconds = key(
        86_400.0, "How long a person may take to approve a call; then it is not made."
    )
    plugins: Names = key((), "Tools to add, by dotted name such as my_package.tools:Weather.")
    expose_errors: bool = key(
        False,
        "Whether models read the texts of tools' unexpected exceptions, or the class alone.",
    )
    prices: PriceSettings = PriceSettings()
    mcp: McpSettings = McpSettings()
