"""The feature ``traces``: what a run did, as a whole and call by call."""

from typing import Final

from caseworker.features.feature import Feature
from caseworker.features.traces import http

TRACES: Final = Feature(name="traces", routes=http.router.routes, errors=http.ERRORS)
