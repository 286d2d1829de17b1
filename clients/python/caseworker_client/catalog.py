"""Operations on graphs, agents, tools and models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from caseworker_client.flow import Flow, Request, ask, fetch
from caseworker_client.models import AgentList, Answer, Definition, GraphList, Validation
from caseworker_client.settings import Settings

L = TypeVar("L", GraphList, AgentList)


@dataclass(frozen=True, slots=True)
class Definitions(Generic[L]):
    """Operations on definitions of one kind. Each name has immutable versions, numbered from 1."""

    kind: str
    """``graph`` or ``agent``: the key in request bodies, and in the plural, the URL path."""
    page: type[L]

    def get(self, settings: Settings, name: str, version: int | None = None) -> Flow[Definition]:
        """Return a version of a definition, by default the newest."""
        request = Request(method="GET", path=self._path(name, version))
        return (yield from fetch(settings, request, Definition))

    def list(self, settings: Settings, *, limit: int = 50, cursor: str | None = None) -> Flow[L]:
        """Return a page of the newest versions of all definitions, by name."""
        request = Request(method="GET", path=f"/{self.kind}s", params=_page(limit, cursor))
        return (yield from fetch(settings, request, self.page))

    def versions(
        self, settings: Settings, name: str, *, limit: int = 50, cursor: str | None = None
    ) -> Flow[L]:
        """Return a page of the versions of a definition, newest first."""
        path = f"{self._path(name)}/versions"
        request = Request(method="GET", path=path, params=_page(limit, cursor))
        return (yield from fetch(settings, request, self.page))

    def delete(self, settings: Settings, name: str, version: int | None = None) -> Flow[None]:
        """Delete one version of a definition, or all of them."""
        path = self._path(name, version)
        yield from ask(settings, Request(method="DELETE", path=path, repeatable=False))

    def _path(self, name: str, version: int | None = None) -> str:
        path = f"/{self.kind}s/{quote(name, safe='')}"
        return path if version is None else f"{path}/versions/{version}"


GRAPHS: Final = Definitions("graph", GraphList)
AGENTS: Final = Definitions("agent", AgentList)


def register_graph(
    settings: Settings, name: str, graph: Mapping[str, Any], *, description: str | None = None
) -> Flow[Definition]:
    """Register a graph as the next version of its name; an unchanged graph keeps its version."""
    body = {"name": name, "graph": dict(graph), "description": description}
    request = Request(method="POST", path="/graphs", json=body)
    return (yield from fetch(settings, request, Definition))


def register_agent(settings: Settings, agent: Mapping[str, Any]) -> Flow[Definition]:
    """Register an agent as the next version of its name; an unchanged agent keeps its version."""
    request = Request(method="POST", path="/agents", json={"agent": dict(agent)})
    return (yield from fetch(settings, request, Definition))


def validate_graph(settings: Settings, graph: Mapping[str, Any]) -> Flow[Validation]:
    """Validate a graph without registering it, and return all problems."""
    request = Request(method="POST", path="/graphs/validate", json={"graph": dict(graph)})
    return (yield from fetch(settings, request, Validation))


def list_tools(settings: Settings) -> Flow[list[dict[str, Any]]]:
    """Return the available tools."""
    tools: list[dict[str, Any]] = yield from _member(settings, "/tools", "tools")
    return tools


def list_models(settings: Settings) -> Flow[dict[str, Any]]:
    """Return the configured models by name; ``small`` and ``big`` are the tiers."""
    models: dict[str, Any] = yield from _member(settings, "/models", "models")
    return models


def service_version(settings: Settings) -> Flow[str]:
    """Return the version of the service."""
    info = yield from _member(settings, "/openapi.json", "info")
    return str(info["version"])


def _member(settings: Settings, path: str, name: str) -> Flow[Any]:
    answer = yield from fetch(settings, Request(method="GET", path=path), Answer)
    return answer.as_json()[name]


def _page(limit: int, cursor: str | None) -> dict[str, str]:
    return {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
