"""The feature ``artifacts``: files that runs create."""

from typing import Final

from caseworker.features.artifacts import http
from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.feature import Feature, Opened, Parts


def open_artifacts(parts: Parts) -> Opened:
    """Build the store of artifacts."""
    return Opened(services=[PostgresArtifacts(parts.engines)])


ARTIFACTS: Final = Feature(
    name="artifacts", routes=http.router.routes, errors=http.ERRORS, open=open_artifacts
)
