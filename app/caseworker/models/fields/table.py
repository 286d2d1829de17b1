"""Tables of the fields of a request with their costs, and a reader that applies a table to a body.

A body of an API is open: every provider adds fields, and some of them cost money that no token
count shows. A table therefore lists all fields whose cost is known, and the reader refuses unlisted
fields in a run that limits its spending. The reader visits each value once, without recursion.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_CHOICES: Final = 128
"""Largest number of choices that a request may ask for."""

MAX_NAME_CHARS: Final = 100
"""Number of characters of a name or type that a message shows."""

_DATE = re.compile(r"_\d{8}$|_\d{4}_\d{2}_\d{2}$")
"""The version of a type: `web_search_20250305` is read as `web_search`."""
_STEP = re.compile(r"([^.\[\]<>{}\s]+)(?:\[\])*(?:<([^<>]*)>)?")
_NAMES = re.compile(r"\{([^}]*)\}")


class Use(StrEnum):
    """The effect of a field on the cost of a call."""

    FREE = "free"
    """It changes no cost, or lowers it."""
    TEXT = "text"
    """It is text of the prompt, which costs its size."""
    IMAGE = "image"
    DOCUMENT = "document"
    AUDIO = "audio"
    REFERENCE = "reference"
    """It is the ID of an object at the provider, which a reply to the tenant must have named."""
    CHOICES = "choices"
    """It multiplies the output."""
    OUTPUT_LIMIT = "output limit"
    THINKING = "thinking"
    """It is a number of tokens for thinking, which are output."""
    COMPACTION = "compaction"
    """It lets the provider summarize the prompt in a further pass, which costs input and output."""
    PROVIDER_TOOL = "provider's tool"
    """It is a tool that the provider executes, at the price of ``provider_tools``."""
    CACHE = "cache"
    """It lets the provider store a part of the prompt, at the price of cache writes."""
    PRICED = "priced"
    """It costs money that no price counts; refused in a run that limits its spending."""
    REFUSED = "refused"
    """It is refused in every run."""


_COUNTS: Final = (Use.CHOICES, Use.OUTPUT_LIMIT, Use.THINKING)
_PLAIN: Final = (Use.FREE, Use.TEXT)
_SILENT: Final = (*_PLAIN, Use.PRICED)
"""Uses that a reader does not report."""
_REFUSING: Final = (Use.PRICED, Use.REFUSED)
_OBJECTS: Final = (Use.CACHE, Use.COMPACTION, Use.PROVIDER_TOOL)
"""Uses of objects that are reported though their fields have rows, too."""


class RefusedBodyError(Exception):
    """The body of a request is not offered; ``code`` and ``field`` say why."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field


class UndecidedFieldError(RefusedBodyError):
    """The run limits its spending, and no row of the table is about a field of the body."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A row: fields with the same use."""

    use: Use
    paths: str
    """Paths below the section, separated by blanks.

    ``a.b`` is a field of an object, ``a[]`` an element of a list or the only one, ``a[]<x|y>`` an
    object whose ``type`` is x or y (without its date), ``{a,b}`` either name. ``a.**`` is a with
    everything in it.
    """
    reason: str = ""
    """Why it is priced or refused, as the end of a sentence; for other uses a note."""
    values: tuple[Any, ...] = ()
    """Values to which the row applies; empty for all values that no other row names."""
    unless: tuple[Any, ...] = ()
    """Values that are free; of an object, the fields that make it free."""
    unless_with: str = ""
    """A field of the same object; where it has a value, this one is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSection:
    """Rows for one kind of object, wherever it occurs."""

    title: str
    at: tuple[str, ...]
    """Paths of the object; empty is the body."""
    rows: tuple[Fields, ...]
    untyped: Callable[[Mapping[str, Any]], str] | None = None
    """Returns the type of an object without ``type``; None if the type is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An occurrence of a field that is neither free nor plain text."""

    use: Use
    place: str
    """Where it is in the body, such as ``messages[2].content[0].image_url.url``."""
    value: Any
    holder: Mapping[str, Any]
    """The object with the field."""


class _Node:
    """The rows of a table about the values at one path."""

    __slots__ = ("by_value", "fields", "is_plain", "is_whole", "row", "types", "untyped")

    def __init__(self) -> None:
        self.fields: dict[str, _Node] = {}
        self.types: dict[str, _Node] = {}
        self.untyped: Callable[[Mapping[str, Any]], str] | None = None
        self.row: Fields | None = None
        self.by_value: dict[tuple[type, Any], Fields] = {}
        self.is_plain = False
        """Whether all values are free or text."""
        self.is_whole = False
        """Whether that includes everything in a value."""

    def is_silent(self, value: Any) -> bool:
        """Return whether nothing has to be reported or refused about a value."""
        return self.is_plain and (self.is_whole or not isinstance(value, dict | list))


_Path = tuple["_Path", str | int] | None
"""The place of a value: that of its holder, and its name or index there."""


class Table:
    """The fields of one API."""

    def __init__(self, dialect: str, *sections: FieldSection) -> None:
        self.dialect = dialect
        self.sections = sections
        self.root = _Node()
        for section in sections:
            for at in section.at:
                for node in _nodes(self.root, at):
                    node.untyped = section.untyped or node.untyped
                for row in section.rows:
                    for path in row.paths.split():
                        _enter(self.root, at + "." * bool(at and path[0] != "<") + path, row)
        rows = (row for section in sections for row in section.rows if row.use is Use.REFERENCE)
        steps = (path.rpartition(".")[2] for row in rows for path in row.paths.split())
        names = (name for step in steps for name in re.findall(r"[\w-]+", step))
        self.references: Final = frozenset(names) - {"id"}
        """Names of fields with IDs of objects, by which they are recognised in unknown objects."""

    def row_at(self, path: str) -> Fields | None:
        """Return the row about the fields at a path; None if there is none.

        Raises:
            ValueError: it is not a path as in a row.
        """
        nodes = [self.root]
        for step in path.split("."):
            if (match := _STEP.fullmatch(step)) is None:
                raise ValueError(f"not a path: {path!r}")
            inner = (each for node in nodes for each in (node, *node.types.values()))
            nodes = [each.fields[match[1]] for each in inner if match[1] in each.fields]
            if match[2] is not None:
                kind = type_without_date(match[2])
                nodes = [node.types[kind] for node in nodes if kind in node.types]
            if whole_rows := [node.row for node in nodes if node.is_whole]:
                return whole_rows[0]
        rows = (row for node in nodes for row in (node.row, *node.by_value.values()))
        return next((row for row in rows if row is not None), None)

    def read(
        self,
        document: Mapping[str, Any],
        *,
        limits_spending: bool,
        free_fields: Collection[str] = (),
    ) -> Sequence[Part]:
        """Return the parts of a body that cost more than their text, in the order of their depth.

        ``limits_spending`` is whether the run's own budget, its account or its quota limits cost or
        tokens; then all fields are refused that no row is about, except ``free_fields`` (paths as
        in the rows).

        Raises:
            RefusedBodyError: a field is refused, or must be a number and is not.
            UndecidedFieldError: no row is about a field.
        """
        return list(_Reading(self, limits_spending, free_fields).parts(document))


class _Reading:
    def __init__(self, table: Table, limits_spending: bool, free_fields: Collection[str]) -> None:
        self._table = table
        self._limits = limits_spending
        self._free = frozenset(path.replace("[]", "") for path in free_fields)

    def parts(self, document: Mapping[str, Any]) -> Iterator[Part]:
        waiting: list[tuple[_Node, _Path, Any, Mapping[str, Any]]]
        waiting = [(self._table.root, None, document, {})]
        for node, place, value, holder in waiting:
            if value is None or node.is_silent(value):
                continue
            if isinstance(value, list):
                row = node.row
                if row is not None and (row.use in _COUNTS or (value and row.use in _REFUSING)):
                    self._use_of(row, place, value, "")
                for at, each in enumerate(value):
                    if isinstance(each, list):
                        yield from self._undecided((place, at), each, holder)
                    else:
                        waiting.append((node, (place, at), each, holder))
                continue
            kind, outer = "", node
            if isinstance(value, dict) and node.types:
                kind = _type_of(value, node)
                if kind not in node.types:
                    yield from self._undecided(place, value, holder, kind)
                    continue
                node = node.types[kind]
            if (row := self._row(node, value, holder)) is not None:
                use = self._use_of(row, place, value, kind)
                is_part = use in _OBJECTS or not (isinstance(value, dict) and node.fields)
                if is_part and use not in _SILENT:
                    yield Part(use=use, place=_path_text(place), value=value, holder=holder)
            elif not isinstance(value, dict):
                yield from self._undecided(place, value, holder)
                continue
            for name, each in value.items() if isinstance(value, dict) else ():
                inner = node.fields.get(name) or outer.fields.get(name)
                if inner is not None:
                    if not inner.is_silent(each):
                        waiting.append((inner, (place, name), each, value))
                elif each is not None and not (name == "type" and outer.types):
                    yield from self._undecided((place, name), each, value)

    def _row(self, node: _Node, value: Any, holder: Mapping[str, Any]) -> Fields | None:
        """Return the row that is about a value; None if there is none."""
        if node.by_value and isinstance(value, str | int):
            of_value = node.by_value.get((type(value), value))
            if of_value is not None:
                return of_value
        row = node.row
        if row is not None and row.unless_with and holder.get(row.unless_with):
            return _FREE
        return row

    def _use_of(self, row: Fields, place: _Path, value: Any, kind: str) -> Use:
        """Return the use of a value to which a row applies.

        Raises:
            RefusedBodyError: the row refuses it, or it must be a number and is not.
        """
        if any(_matches(value, each) for each in row.unless):
            return Use.FREE
        if row.use in _COUNTS:
            require_count(_path_text(place), value, is_choices=row.use is Use.CHOICES)
        if row.use is Use.REFUSED or (row.use is Use.PRICED and self._limits):
            name = kind or (value if row.values else "")
            situation = "" if row.use is Use.REFUSED else f"{_SITUATION}, and "
            raise _refusal(RefusedBodyError, place, name, situation + row.reason)
        return row.use

    def _undecided(
        self, place: _Path, value: Any, holder: Mapping[str, Any], kind: str = ""
    ) -> Iterator[Part]:
        """Yield the references in a value that no row is about.

        Raises:
            UndecidedFieldError: the run limits its spending, and the operator does not allow the
                field.
        """
        kind = kind[:MAX_NAME_CHARS]
        path = re.sub(r"\[\d+\]", "[]", _path_text(place)) + (f"<{kind}>" if kind else "")
        if self._limits and path.replace("[]", "") not in self._free:
            line = f'gateway.free_fields: {{{self._table.dialect}: ["{path}"]}}'
            reason = f"{_SITUATION}, and no rule says what the field costs. {_ALLOWED} {line}"
            raise _refusal(UndecidedFieldError, place, kind, reason)
        names = self._table.references
        waiting: list[tuple[Any, Any, Mapping[str, Any]]]
        waiting = [(place[1] if place is not None else "", value, holder)]
        for name, each, parent in waiting:
            if isinstance(each, list):
                waiting += ((name, one, parent) for one in each)
            elif isinstance(each, dict):
                waiting += ((inner, each[inner], each) for inner in each)
            elif each is not None and name in names:
                at = f"{_path_text(place)}.**.{name}"
                yield Part(use=Use.REFERENCE, place=at, value=each, holder=parent)


_FREE: Final = Fields(Use.FREE, "")
_SITUATION: Final = "the run limits its cost or its tokens"
_ALLOWED: Final = "The operator can allow it by the setting"


def _nodes(root: _Node, path: str) -> list[_Node]:
    """Return the nodes of a path, which alternatives make several; create missing ones."""
    if (names := _NAMES.search(path)) is not None:
        paths = (path[: names.start()] + name + path[names.end() :] for name in names[1].split(","))
        return [node for each in paths for node in _nodes(root, each)]
    nodes = [root]
    for step in path.split(".") if path else ():
        match = _STEP.fullmatch(step)
        if match is None:
            raise ValueError(f"not a path: {path!r}")
        nodes = [node.fields.setdefault(match[1], _Node()) for node in nodes]
        if match[2] is not None:
            kinds = match[2].split("|")
            nodes = [node.types.setdefault(kind, _Node()) for node in nodes for kind in kinds]
    return nodes


def _enter(root: _Node, path: str, row: Fields) -> None:
    for node in _nodes(root, path.removesuffix(".**")):
        if row.values:
            node.by_value |= {(type(value), value): row for value in row.values}
        elif node.row is not None:
            raise ValueError(f"two rows: {path!r}")
        else:
            node.row, node.is_whole = row, path.endswith(".**")
        usual = node.row
        node.is_plain = usual is not None and usual.use in _PLAIN and not node.by_value
        if node.is_whole and not node.is_plain:
            raise ValueError(f"not free or text: {path!r}")


def _type_of(value: Mapping[str, Any], node: _Node) -> str:
    kind = value.get("type")
    if kind is None:
        return node.untyped(value) if node.untyped else ""
    return type_without_date(kind) if isinstance(kind, str) else "?"


def _matches(value: Any, pattern: Any) -> bool:
    """Return whether a value has the type and the value of a pattern, or all fields of it."""
    if isinstance(pattern, dict) and isinstance(value, dict):
        return all(_matches(value.get(name), each) for name, each in pattern.items())
    return type(value) is type(pattern) and value == pattern


def type_without_date(kind: str) -> str:
    """Return the type of a tool or a block without the date of its version."""
    return _DATE.sub("", kind)


def require_count(place: str, value: Any, *, is_choices: bool = False) -> None:
    """Raise an error if a value is not a whole number, or not a number of choices.

    Raises:
        RefusedBodyError: it is not.
    """
    is_number = type(value) is int and value >= is_choices
    if not is_number or (is_choices and value > MAX_CHOICES):
        words = f" from 1 to {MAX_CHOICES}" if is_choices else ""
        message = f"The field {place} must be a whole number{words}."
        raise RefusedBodyError("invalid_request", message, place)


def _refusal(
    error: type[RefusedBodyError], place: _Path, name: Any, reason: str
) -> RefusedBodyError:
    path = _path_text(place)
    about = f"{path}: {str(name)[:MAX_NAME_CHARS]}" if name else path
    return error("unsupported_field", f"The field {about} is not offered: {reason}.", path)


def _path_text(place: _Path) -> str:
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:MAX_NAME_CHARS]}")
    return "".join(reversed(steps)).lstrip(".")
