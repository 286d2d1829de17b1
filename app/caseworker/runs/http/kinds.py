"""The HTTP API of all kinds of runs: bodies, views and admissions."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib.metadata import EntryPoint
from operator import or_
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, cast

from fastapi.openapi.models import Example
from pydantic import (
    BeforeValidator,
    Field,
    GetPydanticSchema,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from typing_extensions import TypeAliasType

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.trace.payloads import Payloads
from caseworker.platform.http.bodies import BodyModel
from caseworker.platform.validation import refusal
from caseworker.runs.http.admission import (
    Admissions,
    AgentAdmission,
    ExternalAdmission,
    GraphAdmission,
)
from caseworker.runs.http.body import (
    AgentRunBody,
    ExternalBody,
    ExternalFields,
    GoingOnBody,
    GraphRunBody,
    RunFields,
    checked_kind,
)
from caseworker.runs.http.kind import AdmissionParts, KindApi
from caseworker.runs.http.views import (
    AgentRun,
    ExternalRun,
    GraphRun,
    RunDetails,
    members_of,
)
from caseworker.runs.kind_rules import DEFAULT_KIND
from caseworker.runs.kinds import KINDS, choice_of_kinds, client_of, needs_package, parent_of
from caseworker.runs.run import Run, RunKind

_SHORT = 500
"""Texts shorter than this are redacted on the event loop, which takes only milliseconds."""

_BUILT_IN = (
    KindApi(
        kind=RunKind.GRAPH,
        body=GraphRunBody,
        view=GraphRun,
        admission=lambda parts: GraphAdmission(parts.limits, parts.definitions, parts.models),
    ),
    KindApi(
        kind=RunKind.AGENT,
        body=AgentRunBody,
        view=AgentRun,
        admission=lambda parts: AgentAdmission(parts.limits, parts.definitions, parts.models),
    ),
    KindApi(
        kind=RunKind.EXTERNAL,
        body=ExternalBody,
        view=ExternalRun,
        resume=ExternalFields,
        admission=lambda parts: ExternalAdmission(parts.limits, parts.definitions, parts.models),
    ),
)


def _installed() -> Iterable[KindApi]:
    for rules in KINDS.values():
        if rules.api:
            yield EntryPoint(rules.kind, rules.api, "").load()


APIS: Final[Mapping[str, KindApi]] = MappingProxyType(
    {api.kind: api for api in (*_installed(), *_BUILT_IN)}
)
"""The HTTP API of each kind whose package is installed."""

SECRET_FIELDS: Final = frozenset[str]().union(*(api.secret_fields for api in APIS.values()))
"""Fields of bodies that are hidden from callers who may not create runs."""


class StoredRun(RunDetails):
    """A run of a kind whose package is not installed, with its result as it is stored."""

    result: dict[str, Any] | None
    """Result of the run; null before there is one."""


def _stored(kind: RunKind) -> type[RunDetails]:
    more: Any = {"__doc__": StoredRun.__doc__, "__module__": __name__}
    more["kind"] = Literal.__getitem__(kind), ...
    return create_model(StoredRun.__name__, __base__=StoredRun, **more)


def one_of(models: Iterable[type[Any]], **of_field: Any) -> GetPydanticSchema:
    """Return an annotation for values of one of several models; ``of_field`` as in ``Field``."""
    choice: Any = reduce(or_, models)
    if of_field:
        choice = Annotated[choice, Field(**of_field)]
    return GetPydanticSchema(lambda _, handler: handler.generate_schema(choice))


_VIEWS: Final[Mapping[RunKind, type[RunDetails]]] = {
    kind: APIS[kind].view if kind in APIS else _stored(kind) for kind in RunKind
}

RunView = TypeAliasType(
    "RunView",
    Annotated[
        RunDetails,
        one_of(
            dict.fromkeys(_VIEWS.values()),
            discriminator="kind",
            description="A run with its status and result.",
        ),
    ],
)


class _WithoutKind(BodyModel, extra="allow"):
    """A body without a kind that this process accepts; it is never valid."""

    kind: Annotated[Any, BeforeValidator(checked_kind)] = Field(None, validate_default=True)


class _WithoutDefault(BodyModel, extra="allow"):
    """A body without a kind in a process that does not have the default one; it is never valid."""

    @staticmethod
    def _refused(_: Any) -> None:
        raise refusal(f"Send a kind: {choice_of_kinds()}. {needs_package(KINDS[DEFAULT_KIND])}")

    kind: Annotated[Any, BeforeValidator(_refused)] = Field(None, validate_default=True)


def body_of_kind(document: Any) -> RunFields:
    """Validate a body by the schema for its ``kind``, which defaults to ``case``.

    Raises:
        ValidationError: the body is invalid.
    """
    kind = document.get("kind", DEFAULT_KIND) if isinstance(document, dict) else DEFAULT_KIND
    api = APIS.get(kind) if isinstance(kind, str) else None
    api = api or APIS.get(DEFAULT_KIND)
    if api is not None:
        return api.body.model_validate(document)
    is_given = isinstance(document, dict) and "kind" in document
    (_WithoutKind if is_given else _WithoutDefault).model_validate(document)
    raise AssertionError("unreachable: these bodies are never valid")


def _resume_body() -> type[GoingOnBody]:
    more: Any = {"__doc__": GoingOnBody.__doc__, "__module__": __name__}
    fields = (api.resume for api in reversed([*APIS.values()]) if api.resume is not None)
    more["__base__"] = *fields, GoingOnBody
    return cast("type[GoingOnBody]", create_model(GoingOnBody.__name__, **more))


_RESUME_BODY: Final = _resume_body()
"""A run that resumes from an ended run of any kind, with the fields of all kinds."""


def _of_its_kind(document: Any, _: ValidatorFunctionWrapHandler) -> RunFields:
    if isinstance(document, dict) and "from" in document:
        return _RESUME_BODY.model_validate(document)
    return body_of_kind(document)


RunBody = Annotated[
    RunFields,
    one_of([*(api.body for api in APIS.values()), _RESUME_BODY]),
    WrapValidator(_of_its_kind),
]
"""A run to create. ``kind`` selects the schema (default: case). With ``from``, the run resumes from
an ended run."""

QUEUED_BODIES: Final[Sequence[type[RunFields]]] = [
    api.body for kind, api in APIS.items() if not KINDS[kind].is_external
]
"""Bodies of the kinds whose runs can be queued."""

EXAMPLES: Final[Mapping[str, Example]] = {
    name: cast("Example", example)
    for api in APIS.values()
    for name, example in api.examples.items()
}


def admissions_of(parts: AdmissionParts) -> Admissions:
    """Return the admissions of all kinds."""
    return Admissions(api.admission(parts) for api in APIS.values())


async def view_of(run: Run, root: str, payloads: Payloads) -> RunDetails:
    """Return the view of a run for its kind.

    ``root`` is the path prefix for its URLs; ``payloads`` shows its inputs as configured.
    """
    inputs = dict(run.request.inputs)
    input_ = inputs.pop(DEFAULT_HANDLE, None) or run.request.input or None
    displayed: Sequence[Any] = [input_, inputs or None]
    if inputs or (input_ is not None and not (isinstance(input_, str) and len(input_) < _SHORT)):
        # Redacting a long text would block the event loop.
        displayed = await asyncio.to_thread(lambda: [*map(payloads.display, displayed)])
    elif input_ is not None:
        displayed = payloads.display(input_), None
    members = {**members_of(run, root), "parent_run_id": parent_of(run.request)}
    members["client"] = client_of(run.request)
    return _VIEWS[run.kind](**members, input=displayed[0], inputs=displayed[1], result=run.result)
