"""What a caller may send about graphs."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.api.field_types import Cursor
from app.api.graph_schema import GraphForm
from app.api.json_text import is_storable
from app.nodes.reading import OWN

MAX_DESCRIPTION_CHARS = 1000
MAX_VERSION = 2**31 - 1

_NAME = r"^(?:[.]{0,2}[A-Za-z0-9_-]|[.]{3})[A-Za-z0-9._-]*$"
"""Any of these characters, but not a lone ``.`` or ``..``, which no URL can name."""

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


def _name(value: str) -> str:
    if not 1 <= len(value) <= 64 or not re.fullmatch(_NAME[1:-1], value, re.ASCII):
        message = "The name of a graph is 1 to 64 of the characters A-Z a-z 0-9 . _ -"
        raise PydanticCustomError(OWN, message)
    return value


def _storable(value: str) -> str:
    if not is_storable(value):
        message = "This may not hold NUL characters or unpaired surrogates."
        raise PydanticCustomError(OWN, message)
    return value


GraphName = Annotated[
    str,
    AfterValidator(_name),
    Field(
        json_schema_extra={"pattern": _NAME, "minLength": 1, "maxLength": 64},
        examples=["invoice-check"],
    ),
]
"""Chosen by a caller; part of a path."""

Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]


class GraphByName(BaseModel):
    """The name of a registered graph."""

    model_config = _STRICT

    name: GraphName
    version: Version | None = None
    """Left out, the newest version there is."""


InlineGraph = Annotated[dict[str, Any], GraphForm()]
"""A graph itself."""

GraphOrName = Annotated[dict[str, Any], GraphForm(GraphByName)]
"""A graph itself, or the name of a registered one."""


class NewGraphBody(BaseModel):
    """A graph to register."""

    model_config = _STRICT

    name: GraphName
    """What it is called; the first graph of a name is version 1, every change the next version."""
    graph: InlineGraph
    """The graph itself; in the data of its steps it may name other registered graphs."""
    description: (
        Annotated[
            str, AfterValidator(_storable), StringConstraints(max_length=MAX_DESCRIPTION_CHARS)
        ]
        | None
    ) = None
    """What the graph is for."""


class GraphToValidate(BaseModel):
    """A graph to look at."""

    model_config = _STRICT

    graph: InlineGraph
    """The graph itself; in the data of its steps it may name registered graphs."""


class GraphQuery(BaseModel):
    """Which part of a list of graphs to show."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """How many a page holds."""
    cursor: Cursor | None = None
    """The ``next_cursor`` of the page before."""


def is_name(graph: dict[str, Any]) -> bool:
    """Tell whether an object names a graph; one that has steps is a graph, whatever else it has."""
    return "name" in graph and "steps" not in graph
