"""Admits the bodies of model calls: reads them, checks them, and resolves their model.

A body is read once, a long one in a thread. In a run that limits its spending, the table of its API
refuses fields with costs that are unknown, and the tools that the provider executes get a limit of
uses.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from caseworker.features.external.session import GatewayRequest, GatewaySession, ProviderObjects
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.dialects.offered import DIALECTS, PASSED_ON, objects_in
from caseworker.gateway.refusals import Refusal, RefusedError
from caseworker.models.client_bodies import ClientBody, read_body
from caseworker.models.fields.provider_tools import limited_uses, priced_tools
from caseworker.models.fields.table import Part, RefusedBodyError, Use
from caseworker.models.gateway import BYTES_PER_CHAR
from caseworker.models.relay import is_id
from caseworker.models.run_models import RunModels, UnknownModelError, WrongDialectError
from caseworker.models.table import ChatModel
from caseworker.platform.fair_threads import PacedThread
from caseworker.platform.http.bodies import has_more_values, is_unicode
from caseworker.platform.http.request import ApiRequest

log = structlog.get_logger(__name__)

FieldsOf = Mapping[Any, Collection[str]]
"""Paths of fields by the name of their API, such as ``chat_completions``."""
MAX_VALUES: Final = 100_000
"""JSON values in a body. Reading takes about ten microseconds and 400 bytes for each of them."""

_UNKNOWN_MODEL = (
    "The run may not call a model of this name. It may call: {}. To map other names, create the "
    'run with "models": {{"NAME": "CONFIGURED"}} or `caseworker exec --model NAME=CONFIGURED`.'
)
_NO_MODEL = (
    "The run may not call a model of this name, and no model of the provider {} is available. "
    "The operator configures one, for example with MODELS_SMALL_BASE_URL and MODELS_SMALL_MODEL."
)
_UNKNOWN_OBJECT: Final = "no recorded reply of this tenant has named the object at the provider"


class FreeFields:
    """Fields that the operator allows in runs that limit their spending."""

    def __init__(self, current: FieldsOf, file: Path, read: Callable[[], FieldsOf]) -> None:
        """``read`` reads the setting from ``file``; it raises ValueError if it is invalid."""
        self._current = current
        self._file = file
        self._read = read
        self._version = self._version_of_file()

    async def of(self, dialect: str) -> Collection[str]:
        """Return the allowed paths for an API; an invalid or missing file changes nothing."""
        version = self._version_of_file()
        if version not in (None, self._version):
            self._version = version
            try:
                self._current = await asyncio.to_thread(self._read)
                log.info("gateway.free_fields_read")
            except ValueError as error:
                log.warning("gateway.free_fields_invalid", detail=str(error))
        return self._current.get(dialect, ())

    def _version_of_file(self) -> tuple[int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request for a model, as a client or the code of a step sends it."""

    dialect: Dialect
    headers: Mapping[str, str]
    document: Callable[[], Any]
    """Returns the JSON document of the body."""
    size_bytes: int
    """Size of the body."""
    path_model: str | None = None
    """Name of the model in the path; None if the body names it."""


class CallAdmission:
    """Admits the bodies of model calls in this process."""

    def __init__(self, free_fields: FreeFields, objects: ProviderObjects) -> None:
        """``free_fields`` are allowed by the operator in runs that limit their spending."""
        self._free_fields = free_fields
        self._objects = objects
        self._reading = PacedThread()
        """Reads long bodies, one at a time, next to the event loop."""

    async def request(
        self, session: GatewaySession, client_request: ClientRequest
    ) -> GatewayRequest:
        """Return the request for a model call.

        Raises:
            RefusedError: the run may not call the model, or not with this API.
            RefusedBodyError: the body is malformed, or has a field that is not offered.
        """
        body, dialect = await self.body(session, client_request), client_request.dialect
        name = client_request.path_model or body.document["model"]
        alias, model = model_of(session, name, dialect)
        if session.scope.limits_spending():
            body = _with_limited_uses(session, dialect, body, alias, model)
        provider_body, hides_usage = dialect.provider_body(body.document, model.model)
        return GatewayRequest(
            path=dialect.path_to(model.model),
            alias=alias,
            model=model,
            body=body,
            provider_body=provider_body,
            hides_usage=hides_usage,
            limit_fields=dialect.limit_fields,
            headers=passed_on(client_request.headers),
            objects_in=objects_in,
        )

    async def body(self, session: GatewaySession, client_request: ClientRequest) -> ClientBody:
        """Read and check the body of a request.

        Raises:
            RefusedBodyError: it is malformed, or has a field that is not offered.
        """
        dialect, limits_spending = client_request.dialect, session.scope.limits_spending()
        free = await self._free_fields.of(dialect.fields.dialect) if limits_spending else ()

        def read() -> ClientBody:
            readable = require_readable(client_request.document(), dialect)
            parts = dialect.fields.read(readable, limits_spending=limits_spending, free_fields=free)
            return read_body(readable, dialect.field, parts)

        with _naming(session):
            body = await self._reading.call(read, client_request.size_bytes // BYTES_PER_CHAR)
            if references := object_references_in(body.parts):
                tenant, ids = session.key.tenant, [each for _, each in references]
                tokens = await self._objects.tokens_of(tenant, ids)
                require_known_objects(references, tokens)
                body = replace(body, references=tokens)
        return body


def _with_limited_uses(
    session: GatewaySession, dialect: Dialect, body: ClientBody, alias: str, model: ChatModel
) -> ClientBody:
    """Return a body with a limit of uses for the tools that the provider executes.

    Raises:
        RefusedBodyError: the provider executes a tool that has no price.
    """
    document, uses_field, prices = body.document, dialect.uses_field, model.provider_tools
    with _naming(session):
        tools = priced_tools(document, body.parts, prices, alias=alias, uses_field=uses_field)
    limited = limited_uses(document, tools, uses_field=uses_field)
    return replace(body, document={**document, **limited}, provider_tools=tools)


@contextmanager
def _naming(session: GatewaySession) -> Iterator[None]:
    """Add the run to the message of a refused body."""
    try:
        yield
    except RefusedBodyError as refused:
        if session.is_draft:
            raise
        message = f"{refused} (run {session.key.run_id})"
        raise RefusedBodyError(refused.code, message, refused.field) from None


def document_of(request: ApiRequest, content: bytes) -> Any:
    """Parse the body of a request.

    Raises:
        ProblemError: it is not valid JSON.
        RefusedBodyError: it has too many values.
    """
    if has_more_values(content, MAX_VALUES):  # parsing them would occupy the process
        raise too_many_values()
    return request.parsed(content, is_unicode)  # the journal replaces NUL characters


def unknown_model(models: RunModels, dialect: Dialect) -> RefusedError:
    """Return the refusal for a model that the run may not call; it lists the models it may call."""
    names = ", ".join(models.names(dialect.provider))
    message = _UNKNOWN_MODEL.format(names) if names else _NO_MODEL.format(dialect.provider)
    return RefusedError(Refusal(status=404, code="model_not_found", message=message, field="model"))


def model_of(session: GatewaySession, name: str, dialect: Dialect) -> tuple[str, ChatModel]:
    """Return the configured name and the model for a name that a client sent.

    Raises:
        RefusedError: the run may not call it, or not with this API.
    """
    try:
        return session.models.model(name, dialect.provider)
    except UnknownModelError:
        raise unknown_model(session.models, dialect) from None
    except WrongDialectError as other:
        right = next((each for each in DIALECTS if each.provider == other.provider), dialect)
        message = (
            f"The model cannot be called through the gateway, because its provider is "
            f"{other.provider}. Use or configure a model of the provider {dialect.provider}."
        )
        if right is not dialect:
            message = (
                f"The model has another API. Use the run's {right.provider}_base_url, which ends"
                f" with /gateway{right.base}."
            )
        raise RefusedError(Refusal(code="wrong_api", message=message, field="model")) from None


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request that the provider receives."""
    passed: dict[str, str] = {}
    for name, value in headers.items():
        if name in PASSED_ON:
            passed[name] = f"{passed[name]}, {value}" if name in passed else value
    return {
        name: value
        for name, value in passed.items()
        if value and value.isascii() and value.isprintable()
    }


def require_readable(body: Any, dialect: Dialect) -> Mapping[str, Any]:
    """Check that the gateway can interpret the body of a request, and return it.

    Raises:
        RefusedBodyError: the body is not a JSON object, has more than ``MAX_VALUES`` values, or has
            a field of the wrong type.
    """
    if not isinstance(body, dict):
        raise RefusedBodyError("invalid_request", "The body must be a JSON object.")
    if _has_more_values(body, MAX_VALUES):
        raise too_many_values()
    for field, message in _faults(body, dialect):
        raise RefusedBodyError("invalid_request", f"The field {field} {message}.", field)
    return body


def too_many_values() -> RefusedBodyError:
    """Return the refusal of a body with more values than ``MAX_VALUES``."""
    message = f"The body must not have more than {MAX_VALUES} values."
    return RefusedBodyError("invalid_request", message)


def _has_more_values(body: Mapping[str, Any], limit: int) -> bool:
    values: list[Any] = [body]
    for value in values:
        inner = value.values() if isinstance(value, dict) else value
        values += inner if isinstance(value, dict | list) else ()
        if len(values) > limit:
            return True
    return False


def _faults(body: Mapping[str, Any], dialect: Dialect) -> Iterator[tuple[str, str]]:
    """Yield the fields that the gateway reads and cannot interpret."""
    if not (dialect.has_model_in_path or isinstance(body.get("model"), str)):
        yield "model", "must be a string"
    if not isinstance(body.get(dialect.field), dialect.field_types):
        yield dialect.field, "must be an array"
    if not isinstance(body.get("stream"), bool | None):
        yield "stream", "must be a boolean"
    if not isinstance(body.get("stream_options"), dict | None):
        yield "stream_options", "must be an object"


def object_references_in(parts: Sequence[Part]) -> Sequence[tuple[str, str]]:
    """Return the place of each reference to an object at the provider, with its ID.

    The ID is empty if it cannot be read.
    """
    references = (part for part in parts if part.use is Use.REFERENCE)
    return [(each.place, each.value if is_id(each.value) else "") for each in references]


def require_known_objects(references: Sequence[tuple[str, str]], known_ids: Container[str]) -> None:
    """Check that the objects to which a body refers are known.

    Raises:
        RefusedBodyError: one of them is not.
    """
    for place, reference in references:
        if reference not in known_ids:
            message = f"The field {place} is not offered: {_UNKNOWN_OBJECT}."
            raise RefusedBodyError("unsupported_field", message, place)
