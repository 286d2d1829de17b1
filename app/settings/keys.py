"""The keys of the schema: their paths, their names in the environment, and what they take."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    path: Path
    default: Any
    description: str
    expected: str
    """What its value must be, to be read after "must be"."""
    choices: tuple[str, ...]
    """The words that it takes, if it takes only certain words."""
    is_list: bool
    nullable: bool
    secret: bool
    """Its value is never shown."""
    environment_only: bool
    """Its value may not stand in a file."""

    @property
    def dotted(self) -> str:
        """The path as messages name it: ``budget.max_seconds``."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """Its name in the environment: ``BUDGET_MAX_SECONDS``."""
        return "_".join(self.path).upper()


@dataclass(frozen=True, slots=True)
class SectionOfKeys:
    """A section with what is directly in it, keys and sections, by name."""

    path: Path
    description: str
    parts: "Mapping[str, Key | SectionOfKeys]"

    def walk(self) -> Iterator[Key]:
        """All keys in this section and below it."""
        for part in self.parts.values():
            if isinstance(part, Key):
                yield part
            else:
                yield from part.walk()


def keys_of(schema: type[BaseModel]) -> SectionOfKeys:
    """Read the keys off a schema."""
    json_schema = schema.model_json_schema()
    definitions = {**json_schema.get("$defs", {}), schema.__name__: json_schema}
    return _section(schema, (), definitions)


def _section(schema: type[BaseModel], path: Path, definitions: dict[str, Any]) -> SectionOfKeys:
    properties = definitions[schema.__name__]["properties"]
    parts: dict[str, Key | SectionOfKeys] = {}
    for name, field in schema.model_fields.items():
        if isinstance(field.default, BaseModel):
            parts[name] = _section(type(field.default), (*path, name), definitions)
        else:
            parts[name] = _key((*path, name), field.default, properties[name])
    return SectionOfKeys(path, (schema.__doc__ or "").strip(), parts)


def _key(path: Path, default: Any, json_schema: Mapping[str, Any]) -> Key:
    choices = json_schema.get("anyOf", [json_schema])
    nullable = {"type": "null"} in choices
    value = next(choice for choice in choices if choice != {"type": "null"})
    return Key(
        path=path,
        default=default,
        description=" ".join(json_schema["description"].split()),
        expected=_expected(value) + (", or null" if nullable else ""),
        choices=tuple(value.get("enum", ())),
        is_list=value.get("type") == "array",
        nullable=nullable,
        secret=value.get("format") == "password",
        environment_only=value.get("environment_only", False),
    )


def _expected(value: Mapping[str, Any]) -> str:
    """Put a JSON Schema into words."""
    if "expected" in value:
        return str(value["expected"])
    if "enum" in value:
        return "one of " + ", ".join(map(str, value["enum"]))
    if "anyOf" in value:  # a decimal: a number, or a text that reads like one
        return _expected(value["anyOf"][0])
    match value["type"]:
        case "boolean":
            return "true or false"
        case "integer":
            return "a whole number" + _bounds(value)
        case "number":
            return "a number" + _bounds(value)
        case "array":
            return "a list of names"
        case _:
            return "a text that is not empty"


def _bounds(value: Mapping[str, Any]) -> str:
    lowest, highest = value.get("minimum"), value.get("maximum")
    if "exclusiveMinimum" in value:
        return f" above {value['exclusiveMinimum']:g}"
    if lowest is not None and highest is not None and highest < 2**31:
        return f" from {lowest:g} to {highest:g}"
    return "" if lowest is None else f" of at least {lowest:g}"
