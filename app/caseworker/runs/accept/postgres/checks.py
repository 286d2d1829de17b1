"""Ports for the checks of accepted runs, which the feature ``quotas`` implements."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.errors import QuotaExceededError, RateState
from caseworker.runs.quotas import Quota
from caseworker.runs.run import NewRun


class RunCheck(Protocol):
    """Decides whether a run is accepted, in the transaction that stores it."""

    @property
    def may_begin(self) -> bool:
        """Whether the run may be claimed at once, without waiting for other runs of its tenant."""
        ...

    @property
    def cannot_start(self) -> QuotaExceededError:
        """The error for a run that must not wait for other runs of its tenant, but would."""
        ...

    @property
    def restricted(self) -> NewRun:
        """The run, with the restrictions of its tenant added to its request."""
        ...

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts in which the calls of the run reserve."""
        ...

    def storing(self, connection: AsyncConnection) -> AbstractAsyncContextManager[None]:
        """Check the storage of the tenant after the writes of the block.

        Raises:
            QuotaExceededError: the transaction must be rolled back.
        """
        ...

    async def charge(self, connection: AsyncConnection, *, queued: bool) -> RateState | None:
        """Charge the stored run to its tenant; return the state of the rate limit, if any.

        Raises:
            QuotaExceededError: the transaction must be rolled back.
            GraphRefusedError: the run uses a model that the tenant may not use.
        """
        ...


class AcceptChecks(Protocol):
    """Checks runs when they are accepted, in the transactions that store them.

    ``usual`` is the quota of tenants without their own quota.
    """

    async def check_of(
        self, connection: AsyncConnection, new: NewRun, usual: Quota
    ) -> RunCheck | None:
        """Lock the tenant and return the check of a run; None if no limit applies."""
        ...

    async def left_of_rate(
        self, connection: AsyncConnection, tenant: str, usual: Quota
    ) -> RateState | None:
        """Return the state of a tenant's rate limit without consuming it; None without a limit."""
        ...
