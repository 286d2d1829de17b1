"""Response models of schedules, quotas, costs and webhooks, with the field names of the API."""

from datetime import datetime
from typing import Any

from caseworker_client.models import Answer


class Schedule(Answer):
    """A schedule and its state."""

    name: str
    cron: str
    timezone: str
    run: dict[str, Any]
    """The request for the schedule's runs, as it was sent."""
    overlap: str
    """``skip``, ``allow`` or ``cancel_running``."""
    catch_up: str
    """``skip``, ``one`` or ``all``."""
    max_catch_up: int
    paused: bool
    next_at: datetime | None = None
    """Next scheduled time; None while the schedule is paused."""
    last_at: datetime | None = None
    last_run_id: str | None = None
    skipped: int = 0
    last_error: str | None = None


class ScheduleList(Answer):
    """A page of schedules, by name."""

    schedules: list[Schedule]
    next_cursor: str | None = None


class QuotaUse(Answer):
    """Current usage of a tenant; days and months are in UTC."""

    running: int
    queued: int
    cost_usd_today: float
    reserved_usd_today: float
    """Maximum cost, in US dollars, of the runs that have not ended."""
    cost_usd_this_month: float
    reserved_usd_this_month: float
    stored_bytes: int = 0
    definitions: int = 0
    """Number of stored versions of graphs and agents."""
    threads: int = 0


class SpendSum(Answer):
    """The cost of a number of runs."""

    runs: int
    llm_calls: int
    tokens: int
    cost_usd: float
    cost_usd_estimated: float
    """The part of ``cost_usd`` that is an estimate, for calls whose response was lost."""


class SpendItem(SpendSum):
    """The cost of one group of runs."""

    period: str | None = None
    """UTC day (``2026-11-27``) or month (``2026-11``); None for all time."""
    key: str | None = None
    """Tenant, agent, model or metadata value; None for runs without one."""


class Spend(Answer):
    """The cost of runs by group, the newest period and the highest cost first."""

    group_by: str
    period: str | None = None
    items: list[SpendItem]
    total: SpendSum


class Halt(Answer):
    """Why calls with a standing key are refused."""

    message: str
    run_id: str | None = None
    """Run that was halted; None if the session has none."""
    resets_at: datetime | None = None
    """Time at which the limit is renewed; None if it never is."""


class KeyUsage(Answer):
    """The usage of a standing key, over all its sessions and users."""

    key_id: str
    at: datetime
    cost_usd: float
    tokens: int
    llm_calls: int
    api_calls: int
    halted: Halt | None = None
    """The last halt of a session by a limit; None without one."""
    refusal: Halt | None = None
    """Why the next call without a session is refused; None if it is not."""


class Quota(Answer):
    """The limits of a tenant and its current usage; None is unlimited."""

    tenant: str
    is_default: bool
    """Whether the tenant has the configured default quota."""
    max_running: int | None = None
    max_queued: int | None = None
    max_runs_per_minute: int | None = None
    max_cost_usd_per_day: float | None = None
    max_cost_usd_per_month: float | None = None
    max_stored_bytes: int | None = None
    max_definitions: int | None = None
    max_threads: int | None = None
    use: QuotaUse
    nearly_full: tuple[str, ...] = ()
    """Which of ``stored_bytes``, ``definitions`` and ``threads`` are at least 80 % used."""
    updated_at: datetime | None = None


class WebhookSecret(Answer):
    """A signing secret for webhooks; ``secret`` is set only right after its creation."""

    version: int
    created_at: datetime
    expires_at: datetime | None = None
    """Time from which the secret no longer signs; None for the newest secret."""
    secret: str | None = None


class WebhookSecretList(Answer):
    """The active signing secrets, newest first."""

    secrets: list[WebhookSecret]


class Delivery(Answer):
    """A webhook delivery about the end of a run, and its state."""

    delivery_id: str
    """ID of the delivery, sent as ``webhook-id`` with every attempt."""
    run_id: str
    type: str
    url: str
    status: str
    """``pending``, ``delivered`` or ``dead``."""
    attempts: int
    due_at: datetime | None = None
    last_status_code: int | None = None
    last_error: str | None = None


class DeliveryList(Answer):
    """A page of deliveries, newest first."""

    deliveries: list[Delivery]
    next_cursor: str | None = None
