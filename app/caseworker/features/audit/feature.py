"""The feature ``audit``: lists the recorded administrative acts."""

from typing import Final

from caseworker.features.audit import http
from caseworker.features.audit.postgres import PostgresAudit, drop_audit
from caseworker.features.feature import Feature, Opened

AUDIT: Final = Feature(
    name="audit",
    routes=http.router.routes,
    tables=["audit"],
    retention={"audit": drop_audit},
    open=lambda parts: Opened(services=[PostgresAudit(parts.engines.work)]),
)
