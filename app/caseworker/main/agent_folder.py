"""Register the agents that the operator defines in files or in code, when the API starts.

Each YAML file holds one definition, as ``POST /agents`` accepts it. If it differs from the newest
registered version, it is registered as the next version. So the files take precedence at every
start.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from inspect import getdoc
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from pydantic_settings import SettingsError

from caseworker.core.graph.validation import Problem, Severity
from caseworker.features.definitions.definitions import Definitions
from caseworker.main.configuration import StartupError
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.function import FunctionNode
from caseworker.nodes.nesting import agents_in
from caseworker.nodes.strict_parsing import problems_in
from caseworker.runs.errors import GraphRefusedError
from caseworker.settings.loader import read_yaml

log = structlog.get_logger(__name__)

MAX_DESCRIPTION = 2000
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class AgentFile:
    """An agent definition that was read from a file, and the file's name."""

    file: str
    name: str
    agent: Mapping[str, Any]
    origin: str = "agents.folder"
    """The setting or the entry point group that names the file."""


def read_agents(folder: Path | None) -> Sequence[AgentFile]:
    """Return the agents defined in ``folder``, each after the agents that it calls.

    Returns no agents if ``folder`` is None.

    Raises:
        StartupError: the folder is missing, or a definition is invalid. The message names the file
            and the field.
    """
    if folder is None:
        return ()
    if not folder.is_dir():
        raise StartupError(f"agents.folder: the folder {str(folder)!r} does not exist")
    agents: dict[str, AgentFile] = {}
    for path in sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES):
        read = _read(path)
        if (other := agents.get(read.name)) is not None:
            raise _wrong(
                read.file, f"name: {other.file} defines an agent named {read.name!r} as well"
            )
        agents[read.name] = read
    calls = {name: {one.name for one in agents_in(file.agent)} for name, file in agents.items()}
    try:
        order = TopologicalSorter(calls).static_order()
        return [agents[name] for name in order if name in agents]
    except CycleError as error:
        circle: list[str] = error.args[1]
        raise _wrong(
            agents[circle[0]].file, f"tools: circular reference: {' -> '.join(circle)}"
        ) from None


def with_code_agents(
    files: Iterable[AgentFile], code: Mapping[str, FunctionNode]
) -> Sequence[AgentFile]:
    """Return a definition for each code agent, followed by those in files, which may use them.

    Its description is the first paragraph of the docstring.

    Raises:
        StartupError: an agent in a file has the name of a code agent.
    """
    agents: list[AgentFile] = []
    for name, function in code.items():
        about = " ".join((getdoc(function.fn) or "").partition("\n\n")[0].split())
        agent = {"name": name, "description": about[:MAX_DESCRIPTION], "prompt": {}, "code": name}
        agents.append(AgentFile(name, name, agent, "caseworker.agents"))
    for one in files:
        if one.name in code:
            raise _wrong(one.file, f"name: a code agent is named {one.name!r} as well")
        agents.append(one)
    return agents


async def register_agents(
    agents: Sequence[AgentFile], definitions: Definitions, tenant: str
) -> None:
    """Register each agent whose definition differs from its newest registered version.

    Raises:
        StartupError: an agent cannot be executed; the message names the file and the field.
    """
    for one in agents:
        try:
            registered = await definitions.register_agent(tenant, one.agent)
        except GraphRefusedError as refused:
            raise _wrong(one.file, _line(refused.problems[0]), one.origin) from None
        if registered.created:
            log.info("agent.registered", agent=f"{one.name}@{registered.head.version}")


def require_valid(one: AgentFile, problems: Iterable[Problem]) -> None:
    """Check that no problem of an agent prevents its execution.

    Raises:
        StartupError: one does; the message names the file and the field.
    """
    for problem in problems:
        if problem.severity is Severity.ERROR:
            raise _wrong(one.file, _line(problem), one.origin)


def _read(path: Path) -> AgentFile:
    try:
        written = read_yaml(path)
        json.dumps(written, allow_nan=False)  # rejects dates, for example
        agent = AgentDefinition.model_validate(written)
    except SettingsError as error:
        raise StartupError(f"agents.folder: {error}") from None
    except ValidationError as error:
        raise _wrong(path.name, _line(next(problems_in(error, "")))) from None
    except (TypeError, ValueError, RecursionError):
        raise _wrong(path.name, "contains values that JSON does not support; quote them") from None
    return AgentFile(path.name, agent.name, written)


def _line(problem: Problem) -> str:
    return " ".join(f"{problem.place or 'the agent'}: {problem.message}".split())


def _wrong(file: str, problem: str, origin: str = "agents.folder") -> StartupError:
    return StartupError(f"{origin}: {file}: {problem}")
