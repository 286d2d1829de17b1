"""The form of a graph, for the OpenAPI document."""

from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from app.nodes.graph_spec import GraphSpec


class GraphForm:
    """Documents an object as a graph, or as one of some other models too; it checks nothing.

    Graphs are checked where they are read: everything that is wrong with one is told at once.
    """

    def __init__(self, *others: Any) -> None:
        self._models = (GraphSpec, *others)

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema that generated clients and people see."""
        forms = [handler(model.__pydantic_core_schema__) for model in self._models]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}
