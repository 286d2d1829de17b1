"""The feature ``erasure``: erases the data of a customer by tenant or metadata."""

from typing import Final

from caseworker.features.erasure import http
from caseworker.features.erasure.postgres import PostgresErasure
from caseworker.features.erasure.service import Erasing
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.runs.service import RunService


def open_erasure(parts: Parts) -> Opened:
    """Build the service that erases data."""
    return Opened(
        services=[Erasing(PostgresErasure(parts.engines.work), parts.service(RunService))]
    )


ERASURE: Final = Feature(name="erasure", routes=http.router.routes, open=open_erasure)
