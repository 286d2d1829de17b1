"""An API that the gateway offers: how its requests are read, and how its errors are written.

Some client libraries take a stream that ends without an error event for a complete answer, so an
interrupted stream ends with the event of its API.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caseworker.gateway.refusals import Refusal
from caseworker.models.fields.table import Table
from caseworker.platform.http.bodies import VALUE_BYTES

MODEL: Final = "{model}"
"""Part of a path that is replaced by the name of the model."""
_MODEL_NAME: Final = "(?P<model>[^/]+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One API of a model provider, as the gateway offers it."""

    provider: str
    """Name of the providers whose models can be called with it."""
    base: str
    """Path below ``/gateway`` of the base URL for the API's clients."""
    path: str
    """Path of the API below that base URL, and below the base URL of a provider. It may hold the
    name of the model as ``{model}``; otherwise the body does."""
    models_path: str
    """Path below the base URL of the list of models."""
    count_path: str = ""
    """Path below the base URL that counts the tokens of a body; empty if the API has none."""
    fields: Table
    """The fields of its requests."""
    field: str = "messages"
    """Body field with the conversation."""
    field_types: tuple[type, ...] = (list,)
    """Types of values of this field."""
    limit_fields: tuple[str, ...]
    """Body fields that limit the number of output tokens; none if there is no output."""
    uses_field: str = ""
    """Body field that limits the uses of all tools that the provider executes; empty if each tool
    has a limit."""
    needs_usage_option: bool = False
    """Whether a stream has token counts only if the body requests them."""
    error: Callable[[Refusal], Mapping[str, Any]]
    """Builds the error document of a refusal."""
    models: Callable[[Sequence[str]], Mapping[str, Any]]
    """Builds a list of models from their names."""
    event: str = ""
    """Name of the event that reports an error in a stream; empty for events without a name."""
    is_numbered: bool = False
    """Whether the events of a stream have numbers."""
    passed_on: frozenset[str] = frozenset()
    """Headers of the API that the provider receives, by lowercase names."""
    objects_in: Callable[[Mapping[str, Any]], Iterable[Any]] = lambda _: ()
    """Returns the IDs of the objects at the provider that a part of a reply names."""

    document: Callable[[bytes, Callable[[bytes], Any]], Any] = lambda content, parse: parse(content)
    """Returns the document of a body, with a function that parses JSON."""
    value_bytes: int = VALUE_BYTES
    """Bytes of memory for a value of a body."""

    def match(self, path: str) -> re.Match[str] | None:
        """Return the match of the API's path at the end of a path, with or without ``/v1``.

        Its group ``model`` is the name of the model, if the path holds it.
        """
        pattern = re.escape(self.path.removeprefix("/v1")).replace(re.escape(MODEL), _MODEL_NAME)
        return re.search(f"{pattern}$", path)

    @property
    def has_model_in_path(self) -> bool:
        """Whether the path of a request holds the name of the model, and not its body."""
        return MODEL in self.path

    def path_to(self, model: str) -> str:
        """Return the path of a request for a model."""
        return self.path.replace(MODEL, model)

    def provider_body(
        self, document: Mapping[str, Any], model: str
    ) -> tuple[Mapping[str, Any], bool]:
        """Return the body for the provider, and whether the client did not request token counts.

        ``model`` is the provider's name of the model.
        """
        body = document if self.has_model_in_path else {**document, "model": model}
        if not (body.get("stream") and self.needs_usage_option):
            return body, False
        options = body.get("stream_options") or {}
        requested = {**options, "include_usage": True}
        return {**body, "stream_options": requested}, not options.get("include_usage")

    def error_event(self, refusal: Refusal, number: int) -> bytes:
        """Return the event that ends an interrupted stream after ``number`` events."""
        name = f"event: {self.event}\n" if self.event else ""
        document = self.error(refusal)
        if self.is_numbered:  # clients read the error in the event itself or in its field `error`
            about = {"type": "error", "sequence_number": number}
            document = {**document["error"], **document, **about}
        return f"{name}data: {json.dumps(document)}\n\n".encode()


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a JSON list; a value that is not a list has none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
