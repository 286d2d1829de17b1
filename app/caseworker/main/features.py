"""The features of the service, in the order in which their routes are matched."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from caseworker.features.access.feature import ACCESS
from caseworker.features.approvals.feature import APPROVALS
from caseworker.features.artifacts.feature import ARTIFACTS
from caseworker.features.catalog.feature import CATALOG
from caseworker.features.definitions import agents, graphs
from caseworker.features.definitions import problems as definition_problems
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.quotas.feature import QUOTAS
from caseworker.features.schedules import http as schedules
from caseworker.features.schedules.feature import open_schedules
from caseworker.features.threads import http as threads
from caseworker.features.threads import problems as thread_problems
from caseworker.features.webhooks.feature import WEBHOOKS
from caseworker.platform.http.problems import OF_EVERY_SERVICE
from caseworker.runs.http import events, problems, runs, traces

RUNS: Final = Feature(
    name="runs",
    routes=[*runs.router.routes, *traces.router.routes, *events.router.routes],
    errors=problems.ERRORS,
    problems=problems.PROBLEMS,
)
FEATURES: Final[Sequence[Feature]] = (
    RUNS,
    ARTIFACTS,
    APPROVALS,
    Feature(
        name="threads",
        routes=threads.router.routes,
        errors=thread_problems.ERRORS,
        problems=thread_problems.PROBLEMS,
    ),
    Feature(
        name="definitions",
        routes=[*graphs.router.routes, *agents.router.routes],
        errors=definition_problems.ERRORS,
        problems=definition_problems.PROBLEMS,
    ),
    ACCESS,
    QUOTAS,
    WEBHOOKS,
    Feature(
        name="schedules",
        routes=schedules.router.routes,
        errors=schedules.ERRORS,
        open=open_schedules,
    ),
    CATALOG,
)
PROBLEM_TYPES: Final = frozenset(
    kind for feature in FEATURES for kind in feature.problem_types
).union(OF_EVERY_SERVICE)
"""All problem types that the service may return."""


def open_features(
    parts: Parts, given: Mapping[type, Any] = MappingProxyType({})
) -> tuple[Mapping[type, Any], Sequence[Opened]]:
    """Build the services of all features for a process.

    Returns all services by type, and the parts of each feature. Services that are ``given``
    replace those of the process and of features.
    """
    services, opened = {**parts.services, **given}, []
    for feature in FEATURES:
        one = feature.open(replace(parts, services=MappingProxyType(services)))
        services |= {type(each): each for each in one.services} | dict(given)
        opened.append(one)
    return services, opened
