"""Finds runs that wait although no process may be able to execute them."""

from collections.abc import Iterable, Sequence
from typing import Final

from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.kind_rules import KindRules
from caseworker.runs.kinds import MISSING, needs_package

WAITING: Final = """
SELECT count(*) FROM runs
WHERE status IN ('queued', 'waiting') AND request IS NOT NULL AND kind = %s
"""


async def runs_of_missing_kinds(
    pool: Pool, missing: Iterable[KindRules] = MISSING
) -> Sequence[str]:
    """Return a sentence for each of the ``missing`` kinds of which runs wait, in any tenant.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    sentences = []
    for rules in missing:
        async with transaction(pool) as connection:
            waiting = (await connection.exec_driver_sql(WAITING, (str(rules.kind),))).scalar_one()
        if waiting:
            wait = "1 run waits" if waiting == 1 else f"{waiting} runs wait"
            sentences.append(f"{wait} for a process that has it. {needs_package(rules)}")
    return sentences
