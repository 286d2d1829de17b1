"""The operations of the OpenAPI document as schemathesis reads them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.support.api import openapi_document


@cache
def documented_operations() -> Mapping[str, Any]:
    """Return every ``APIOperation`` of the document by its method and path."""
    import schemathesis  # takes half a second, and few workers run a test that needs it
    from schemathesis.core.result import Ok

    found = schemathesis.openapi.from_dict(openapi_document()).get_all_operations()
    return {each.ok().label: each.ok() for each in found if isinstance(each, Ok)}
