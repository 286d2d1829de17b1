"""Routes that read, list and delete registered graphs and agents."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from caseworker.api.api_request import ApiRequest, api_router
from caseworker.api.definition_body import MAX_VERSION, DefinitionName
from caseworker.api.definition_views import (
    AgentDefinitionView,
    DefinitionList,
    GraphDefinitionView,
    RegisteredDefinition,
)
from caseworker.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.api.field_types import PageQuery
from caseworker.api.problem_types import BY_SLUG, QUOTA_EXCEEDED
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import DefinitionRef

_WHERE = {"Location": {"description": "URL of the version.", "schema": {"type": "string"}}}

REGISTERED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, QUOTA_EXCEEDED),
    200: {
        "description": "The newest version is identical; no new version was created.",
        "headers": _WHERE,
        "model": RegisteredDefinition,
    },
    201: {"description": "A new version was created.", "headers": _WHERE},
}
"""OpenAPI responses for the routes that register a graph or agent."""

_GONE: Responses = {204: {"description": "Deleted. Existing runs that use it are not affected."}}

NamePath = Annotated[DefinitionName, Path(description="Name of the definition.")]
VersionPath = Annotated[int, Path(description="Version number.", ge=1, le=MAX_VERSION)]


def definition_routes(
    kind: DefinitionKind,
    view: type[GraphDefinitionView | AgentDefinitionView],
    many: type[DefinitionList],
) -> APIRouter:
    """Return a router that lists, reads and deletes definitions of one kind.

    ``view`` is the response model for one definition and ``many`` for a list. The caller may add
    more routes to the router.
    """
    what = kind.value
    router = api_router(f"{what}s", prefix=f"/{what}s")
    not_found, in_use = BY_SLUG[f"{what}-not-found"], BY_SLUG[f"{what}-in-use"]
    found = answers(*EVERY_RUN_ROUTE, not_found)
    deleting: dict[str, Any] = {
        "status_code": HTTPStatus.NO_CONTENT,
        "responses": {**answers(*EVERY_RUN_ROUTE, not_found, in_use), **_GONE},
    }
    about = f"a{'n' if what[0] in 'aeiou' else ''} {what}"

    @router.get(
        "",
        response_model=many,
        responses=answers(*EVERY_RUN_ROUTE),
        name=f"list_{what}s",
        description=f"List the newest version of each registered {what}, sorted by name.",
    )
    async def list_all(query: Annotated[PageQuery, Query()], request: ApiRequest):  # type: ignore[no-untyped-def]
        page = await request.api.services.definitions.find(
            request.caller.tenant, kind, limit=query.limit, cursor=query.cursor
        )
        return many.of(page, request.root)

    @router.get(
        "/{name}",
        response_model=view,
        responses=found,
        name=f"get_{what}",
        description=f"Return the newest version of {about}.",
    )
    async def newest(name: NamePath, request: ApiRequest):  # type: ignore[no-untyped-def]
        ref = DefinitionRef(name, kind=kind)
        definition = await request.api.definitions.get(request.caller.tenant, ref)
        return view.of_definition(definition, request.root)

    @router.get(
        "/{name}/versions",
        response_model=many,
        responses=found,
        name=f"list_{what}_versions",
        description=f"List the versions of {about}, newest first.",
    )
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

    @router.get(
        "/{name}/versions/{version}",
        response_model=view,
        responses=found,
        name=f"get_{what}_version",
        description=f"Return one version of {about}.",
    )
    async def version(name: NamePath, version: VersionPath, request: ApiRequest):  # type: ignore[no-untyped-def]
        ref = DefinitionRef(name, version, kind)
        definition = await request.api.definitions.get(request.caller.tenant, ref)
        return view.of_definition(definition, request.root)

    @router.delete(
        "/{name}",
        **deleting,
        name=f"delete_{what}",
        description=f"Delete all versions of {about}. Version numbers are not reused.",
    )
    async def delete(name: NamePath, request: ApiRequest) -> None:
        ref = DefinitionRef(name, kind=kind)
        await request.api.services.definitions.delete(request.caller.tenant, ref)

    @router.delete(
        "/{name}/versions/{version}",
        **deleting,
        name=f"delete_{what}_version",
        description=f"Delete one version of {about}. Its number is not reused.",
    )
    async def delete_version(name: NamePath, version: VersionPath, request: ApiRequest) -> None:
        ref = DefinitionRef(name, version, kind)
        await request.api.services.definitions.delete(request.caller.tenant, ref)

    return router
