"""Base class for settings sections, and types for their values."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field
from pydantic.fields import FieldInfo

Location = tuple[str | int, ...]
"""Path of a setting: section names, keys and list indexes."""

# Numbers are strict: `true` is not accepted as 1.
Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
Positive = Annotated[int, Field(ge=1, le=2**53, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=10**9, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Text = Annotated[str, Field(min_length=1)]
Names = tuple[Text, ...]


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    is_usable = parts.scheme in ("http", "https") and parts.port != 0
    if not (is_usable and parts.hostname and "@" not in parts.netloc):
        raise ValueError("must be an http or https URL without user name or password")
    return url


Endpoint = Annotated[str, AfterValidator(_endpoint)]


class Section(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base class for settings sections. Validators raise ``ValueError("key: problem")``."""


def key(default: Any, description: str) -> Any:
    """Return the field for a key with a default and a one-line description.

    Keys with longer descriptions have a docstring instead.
    """
    return Field(default, description=description)


def keys_of(section: type[BaseModel], path: Location = ()) -> Iterator[tuple[Location, FieldInfo]]:
    """Yield each key in a section and its subsections, with its path, in declaration order."""
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from keys_of(type(field.default), (*path, name))
        else:
            yield (*path, name), field


def variable_of(path: Location) -> str:
    """Return the environment variable for the key at ``path``, such as ``BUDGET_MAX_SECONDS``."""
    return re.sub(r"[.-]", "_", path_text(path, "_")).upper()


def path_text(path: Location, separator: str = ".") -> str:
    """Return a path as text, such as ``models.small.fallbacks.1.provider``.

    List items are numbered from 1.
    """
    return separator.join(str(name + 1 if isinstance(name, int) else name) for name in path)


def types_in(annotation: Any) -> list[Any]:
    """Return all types that occur in an annotation, including nested ones.

    For generic types, their origin is returned: ``list`` for ``list[int]``.
    """
    return [get_origin(annotation) or annotation, *chain(*map(types_in, get_args(annotation)))]
