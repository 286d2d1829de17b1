"""All APIs that the gateway offers, and the parts that are the same for a request of any of them.

A server may offer several APIs at one base URL, so the headers and the objects of all are known.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.dialects.embeddings import EMBEDDINGS
from caseworker.gateway.dialects.messages import MESSAGES
from caseworker.gateway.dialects.responses import RESPONSES

DIALECTS: Final = (CHAT_COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES)
PASSED_ON: Final = frozenset({"accept", "user-agent"}).union(*(each.passed_on for each in DIALECTS))
"""Headers of a client that the provider receives; the content type is always JSON."""
_PARTS: Final = ("response", "message", "delta", "content_block")


def objects_in(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the IDs of the objects at the provider that a document of a reply names.

    Fields that the model writes, and fields that repeat the request, are not read: a client could
    name the objects of other tenants there.
    """
    for part in (document, *(document.get(name) for name in _PARTS)):
        if isinstance(part, dict):
            for dialect in DIALECTS:
                yield from dialect.objects_in(part)
