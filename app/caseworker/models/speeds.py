"""Output speeds of providers, by which the unseen part of an interrupted reply is charged.

The speeds are from secondary reports of the named sources. ``models.<name>.tokens_per_second``
replaces them.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

DEFAULT_TOKENS_PER_SECOND: Final = 200
"""Output tokens per second and choice of a model whose speed is not known."""


class Speed(NamedTuple):
    """The highest published output speed of a provider's models."""

    host: re.Pattern[str]
    """Matches the end of the host name of the endpoint."""
    tokens_per_second: int
    source: str


SPEEDS: Final = (
    Speed(
        re.compile(r"(^|\.)cerebras\.ai$"),
        3000,
        "inference-docs.cerebras.ai/models/overview: gpt-oss-120b, about 3,000; October 2026",
    ),
    Speed(
        re.compile(r"(^|\.)groq\.com$"),
        1000,
        "console.groq.com/docs/models: gpt-oss-20b, 1,000; 2026",
    ),
    Speed(
        re.compile(r"(^|\.)sambanova\.ai$"),
        720,
        "Artificial Analysis, May 2026: 292 to 717 over all models",
    ),
    Speed(
        re.compile(r"(^|\.)fireworks\.ai$"),
        690,
        "Artificial Analysis, 2026: gpt-oss-120b, 683",
    ),
    Speed(
        re.compile(r"(^|\.)baseten\.co$"),
        650,
        "Artificial Analysis, 2026: gpt-oss-120b, about 650",
    ),
)


def tokens_per_second_at(base_url: str | None) -> int:
    """Return the highest output speed of the models at an endpoint, for one choice."""
    host = urlsplit(base_url).hostname or "" if base_url else ""
    speeds = (each.tokens_per_second for each in SPEEDS if each.host.search(host))
    return next(speeds, DEFAULT_TOKENS_PER_SECOND)
