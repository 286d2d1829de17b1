"""The feature ``approvals``: people approve or reject actions of runs."""

from typing import Final

from caseworker.features.approvals import http
from caseworker.features.feature import Feature

APPROVALS: Final = Feature(
    name="approvals", routes=http.router.routes, errors=http.ERRORS, tables=["approvals"]
)
