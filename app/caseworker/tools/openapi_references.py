"""Resolves references in an OpenAPI document, and makes its schemas self-contained.

Bundlers write references into each part of a document, such as
``#/paths/~1orders~1%7Bid%7D/get/parameters/0/schema``. Some of them lead through a reference: a
step into ``{"$ref": …}`` is a step into its target.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin

_DROPPED: Final = frozenset(
    {
        *("$id", "$schema", "$anchor", "$dynamicAnchor", "$defs", "definitions"),
        *("xml", "externalDocs"),
    }
)
"""Keywords without a meaning in the schema of an argument; references point to copies instead."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords that map arbitrary names to schemas."""
_VALUES: Final = frozenset({"enum", "const", "default", "example", "examples"})
"""Keywords that contain values, which may look like schemas."""
_BRANCHES: Final = frozenset({"anyOf", "oneOf"})
_ANNOTATED: Final = frozenset({"required", "type", "title", "description"})
_LISTS: Final = frozenset({"required", "examples"})
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)
_LIMITS: Final = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


class References:
    """The targets of the references in a document, and the schemas that arguments refer to."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read the document; an embedded schema with ``$id`` is a separate resource."""
        self.document = document
        self._names: dict[tuple[int, frozenset[str]], str] = {}
        """Names of definitions, by the identity of the original schema and its read-only names."""
        self._referred: dict[str, tuple[Any, Any, frozenset[str]]] = {}
        """The arguments of :meth:`schema` for the targets of references, by name."""
        self._uris: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": document}
        self._anchors: dict[tuple[str, str], Any] = {}
        unseen: list[tuple[Any, str]] = [(document, "")]
        while unseen:
            node, uri = unseen.pop()
            if isinstance(node, Mapping):
                if isinstance(node.get("$id"), str):
                    uri = urljoin(uri, node["$id"]).removesuffix("#")
                    self._resources.setdefault(uri, node)
                    self._uris[id(node)] = uri
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(node.get(keyword), str):
                        self._anchors.setdefault((uri, node[keyword]), node)
            if isinstance(node, Mapping | list):
                inner = node.values() if isinstance(node, Mapping) else node
                unseen += [(each, uri) for each in inner]

    def resolved(
        self, value: Any, base: Any = None, pending: frozenset[tuple[int, str]] = frozenset()
    ) -> tuple[Any, Any]:
        """Return the value at the end of a chain of references, and the resource around it.

        ``base`` is the resource around ``value``; None is the document. ``pending`` holds the
        references that are being resolved.

        Raises:
            ValueError: a reference has no target in the document, or refers to itself.
        """
        base = self._base(value, self.document if base is None else base)
        while isinstance(value, Mapping) and (reference := _reference_in(value)) is not None:
            if (id(base), reference) in pending:
                raise ValueError(f"openapi: {reference!r} refers to itself")
            pending |= {(id(base), reference)}
            value, base = self._target(reference, base, pending)
        return value, base

    def chain(self, node: Any, base: Any = None) -> list[tuple[Mapping[str, Any], Any]]:
        """Return a schema and those that it refers to in turn, with the resources around them.

        A schema of only a reference is left out, and in OpenAPI 3.0 any schema with a reference:
        that version ignores its other keywords.

        Raises:
            ValueError: a reference has no target in the document, or refers to itself.
        """
        target, inner = self.resolved(node, base)  # raises for a cycle
        schemas = list[tuple[Mapping[str, Any], Any]]()
        base = self.document if base is None else base
        is_first = str(self.document.get("openapi", "")).startswith("3.0")
        while isinstance(node, Mapping) and (reference := _reference_in(node)) is not None:
            base = self._base(node, base)
            if not is_first and node.keys() - {"$ref", "$dynamicRef"}:
                schemas.append((node, base))
            node, base = self._target(reference, base)
        return [*schemas, (_mapping(target), inner)]

    def target(self, reference: str) -> Any:
        """Return the target of one reference in the document.

        Raises:
            ValueError: it has no target, or refers to itself.
        """
        return self._target(reference, self.document)[0]

    def schema(self, node: Any, base: Any = None, read_only: frozenset[str] = frozenset()) -> Any:
        """Return a schema as JSON Schema 2020-12; its references lead to ``#/$defs``.

        Properties that only responses have are left out. ``read_only`` holds those that other
        parts of an ``allOf`` name.
        """
        base = self.document if base is None else base
        if isinstance(node, list):
            return [self.schema(each, base, read_only) for each in node]
        if not isinstance(node, Mapping):
            return node
        base = self._base(node, base)
        if node.keys() & {"properties", "allOf", "$ref", "$dynamicRef"}:
            read_only |= self._read_only_names(node, base)
        schema = dict[str, Any]()
        for keyword, value in node.items():
            if keyword in ("$ref", "$dynamicRef") and isinstance(value, str):
                schema["$ref"] = self._definition(value, base, read_only)
            elif keyword not in _DROPPED and (keyword not in _LISTS or isinstance(value, list)):
                # "required: true", for example, is not JSON Schema but is common.
                schema[keyword] = self._value(keyword, value, base, read_only)
        return _as_json_schema(schema)

    def _value(self, keyword: str, value: Any, base: Any, read_only: frozenset[str]) -> Any:
        """Return the value of a keyword in a schema."""
        if keyword == "discriminator" and isinstance(value, Mapping):
            return self._discriminator(value, base)
        if keyword in _BY_NAME and isinstance(value, Mapping):
            return {
                name: self.schema(each, base)
                for name, each in value.items()
                if keyword != "properties" or name not in read_only
            }
        if keyword == "required":
            return [each for each in value if each not in read_only]
        if keyword in _VALUES or keyword.startswith("x-"):
            return value
        if keyword in ("allOf", "then", "else"):
            return self.schema(value, base, read_only)
        if keyword in _BRANCHES and isinstance(value, list):
            return [self._branch(each, base, read_only) for each in value]
        return self.schema(value, base)

    def definitions(self) -> dict[str, Any]:
        """Return the schemas that :meth:`schema` referred to so far, by name."""
        definitions = dict[str, Any]()
        while unmade := [name for name in self._referred if name not in definitions]:
            definitions |= {name: self.schema(*self._referred[name]) for name in unmade}
        return definitions

    def is_read_only(
        self, node: Any, base: Any = None, pending: frozenset[int] = frozenset()
    ) -> bool:
        """Return whether requests do not have a property with this schema.

        Of ``anyOf`` and ``oneOf``, all branches are for responses only, except null. ``pending``
        holds the identities of schemas that are being read.
        """
        if id(node) in pending:
            return False
        pending |= {id(node)}
        for part, inner in self.chain(node, base):
            if part.get("readOnly") is True:
                return True
            if any(self.is_read_only(each, inner, pending) for each in _list(part.get("allOf"))):
                return True
            for keyword in _BRANCHES:
                branches = [each for each in _list(part.get(keyword)) if not _is_null(each)]
                if branches and all(self.is_read_only(each, inner, pending) for each in branches):
                    return True
        return False

    def _read_only_names(
        self, node: Any, base: Any, pending: frozenset[int] = frozenset()
    ) -> frozenset[str]:
        """Return the read-only properties of an object and of all parts of its ``allOf``."""
        names = frozenset[str]()
        if id(node) in pending:
            return names
        for part, inner in self.chain(node, base):
            properties = _mapping(part.get("properties"))
            names |= {name for name, each in properties.items() if self.is_read_only(each, inner)}
            for each in _list(part.get("allOf")):
                names |= self._read_only_names(each, inner, pending | {id(node)})
        return names

    def _required_names(
        self, node: Any, base: Any, pending: frozenset[int] = frozenset()
    ) -> frozenset[str]:
        """Return the names that an object or its parts require or have as properties."""
        names = frozenset[str]()
        if id(node) in pending:
            return names
        for part, inner in self.chain(node, base):
            names |= {each for each in _list(part.get("required")) if isinstance(each, str)}
            names |= _mapping(part.get("properties")).keys()
            for keyword in ("allOf", *_BRANCHES):
                for each in _list(part.get(keyword)):
                    names |= self._required_names(each, inner, pending | {id(node)})
        return names

    def _branch(self, node: Any, base: Any, read_only: frozenset[str]) -> Any:
        """Return a branch of ``anyOf`` or ``oneOf``.

        One that only requires read-only properties would fit every request without them; it stays
        as it is, and fits none.
        """
        required = _list(_mapping(node).get("required"))
        if required and set(required) <= read_only and node.keys() <= _ANNOTATED:
            return self.schema(node, base)
        return self.schema(node, base, read_only)

    def _definition(
        self, reference: str, base: Any, read_only: frozenset[str] = frozenset()
    ) -> str:
        """Return a reference to the copy of a schema in the definitions."""
        self.resolved({"$ref": reference}, base)  # raises for a cycle without a schema
        target, inner = self._target(reference, base)
        read_only &= self._required_names(target, inner)
        key = id(target), read_only - self._read_only_names(target, inner)
        if key not in self._names:
            last = unquote(reference).rpartition("/")[2].rpartition("#")[2]
            stem = _UNSAFE.sub("_", last) or "schema"
            name, number = stem, 2
            while name in self._referred:
                name, number = f"{stem}_{number}", number + 1
            self._names[key], self._referred[name] = name, (target, inner, key[1])
        return f"#/$defs/{self._names[key]}"

    def _discriminator(self, value: Mapping[str, Any], base: Any) -> Mapping[str, Any]:
        """Return a discriminator whose mapping leads to definitions; names stay as they are."""
        mapping = {
            key: self._definition(each, base) if "#" in str(each) else each
            for key, each in _mapping(value.get("mapping")).items()
        }
        return {**value, "mapping": mapping} if mapping else value

    def _base(self, node: Any, base: Any) -> Any:
        return node if id(node) in self._uris else base

    def _target(
        self, reference: str, base: Any, pending: frozenset[tuple[int, str]] = frozenset()
    ) -> tuple[Any, Any]:
        """Return the target of one reference, and the resource around it."""
        location, _, fragment = reference.partition("#")
        uri = self._uris.get(id(base), "")
        if location:
            uri = urljoin(uri, location)
            if uri not in self._resources:
                raise ValueError(
                    f"openapi: {reference!r} refers to another document: bundle them into one"
                )
        value = base = self._resources[uri]
        if fragment and not fragment.startswith("/"):
            value = self._anchors.get((uri, unquote(fragment)))
            if value is None:
                raise ValueError(f"openapi: {reference!r} is not in the document")
            return value, self._base(value, base)
        for part in fragment.split("/")[1:]:
            key = _key_in(value, part)
            if key is None:
                value, base = self.resolved(value, base, pending)
                key = _key_in(value, part)
            if key is None:
                raise ValueError(f"openapi: {reference!r} is not in the document")
            value = value[key]
            base = self._base(value, base) if isinstance(value, Mapping) else base
        return value, base


def _reference_in(value: Mapping[str, Any]) -> str | None:
    reference = value.get("$ref", value.get("$dynamicRef"))
    return reference if isinstance(reference, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_null(schema: Any) -> bool:
    """Return whether null is the only value that fits a schema."""
    schema = _mapping(schema)
    return (
        schema.get("type") in ("null", ["null"])
        or schema.get("enum") == [None]
        or ("const" in schema and schema["const"] is None)
    )


def _key_in(value: Any, part: str) -> Any:
    """Return the key of a part of a JSON pointer in an object or a list; None if it has none."""
    for text in (part, unquote(part)):
        name = text.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            if name in value:
                return name
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            return int(name)
    return None


def _as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert a schema of OpenAPI 3.0; a schema of 3.1 is a JSON Schema already."""
    for exclusive, inclusive in _LIMITS.items():
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and inclusive in schema:
                schema[exclusive] = schema.pop(inclusive)
    if schema.get("nullable") is True:
        del schema["nullable"]
        return {"anyOf": [schema, {"type": "null"}]}
    return schema
