"""HTTP route that lists the audit log."""

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import StringConstraints

from caseworker.features.audit.postgres import PostgresAudit
from caseworker.platform.caller import TENANT_FORM, KeyScope, OtherTenantError
from caseworker.platform.http.bodies import Instant, PageQuery, View
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import TENANT_REFUSED
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.postgres.audit import Act

router = api_router("audit")


class AuditQuery(PageQuery):
    """Query parameters that select administrative acts. All given filters must match."""

    action: Act | None = None
    """Return only acts of this kind."""
    after: Instant | None = None
    """Return only acts after this time."""
    before: Instant | None = None
    """Return only acts before this time."""
    tenant: Annotated[str, StringConstraints(pattern=f"^{TENANT_FORM}$")] | None = None
    """Return only acts on resources of this tenant. Only the operator may name another one."""


class EntryView(View):
    """An administrative act."""

    at: datetime
    tenant: str
    """Tenant to which the target belongs."""
    action: Act
    target: str
    """Name or ID of the changed resource: a key, agent, graph, run, schedule, server, worker or
    tenant."""
    actor: str
    """Name of the key, or subject of the token; `operator` for the bootstrap key and the command
    line."""
    actor_tenant: str
    actor_key_id: str | None
    """ID of the key; null for tokens, the bootstrap key and the command line."""
    request_id: str | None
    """ID of the request, as in the header `X-Request-ID` and the logs; null on the command line."""


class AuditView(View):
    """A page of administrative acts, newest first."""

    entries: list[EntryView]
    next_cursor: str | None
    """Cursor of the next page; null on the last page."""


@router.get("/audit", responses=answers(*EVERY_RUN_ROUTE, TENANT_REFUSED))
@requires(KeyScope.ADMIN)
async def list_audit(query: Annotated[AuditQuery, Query()], request: ApiRequest) -> AuditView:
    """List administrative acts on the tenant's resources, newest first.

    The operator sees the acts of all tenants, or of the tenant given.
    """
    caller, filters = request.caller, query.model_dump()
    if not caller.sees_all_tenants:
        if query.tenant not in (None, caller.tenant):
            raise OtherTenantError
        filters["tenant"] = caller.tenant
    page = await request.service(PostgresAudit).find(**filters)
    entries = [EntryView(**each) for each in page.items]
    return AuditView(entries=entries, next_cursor=page.next_cursor)
