"""Objects at providers, such as files and responses, to which a request may refer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from caseworker.runs.run import RunKey


class ProviderObjects:
    """Knows which objects at a provider the replies to a tenant have named."""

    record: Callable[[RunKey, Sequence[str], int], Awaitable[None]]
    """Stores that a reply to a run has named these objects at the provider, and its tokens."""
    tokens_of: Callable[[str, Sequence[str]], Awaitable[Mapping[str, int | None]]]
    """Returns which of these objects a reply to a tenant has named, with the reply's tokens."""
