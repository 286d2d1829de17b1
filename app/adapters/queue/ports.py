"""What the queue's worker needs of whoever executes runs."""

from typing import Protocol

from app.runs.run import Run


class Executor(Protocol):
    """Executes claimed runs in this process, so many at a time."""

    @property
    def worker_id(self) -> str:
        """Under which name runs are claimed."""
        ...

    @property
    def free_slots(self) -> int:
        """How many more runs may be started now."""
        ...

    def reserve(self) -> bool:
        """Keep a slot for a run that is about to be claimed; False if there is none."""
        ...

    def unreserve(self) -> None:
        """Give a kept slot back."""
        ...

    async def room(self) -> None:
        """Wait until there may be a free slot."""
        ...

    def start(self, run: Run, *, permitted_at: float) -> None:
        """Execute a run that was claimed for this process.

        ``permitted_at`` is when the claiming statement was sent, on the monotonic clock.
        """
        ...
