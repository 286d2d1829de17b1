"""The feature ``traces``: the ExecutionGraph of a run, and the payloads of its calls."""

from typing import Final

from caseworker.features.feature import Feature
from caseworker.features.traces import http

TRACES: Final = Feature(name="traces", routes=http.router.routes, errors=http.ERRORS)
