"""Descriptions of fields in JSON Schemas."""

from typing import Annotated

from pydantic import Field

from caseworker.platform.docstrings import Described


class Parent(Described):
    """A model with every kind of field."""

    plain: int
    """Its docstring, which
    has two lines."""
    stated: int = Field(alias="other", description="Stated.")
    """Not shown."""
    typed: Annotated[int, Field(alias="with")]
    """Shown by alias."""
    replaced: int
    """Not inherited by a field that replaces this one."""


class Child(Parent):
    replaced: int
    silent: int


def test_a_field_is_described_by_its_docstring() -> None:
    """A stated description takes precedence, and fields are inherited with their docstrings."""
    properties = Child.model_json_schema()["properties"]

    assert {name: each.get("description") for name, each in properties.items()} == {
        "plain": "Its docstring, which\nhas two lines.",
        "other": "Stated.",
        "with": "Shown by alias.",
        "replaced": None,
        "silent": None,
    }


def test_a_model_without_a_source_has_a_schema() -> None:
    """A model that was created in a shell is not described."""
    found: dict[str, type[Described]] = {}
    exec(  # noqa: S102
        "from caseworker.platform.docstrings import Described\n"
        "class Typed(Described):\n    number: int\n    'Not found.'\n",
        found,
    )

    assert "description" not in found["Typed"].model_json_schema()["properties"]["number"]
