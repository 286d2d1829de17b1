"""The feature ``artifacts``: files that runs create."""

from typing import Final

from caseworker.features.artifacts import http
from caseworker.features.artifacts.postgres import PostgresArtifacts, drop_artifacts
from caseworker.features.feature import Feature, Opened, Parts


def open_artifacts(parts: Parts) -> Opened:
    """Build the store of artifacts."""
    return Opened(services=[PostgresArtifacts(parts.engines)])


ARTIFACTS: Final = Feature(
    name="artifacts",
    routes=http.router.routes,
    errors=http.ERRORS,
    tables=["artifacts"],
    retention={"artifacts": drop_artifacts},
    open=open_artifacts,
)
