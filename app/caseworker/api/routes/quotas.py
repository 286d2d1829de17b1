"""The quotas of tenants: what each may have at once and spend, and what it has used of that."""

from datetime import datetime
from decimal import Decimal
from http import HTTPStatus
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import Field

from caseworker.access.caller import TENANT_FORM, Scope
from caseworker.api import problem_types as types
from caseworker.api.api_request import ApiRequest, api_router, requires
from caseworker.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.api.field_types import Body, View
from caseworker.api.problems import ProblemError, invalid
from caseworker.control.budget import json_number
from caseworker.nodes.model_spec import ModelName
from caseworker.runs.quotas import Quota, QuotaStore, QuotaUse, TenantQuota

router = api_router("quotas", prefix="/quotas")

TenantPath = Annotated[str, Path(pattern=f"^{TENANT_FORM}$", description="The tenant.")]
Runs = Annotated[int, Field(ge=0, le=1_000_000)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
MAX_MODELS = 100
Dollars = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class QuotaBody(Body):
    """A quota of a tenant's own; what is left out is unlimited."""

    max_running: Runs | None = None
    """Runs that are executed at once; further ones wait in the queue."""
    max_queued: Runs | None = None
    """Runs that wait; further ones are refused."""
    max_runs_per_minute: Runs | None = None
    """As many may come at once; the allowance refills steadily."""
    max_cost_usd_per_day: Dollars | None = None
    """Of the runs accepted on one day, in UTC. A run reserves its own limit until it ends."""
    max_cost_usd_per_month: Dollars | None = None
    """Likewise of a calendar month."""
    max_stored_bytes: Bytes | None = None
    """All that the tenant stores. When full, new runs, definitions, threads and schedules are
    refused; runs that were accepted go on."""
    max_definitions: Runs | None = None
    """Versions of graphs and agents."""
    max_threads: Runs | None = None
    models: Annotated[list[ModelName], Field(max_length=MAX_MODELS)] | None = None
    """The only models that runs may use, as GET /models names them; fallbacks too."""

    def quota(self) -> Quota:
        """Return the quota."""
        sent = self.model_dump()
        for name in ("max_cost_usd_per_day", "max_cost_usd_per_month"):
            if sent[name] is not None:
                sent[name] = Decimal(str(sent[name]))
        models = None if self.models is None else tuple(self.models)
        return Quota(**{**sent, "models": models})


class QuotaUseView(View):
    """What a tenant has and has spent now."""

    running: int
    queued: int
    cost_usd_today: float
    """Of runs that have ended, also those that were accepted before there was a limit."""
    reserved_usd_today: float
    """What those that have not ended may cost at most."""
    cost_usd_this_month: float
    reserved_usd_this_month: float
    stored_bytes: int
    """Contents of runs, files, definitions, threads, messages and schedules, without indexes."""
    definitions: int
    threads: int

    @classmethod
    def of(cls, use: QuotaUse) -> Self:
        """Return the view of a use."""
        return cls(**_plain(use))


class QuotaView(View):
    """The quota of a tenant, and what it has used of it; null is unlimited."""

    tenant: str
    is_default: bool
    """Whether it is that of the configuration (``quotas.*``)."""
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
    """Those of ``stored_bytes``, ``definitions`` and ``threads`` of which 80 % are used."""
    updated_at: datetime | None

    @classmethod
    def of(cls, found: TenantQuota) -> Self:
        """Return the view of a quota."""
        return cls(
            tenant=found.tenant,
            is_default=found.is_default,
            use=QuotaUseView.of(found.use),
            nearly_full=list(found.nearly_full),
            updated_at=found.updated_at,
            **_plain(found.quota),
        )


def _plain(amounts: Quota | QuotaUse) -> dict[str, Any]:
    return {name: json_number(getattr(amounts, name)) for name in amounts.__dataclass_fields__}


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def get_own_quota(request: ApiRequest) -> QuotaView:
    """Return the quota of the caller's own tenant, and its use."""
    return QuotaView.of(await request.api.services.quotas.get(request.caller.tenant))


@router.get("/{tenant}", responses=answers(*EVERY_RUN_ROUTE, types.TENANT_REFUSED))
async def get_quota(tenant: TenantPath, request: ApiRequest) -> QuotaView:
    """Return the quota of the caller's own tenant, or of any for the operator, and its use."""
    own = request.caller.tenant == tenant
    quotas = request.api.services.quotas if own else _quotas_of_all(request)
    return QuotaView.of(await quotas.get(tenant))


@router.put("/{tenant}", responses=answers(*EVERY_RUN_ROUTE, types.TENANT_REFUSED, *EVERY_BODY))
@requires(Scope.ADMIN)
async def put_quota(tenant: TenantPath, body: QuotaBody, request: ApiRequest) -> QuotaView:
    """Give a tenant a quota of its own, in the place of the one it has.

    It holds from the next run on, on every replica; runs that were accepted stay.
    """
    quotas, known = _quotas_of_all(request), request.api.services.models.table
    for at, name in enumerate(body.models or ()):
        if name not in known:
            raise invalid(f"models.{at}", f"Unknown model. Available models: {', '.join(known)}.")
    await quotas.put(tenant, body.quota())
    return QuotaView.of(await quotas.get(tenant))


@router.delete(
    "/{tenant}",
    status_code=HTTPStatus.NO_CONTENT,
    responses={
        **answers(*EVERY_RUN_ROUTE, types.TENANT_REFUSED),
        204: {"description": "The tenant has the configured default quota."},
    },
)
@requires(Scope.ADMIN)
async def delete_quota(tenant: TenantPath, request: ApiRequest) -> None:
    """Give a tenant the quota of the configuration again."""
    await _quotas_of_all(request).delete(tenant)


def _quotas_of_all(request: ApiRequest) -> QuotaStore:
    """Return the quotas to somebody who may see and change all of them.

    Nobody sets their own; while there are no credentials, whoever is on this machine sets them.
    """
    caller = request.caller
    if not caller.operator and not (caller.anonymous and caller.may(Scope.ADMIN)):
        raise ProblemError(types.TENANT_REFUSED)
    return request.api.services.quotas
