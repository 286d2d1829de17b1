"""The feature ``traces``: the trace and the analysis of a run, and its calls one by one."""

from typing import Final

from caseworker.features.feature import Feature
from caseworker.features.traces import http

TRACES: Final = Feature(name="traces", routes=http.router.routes, errors=http.ERRORS)
