"""The feature ``erasure``: erases the data of a customer by tenant or metadata."""

from typing import Final

from caseworker.features.erasure import http
from caseworker.features.erasure.postgres import PostgresErasure
from caseworker.features.erasure.service import Erasing
from caseworker.features.feature import Feature, Opened
from caseworker.runs.service import RunService

ERASURE: Final = Feature(
    name="erasure",
    routes=http.router.routes,
    open=lambda parts: Opened(
        services=[Erasing(PostgresErasure(parts.engines.work), parts.service(RunService))]
    ),
)
