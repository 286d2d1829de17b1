"""The feature ``waiting calls``: people decide approvals, and clients execute their tools."""

from typing import Final

from caseworker.features.feature import Feature
from caseworker.features.waiting_calls import approvals_http, calls_http

WAITING_CALLS: Final = Feature(
    name="waiting calls",
    routes=[*approvals_http.router.routes, *calls_http.router.routes],
    errors={**approvals_http.ERRORS, **calls_http.ERRORS},
    tables=["approvals"],
)
