"""The kinds of runs: those of the service, and those that installed packages register.

All other modules look up the rules of a kind in :data:`KINDS`.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from caseworker.core.budget.accounts import KEY, SESSION, TENANT
from caseworker.platform.entry_points import registered
from caseworker.runs.kind_rules import OPTIONAL, KindRules
from caseworker.runs.run import RunKind, RunRequest

AGENT_STEP: Final = "agent"
EXTERNAL_STEP: Final = "external"

RUN_KINDS: Final = "caseworker.run_kinds"
"""Entry point group for kinds of runs; an entry point names the :class:`KindRules` of a kind."""

_BUILT_IN = (
    KindRules(
        kind=RunKind.GRAPH,
        api="caseworker.features.definitions.graph_kind:GRAPH_API",
    ),
    KindRules(
        kind=RunKind.AGENT,
        step=AGENT_STEP,
        api="caseworker.features.definitions.agent_kind:AGENT_API",
    ),
    KindRules(
        kind=RunKind.EXTERNAL,
        step=EXTERNAL_STEP,
        api="caseworker.features.external.kind:EXTERNAL_API",
        agent_name=lambda request: _setting(request, "name"),
        is_external=True,
    ),
)


def _installed() -> Iterator[KindRules]:
    for point in registered(RUN_KINDS):
        yield point.load()


KINDS: Final[Mapping[str, KindRules]] = MappingProxyType(
    {rules.kind: rules for rules in (*OPTIONAL.values(), *_BUILT_IN, *_installed())}
)
"""Rules for each kind of run or definition, by its name."""

MISSING: Final = tuple(rules for rules in KINDS.values() if rules.package)
"""The kinds whose package is not installed."""


QUEUED: Final = tuple(
    rules.kind for rules in KINDS.values() if not (rules.is_external or rules.package)
)
"""The kinds of runs that this process accepts and that can be queued."""


def executable_kinds() -> list[str] | None:
    """Return the kinds of runs that this process executes; None if it executes all of them."""
    return [*map(str, _executable())] if MISSING else None


def choice_of(kinds: Iterable[str], form: str = "{}") -> str:
    """Return names of kinds as a choice in a sentence, such as "graph or agent"."""
    *names, last = map(form.format, kinds)
    return f"{', '.join(names)} or {last}" if names else last


def choice_of_kinds() -> str:
    """Return the kinds that this process accepts, such as "'graph', 'agent' or 'external'"."""
    return choice_of(_executable(), "'{}'")


def needs_package(rules: KindRules) -> str:
    """Return the message for a run whose kind needs a package that is not installed."""
    return (
        f"Runs of kind {rules.kind} need the package {rules.package} in the environment of the "
        f"service: pip install 'caseworker[{rules.package.removeprefix('caseworker-')}]'."
    )


def _executable() -> list[str]:
    return [kind for kind, rules in KINDS.items() if not rules.package]


def parent_of(request: RunRequest) -> str | None:
    """Return the ID of the run whose budget an external run shares; None if it shares none."""
    parent: str | None = _setting(request, "parent")
    return parent


def client_of(request: RunRequest) -> Mapping[str, Any] | None:
    """Return the client whose standing key has opened a run; None for other runs.

    It has the fields of :class:`caseworker.features.external.session.StandingClient`.
    """
    client: Mapping[str, Any] | None = _setting(request, "client")
    return client


def accounts_of(request: RunRequest) -> tuple[str, ...]:
    """Return the names of the accounts in which the calls of a standing key's run reserve.

    Other runs have none that are known from their request.
    """
    if (client := client_of(request)) is None:
        return ()
    key = f"{KEY}:{client['account']}"
    session = f"{SESSION}:{client['account']}"
    return TENANT, key, f"{session}:{client['session']}" if client["session"] else session


def has_client_tools(request: RunRequest) -> bool:
    """Return whether the agents of a run have tools that the client of the run executes."""
    of_user = () if request.chat is None else request.chat.user_tools
    return any(client_tools_in({"graph": request.graph, "tools": of_user}))


def client_tools_in(definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the path of each tool in a definition that the client of the run executes."""
    pending: list[tuple[str, Any]] = [("", definition)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, list | tuple):
            pending += ((f"{place}{index}.", each) for index, each in enumerate(value))
        elif isinstance(value, Mapping):
            pending += ((f"{place}{name}.", each) for name, each in value.items())
            uses = value.get("tools")
            for index, use in enumerate(uses if isinstance(uses, list | tuple) else ()):
                if isinstance(use, Mapping) and isinstance(use.get("client"), Mapping):
                    yield f"{place}tools.{index}.client"


def _setting(request: RunRequest, name: str) -> Any:
    """Return a setting of the client of an external run; None if the run is of another kind."""
    rules = KINDS[request.kind]
    if not rules.is_external or request.graph is None:
        return None
    return request.graph["steps"][0]["data"][rules.step].get(name)
