"""The feature ``threads``: conversations whose messages are answered by runs."""

from typing import Final

from caseworker.features.definitions.definitions import Definitions
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.threads import http
from caseworker.features.threads.admission import ThreadAdmission
from caseworker.features.threads.postgres.branches import PostgresBranches
from caseworker.features.threads.postgres.old_answers import AnswerMoves
from caseworker.features.threads.postgres.threads import PostgresThreads, drop_threads
from caseworker.features.threads.service import Chats
from caseworker.runs.http.kinds import Admissions
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.service import RunService


def open_threads(parts: Parts) -> Opened:
    """Build the services that store threads and create runs that answer their messages."""
    branches = parts.service(PostgresBranches)
    store = PostgresThreads(parts.engines, parts.limits.quota, branches=branches)
    admission = ThreadAdmission(
        parts.service(ApiLimits),
        parts.service(Definitions),
        parts.service(Admissions),
        parts.service(PostgresQuotas).get,
    )
    limit = parts.service(ApiLimits).max_graph_bytes
    chats = Chats(store, parts.service(RunService), max_branch_bytes=limit)
    moves = AnswerMoves(parts.engines.work)
    return Opened(services=[chats, admission], loops={"answers": moves.run})


THREADS: Final = Feature(
    name="threads",
    routes=http.router.routes,
    errors=http.ERRORS,
    problems=http.PROBLEMS,
    tables=["threads", "messages", "kept_messages", "moves"],
    retention={"threads": drop_threads},
    open=open_threads,
)
