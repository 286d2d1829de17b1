"""Routes for tenant quotas: limits and current usage."""

from datetime import datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Annotated, Self

from fastapi import Path
from pydantic import Field

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.quotas.usage import TenantQuota
from caseworker.models.gateway import ModelGateway
from caseworker.nodes.model_spec import ModelName
from caseworker.platform.caller import TENANT_FORM, KeyScope
from caseworker.platform.http.bodies import BodyModel, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import TENANT_REFUSED, ProblemError, invalid
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.suggestions import suggestion
from caseworker.runs.quotas import Quota

router = api_router("quotas", prefix="/quotas")

TenantPath = Annotated[str, Path(pattern=f"^{TENANT_FORM}$", description="The tenant.")]
Runs = Annotated[int, Field(ge=0, le=1_000_000)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
MAX_MODELS = 100
Dollars = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class QuotaBody(BodyModel):
    """A quota for a tenant. Omitted limits are unlimited."""

    max_running: Runs | None = None
    """Maximum number of runs that are executed at once. Further runs wait in the queue."""
    max_queued: Runs | None = None
    """Maximum number of queued runs. Further runs are rejected."""
    max_runs_per_minute: Runs | None = None
    """Maximum number of runs accepted per minute; also the burst size of the token bucket."""
    max_cost_usd_per_day: Dollars | None = None
    """Maximum cost, in US dollars, of the model calls of one UTC day. Each call reserves its
    maximum cost until it ends."""
    max_cost_usd_per_month: Dollars | None = None
    """Maximum cost, in US dollars, of the model calls of one calendar month (UTC). Each call
    reserves its maximum cost until it ends."""
    max_stored_bytes: Bytes | None = None
    """Maximum size of the tenant's stored data, in bytes. When it is reached, new runs,
    definitions, threads and schedules are rejected; accepted runs continue."""
    max_definitions: Runs | None = None
    """Maximum number of registered versions of graphs and agents."""
    max_threads: Runs | None = None
    models: Annotated[list[ModelName], Field(max_length=MAX_MODELS)] | None = None
    """Allowlist of models for runs, including fallbacks, by their names in GET /models. Null allows
    all models."""

    def quota(self) -> Quota:
        """Return the body as a quota."""
        limits = self.model_dump()
        for name in ("max_cost_usd_per_day", "max_cost_usd_per_month"):
            if limits[name] is not None:
                limits[name] = Decimal(str(limits[name]))
        models = None if self.models is None else tuple(self.models)
        return Quota(**{**limits, "models": models})


class QuotaUseView(View):
    """Current usage of a tenant's quota."""

    running: int
    queued: int
    cost_usd_today: float
    """Cost, in US dollars, of the model calls that were reserved today (UTC) and have ended. Runs
    that were accepted while cost was not limited count when they end, on the day of their
    acceptance."""
    reserved_usd_today: float
    """Maximum cost, in US dollars, of the model calls in flight that were reserved today (UTC)."""
    cost_usd_this_month: float
    reserved_usd_this_month: float
    stored_bytes: int
    """Size, in bytes, of the contents of runs, files, definitions, threads, messages and schedules,
    without indexes."""
    definitions: int
    threads: int


class QuotaView(View):
    """The quota of a tenant and its current usage. A limit that is null is unlimited."""

    tenant: str
    is_default: bool
    """Whether the tenant has no quota of its own, so that the configured default (``quotas.*``)
    applies."""
    max_running: int | None
    max_queued: int | None
    max_runs_per_minute: int | None
    max_cost_usd_per_day: float | None
    max_cost_usd_per_month: float | None
    max_stored_bytes: int | None
    max_definitions: int | None
    max_threads: int | None
    models: list[str] | None
    use: QuotaUseView
    nearly_full: list[str]
    """Names of the limits among ``stored_bytes``, ``definitions`` and ``threads`` that are at least
    80 % used."""
    updated_at: datetime | None

    @classmethod
    def of(cls, usage: TenantQuota) -> Self:
        """Return the view of a quota and its usage."""
        return cls.of_parts(usage, usage.quota)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def get_own_quota(request: ApiRequest) -> QuotaView:
    """Return the quota of the caller's tenant and its usage."""
    return QuotaView.of(await request.service(PostgresQuotas).get(request.caller.tenant))


@router.get("/{tenant}", responses=answers(*EVERY_RUN_ROUTE, TENANT_REFUSED))
async def get_quota(tenant: TenantPath, request: ApiRequest) -> QuotaView:
    """Return the quota and usage of a tenant; only the operator may read other tenants."""
    is_own = request.caller.tenant == tenant
    quotas = request.service(PostgresQuotas) if is_own else _quotas_of_all(request)
    return QuotaView.of(await quotas.get(tenant))


@router.put("/{tenant}", responses=answers(*EVERY_RUN_ROUTE, TENANT_REFUSED, *EVERY_BODY))
@requires(KeyScope.ADMIN)
async def put_quota(tenant: TenantPath, body: QuotaBody, request: ApiRequest) -> QuotaView:
    """Set a tenant's own quota, replacing the previous one completely.

    It applies to new runs on every replica. Cost limits also apply to the next calls of runs that
    were accepted under a cost limit.
    """
    quotas, models = _quotas_of_all(request), request.service(ModelGateway).table
    for at, name in enumerate(body.models or ()):
        if name not in models:
            message = f"Unknown model. Available models: {', '.join(models)}."
            raise invalid(f"models.{at}", message + suggestion(name, models))
    await quotas.put(tenant, body.quota())
    return QuotaView.of(await quotas.get(tenant))


@router.delete(
    "/{tenant}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **answers(*EVERY_RUN_ROUTE, TENANT_REFUSED),
        204: {"description": "The tenant has the configured default quota."},
    },
)
@requires(KeyScope.ADMIN)
async def delete_quota(tenant: TenantPath, request: ApiRequest) -> None:
    """Reset a tenant to the configured default quota."""
    await _quotas_of_all(request).delete(tenant)


def _quotas_of_all(request: ApiRequest) -> PostgresQuotas:
    """Return the quotas if the caller may manage those of all tenants.

    Tenants cannot set their own quota. While no credentials exist, local callers may set all
    quotas.
    """
    if not request.caller.sees_all_tenants:
        raise ProblemError(TENANT_REFUSED)
    return request.service(PostgresQuotas)
