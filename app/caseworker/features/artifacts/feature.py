"""The feature ``artifacts``: files that runs create."""

from typing import Final

from caseworker.features.artifacts import http
from caseworker.features.artifacts.postgres import PostgresArtifacts, drop_artifacts
from caseworker.features.feature import Feature, Opened

ARTIFACTS: Final = Feature(
    name="artifacts",
    routes=http.router.routes,
    errors=http.ERRORS,
    tables=["artifacts"],
    retention={"artifacts": drop_artifacts},
    open=lambda parts: Opened(services=[PostgresArtifacts(parts.engines)]),
)
