"""Describes a feature by its routes, errors, services, queues and loops.

``caseworker.main`` has the list of all features. It opens each of them once per process.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from starlette.routing import BaseRoute

from caseworker.features.background_queue import BackgroundQueue
from caseworker.features.expiry import Drop
from caseworker.platform.http.problems import Errors, ProblemType
from caseworker.platform.postgres.connections import Patience
from caseworker.platform.postgres.engines import Engines
from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.observers import RunObservers
from caseworker.runs.recover.heartbeat import Search
from caseworker.settings.schema import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Settings, database access and services of a process, from which features are built."""

    settings: Settings
    url: str
    """Database URL, for connections outside the connection pools."""
    patience: Patience
    """Timeouts for connections to the database."""
    engines: Engines
    limits: StoreLimits
    """Limits for storing runs."""
    observers: RunObservers
    drops: Mapping[str, Drop]
    """Functions of all features that delete expired data, by category."""
    services: Mapping[type, Any]
    """Services of the process and of the features opened earlier, keyed by type."""

    def service(self, of: type[T]) -> T:
        """Return the service of type ``of``, or raise KeyError."""
        return cast("T", self.services[of])


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The services, queues and background loops of a feature in one process."""

    services: Sequence[object] = ()
    """Services that routes and other features look up by type."""
    queues: Mapping[str, BackgroundQueue] = field(default_factory=dict)
    """Background queues by name. Every process that executes runs also runs their jobs."""
    loops: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """Background loops by name. They run in every process that executes runs."""
    searches: Sequence[Search] = ()
    """Searches for work of the loops, with the statement that each such process sends at every
    heartbeat."""
    begin: Callable[[], None] | None = None
    """Called when the process starts."""
    close: Callable[[], Awaitable[None]] | None = None
    """Called when the process ends, after its loops have stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A capability of the service; its code is in one folder."""

    name: str
    routes: Sequence[BaseRoute] = ()
    errors: Errors = field(default_factory=dict)
    """Maps the exceptions that the feature raises to problem types."""
    problems: Sequence[ProblemType] = ()
    """Further problem types of the feature, to which ``errors`` maps no exception."""
    tables: Sequence[str] = ()
    """Names of the database tables that hold the data of the feature."""
    retention: Mapping[str, Drop] = field(default_factory=dict)
    """Functions that delete expired data, by category, which several features may share. Each
    category has a retention period, the setting ``retention.<category>_days``."""
    open: Callable[[Parts], Opened] = lambda parts: Opened()
    """Function that builds the services of the feature for a process; it performs no I/O."""

    @property
    def problem_types(self) -> Sequence[ProblemType]:
        """All problem types of the feature."""
        mapped = (kind for kind in self.errors.values() if isinstance(kind, ProblemType))
        return (*mapped, *self.problems)
