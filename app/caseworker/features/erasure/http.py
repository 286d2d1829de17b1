"""Route that erases the data of a customer."""

import json
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from caseworker.features.erasure.postgres import Subject
from caseworker.features.erasure.service import WORK_SECONDS, Erasing
from caseworker.platform.caller import TENANT_FORM, KeyScope, OtherTenantError
from caseworker.platform.http.bodies import BodyModel, StorableText, View
from caseworker.platform.http.deadline import extend_deadline
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import TENANT_REFUSED
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.validation import refusal

router = api_router("erasures")

MAX_KEYS = 10
ANSWER_SECONDS = 60.0
"""Time for the last batch and the statements after it, in seconds."""


class ErasureBody(BodyModel):
    """The data to erase: a whole tenant, or the data with certain metadata."""

    tenant: Annotated[str, StringConstraints(pattern=f"^{TENANT_FORM}$")] | None = None
    """Tenant whose data to erase; defaults to the caller's if ``metadata`` is given. Only the
    operator may name another tenant, or erase a whole tenant."""
    metadata: (
        Annotated[
            dict[StorableText, StorableText | bool | int | float | None],
            Field(min_length=1, max_length=MAX_KEYS),
        ]
        | None
    ) = None
    """Erase the runs, threads and schedules whose metadata have all these values. Null erases
    everything of the tenant, including its keys, agents, quotas and settings."""

    @model_validator(mode="after")
    def _names_data(self) -> Self:
        if self.tenant is None and self.metadata is None:
            raise refusal("Send metadata, or the tenant whose data to erase.")
        return self


class ErasureView(View):
    """The data that this request has erased."""

    runs: int
    """Number of erased runs, with the runs that were forked from them and their children."""
    threads: int
    schedules: int
    waiting: int
    """Number of runs that were cancelled but have not ended."""
    complete: bool
    """Whether no data is left. If it is false, repeat the request."""


@router.post("/erasures", responses=answers(*EVERY_RUN_ROUTE, TENANT_REFUSED, *EVERY_BODY))
@requires(KeyScope.ADMIN)
async def erase(body: ErasureBody, request: ApiRequest) -> ErasureView:
    """Cancel and erase all runs of a tenant or with certain metadata, and everything around them.

    The request works for about ten seconds. Repeat it until ``complete`` is true. Requests that
    create data of the same tenant or metadata in the meantime must be stopped first.
    """
    request.require_small()
    caller = request.caller
    tenant = body.tenant or caller.tenant
    is_own = tenant == caller.tenant and body.metadata is not None
    if not (is_own or caller.sees_all_tenants):
        raise OtherTenantError
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (body.metadata or {}).items()
    }
    extend_deadline(request.scope, WORK_SECONDS + ANSWER_SECONDS)
    erased = await request.service(Erasing).erase(
        Subject(tenant, texts or None), by=caller.name, tenant=caller.tenant
    )
    return ErasureView.of_parts(erased)
