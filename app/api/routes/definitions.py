"""Look at registered graphs and agents, list them, delete them: the same for both."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.api.api_request import ApiRequest, api_router
from app.api.definition_body import MAX_VERSION, DefinitionName
from app.api.definition_views import (
    AgentDefinitionView,
    AgentList,
    GraphDefinitionView,
    GraphList,
    RegisteredDefinition,
)
from app.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from app.api.field_types import PageQuery
from app.api.problem_types import ProblemType
from app.nodes.nesting import DefinitionKind
from app.runs.run import DefinitionRef

_WHERE = {"Location": {"description": "Where the version is.", "schema": {"type": "string"}}}

REGISTERED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY),
    200: {
        "description": "The newest version is the same already; nothing was stored.",
        "headers": _WHERE,
        "model": RegisteredDefinition,
    },
    201: {"description": "A new version is stored.", "headers": _WHERE},
}
"""What is answered to who registers a graph or an agent."""

_GONE: Responses = {
    204: {"description": "It is gone. Runs that were accepted with it are not touched."}
}

NamePath = Annotated[DefinitionName, Path(description="The name of a definition.")]
VersionPath = Annotated[int, Path(description="One of its versions.", ge=1, le=MAX_VERSION)]


def definition_routes(
    kind: DefinitionKind,
    view: type[GraphDefinitionView | AgentDefinitionView],
    many: type[GraphList | AgentList],
    *,
    not_found: ProblemType,
    in_use: ProblemType,
) -> APIRouter:
    """Return the routes of one kind of definition, to which others may be added."""
    what = kind.value
    router = api_router(f"{what}s", prefix=f"/{what}s")
    found = answers(*EVERY_RUN_ROUTE, not_found)
    deleted: Responses = {**answers(*EVERY_RUN_ROUTE, not_found, in_use), **_GONE}

    async def list_all(query: Annotated[PageQuery, Query()], request: ApiRequest):  # type: ignore[no-untyped-def]
        page = await request.api.services.definitions.find(
            request.caller.tenant, kind, limit=query.limit, cursor=query.cursor
        )
        return many.of(page, request.root)

    async def newest(name: NamePath, request: ApiRequest):  # type: ignore[no-untyped-def]
        ref = DefinitionRef(name, kind=kind)
        definition = await request.api.definitions.get(request.caller.tenant, ref)
        return view.of_definition(definition, request.root)

    async def versions(  # type: ignore[no-untyped-def]
        name: NamePath, query: Annotated[PageQuery, Query()], request: ApiRequest
    ):
        page = await request.api.definitions.versions(
            request.caller.tenant,
            DefinitionRef(name, kind=kind),
            limit=query.limit,
            cursor=query.cursor,
        )
        return many.of(page, request.root)

    async def version(name: NamePath, version: VersionPath, request: ApiRequest):  # type: ignore[no-untyped-def]
        ref = DefinitionRef(name, version, kind)
        definition = await request.api.definitions.get(request.caller.tenant, ref)
        return view.of_definition(definition, request.root)

    async def delete(name: NamePath, request: ApiRequest) -> None:
        ref = DefinitionRef(name, kind=kind)
        await request.api.services.definitions.delete(request.caller.tenant, ref)

    async def delete_version(name: NamePath, version: VersionPath, request: ApiRequest) -> None:
        ref = DefinitionRef(name, version, kind)
        await request.api.services.definitions.delete(request.caller.tenant, ref)

    every = answers(*EVERY_RUN_ROUTE)
    here, one = "/{name}/versions", "/{name}/versions/{version}"
    about = f"a{'n' if what[0] in 'aeiou' else ''} {what}"
    for path, endpoint, model, responses, name, description in (
        (
            "",
            list_all,
            many,
            every,
            f"list_{what}s",
            f"List the newest version of each registered {what}, by name.",
        ),
        ("/{name}", newest, view, found, f"get_{what}", f"Return the newest version of {about}."),
        (
            here,
            versions,
            many,
            found,
            f"list_{what}_versions",
            f"List the versions of {about}, newest first.",
        ),
        (one, version, view, found, f"get_{what}_version", f"Return one version of {about}."),
    ):
        router.add_api_route(
            path,
            endpoint,
            response_model=model,
            responses=responses,
            name=name,
            description=description,
        )
    for path, end, name, description in (
        (
            "/{name}",
            delete,
            f"delete_{what}",
            f"Delete all versions of {about}; their numbers are not used again.",
        ),
        (
            one,
            delete_version,
            f"delete_{what}_version",
            f"Delete one version of {about}; its number is not used again.",
        ),
    ):
        router.add_api_route(
            path,
            end,
            methods=["DELETE"],
            status_code=HTTPStatus.NO_CONTENT,
            responses=deleted,
            name=name,
            description=description,
        )
    return router
