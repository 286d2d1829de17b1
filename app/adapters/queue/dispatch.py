"""The job queue: what one process cannot take goes to whichever is free."""

from collections.abc import Sequence

import procrastinate
from procrastinate.exceptions import AlreadyEnqueued
from sqlalchemy.ext.asyncio import AsyncConnection

from app.runs.run import RunKey

EXECUTE = "execute_run"
RESCUE = "rescue"
QUEUE = "runs"
RESCUE_QUEUE = "rescue"


class QueueDispatch:
    """Defers jobs inside the transactions that queue the runs."""

    def __init__(self, url: str) -> None:
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    async def defer(self, connection: AsyncConnection, keys: Sequence[RunKey]) -> None:
        """Defer a job for each run; a run that has a waiting job keeps that one."""
        driver = (await connection.get_raw_connection()).driver_connection
        for key in keys:
            job = self._app.configure_task(
                EXECUTE,
                queue=QUEUE,
                queueing_lock=f"{key.tenant}/{key.run_id}",
                connection=driver,
            )
            try:
                async with connection.begin_nested():
                    await job.defer_async(tenant=key.tenant, run_id=key.run_id)
            except AlreadyEnqueued:
                continue
