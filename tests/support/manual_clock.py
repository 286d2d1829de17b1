"""A clock that a test sets."""


class ManualClock:
    """Returns ``now``, in UTC epoch milliseconds, which only a test changes."""

    def __init__(self, now: int = 1_740_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
