"""Settings for the limits of runs, the queue and tenants."""

from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, TypeAdapter, create_model

from caseworker.core.budget.budget import Budget, json_name
from caseworker.runs.quotas import Quota
from caseworker.settings.values import Count, Names, Positive, Section, key


class LimitSettings(Section):
    """A settings section that has one key for each budget field, in addition to its own keys."""

    @property
    def limits(self) -> Budget:
        """Budget with the limits in this section."""
        return Budget(**{f.name: getattr(self, json_name(f.name)) for f in fields(Budget)})

    @property
    def requires_prices(self) -> bool:
        """Whether the cost limit was set explicitly.

        If so, models without a known price are rejected.
        """
        return "max_cost_usd" in self.model_fields_set


_DESCRIBED: Final = TypeAdapter(Budget).json_schema()["properties"]
Limited = TypeVar("Limited", bound=LimitSettings)


def limited(defaults: Budget) -> Callable[[type[Limited]], type[Limited]]:
    """Return a decorator that adds one key for each budget field to a section.

    ``defaults`` holds the default of each key.
    """
    limits: dict[str, Any] = {}
    for field, (name, default) in zip(fields(Budget), defaults.to_json().items(), strict=True):
        limits[name] = field.type, key(default, _DESCRIBED[name]["description"])
    return lambda section: create_model(
        section.__name__, __base__=section, __doc__=section.__doc__, **limits
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

    max_queued: Positive = key(
        10_000, "Maximum number of queued runs; further runs are rejected with 429."
    )
    max_delay_days: Annotated[Positive, Field(le=3650)] = key(90, "Maximum delay of start_at.")
    max_external_runs: Positive = key(
        1000, "Maximum number of external runs per process; further ones are rejected with 429."
    )
    max_schedules: Positive = key(
        1000, "Maximum number of schedules per tenant; further ones are rejected with 429."
    )
    max_graph_kb: Positive = key(
        1024, "Maximum size of a graph as JSON with its nested graphs, in KiB."
    )
    max_graph_steps: Positive = key(
        10_000, "Maximum number of steps of a graph with its nested graphs."
    )
    max_graph_edges: Positive = key(
        50_000, "Maximum number of edges of a graph with its nested graphs."
    )
    max_graph_depth: Positive = key(8, "Maximum nesting depth of graphs, including the outermost.")


Money = Annotated[Decimal, Field(ge=0, le=Decimal("1e12"), allow_inf_nan=False)]


class QuotaSettings(Section):
    """Default quota of each tenant; null is unlimited. `caseworker quotas` sets a tenant's own."""

    max_running: Count | None = key(
        None, "Maximum number of concurrent runs; further runs are queued; null: no limit."
    )
    max_queued: Count | None = key(
        None, "Maximum number of queued runs; further runs are rejected with 429."
    )
    max_runs_per_minute: Count | None = key(
        None, "Maximum number of accepted runs per minute; further runs are rejected with 429."
    )
    max_cost_usd_per_day: Money | None = key(None, "Maximum cost of the model calls per day (UTC).")
    max_cost_usd_per_month: Money | None = key(
        None, "Maximum cost of the model calls per month (UTC)."
    )
    max_stored_bytes: Count | None = key(
        10 << 30,
        ("Maximum stored bytes; more is rejected with 429. Does not apply to the tenant default."),
    )
    max_definitions: Count | None = key(
        10_000,
        "Maximum number of versions of graphs and agents. Does not apply to the tenant default.",
    )
    max_threads: Count | None = key(
        100_000, "Maximum number of threads. Does not apply to the tenant default."
    )
    models: Names | None = key(None, "Names of the models that runs may use; null: any.")

    @property
    def quota(self) -> Quota:
        """Quota with the limits in this section."""
        return Quota(**{name: getattr(self, name) for name in Quota.__dataclass_fields__})
