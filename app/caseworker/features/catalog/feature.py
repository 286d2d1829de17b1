"""The feature ``catalog``: lists of tools, models and node types."""

from typing import Final

from caseworker.features.catalog import http
from caseworker.features.feature import Feature

CATALOG: Final = Feature(name="catalog", routes=http.router.routes)
