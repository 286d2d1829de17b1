"""Services broken on purpose, to judge the judge: each lacks one term of a maximum or of a charge.

The judge must find every one of them.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, Final
from unittest.mock import patch

import psycopg

import caseworker.gateway.admission as external_gateway
import caseworker.models.lost_usage as settling
import caseworker.models.maximum as maximum
import caseworker.models.model_call as model_call
from caseworker.core.budget.budget import ESTIMATED_OF
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.reservations import Reservation
from caseworker.core.budget.usage import NOTHING
from caseworker.engine.call import FREE
from caseworker.features.external.attempts import Attempts
from caseworker.models.fields.table import Table
from caseworker.models.maximum import Content
from caseworker.models.media import Size
from caseworker.models.model_call import ModelCall
from caseworker.models.ports import SendState
from caseworker.models.relayed_call import RelayedCall

model_gateway: Final = import_module("caseworker.models.gateway")
Broken = Callable[[psycopg.Connection[Any]], AbstractContextManager[object]]
BREAKS: Final[dict[str, Broken]] = {}
"""Context managers that break the service, by the missing rule; they get a connection."""
REVEALED_BY: Final[Mapping[str, set[str]]] = {
    "images by URL": {"image url"},
    "images in the body": {"image data"},
    "documents by URL": {"document url"},
    "documents in the body": {"document data"},
    "choices": {"choices"},
    "the provider's tools": {"search"},
    "cache marks": {"cache 1h"},
    "references": {"several calls"},
    "fees of the provider's tools": {"search"},
    "choices of a lost call": {"choices"},
    "reservations of accounts": {"quota", "several calls"},
    "charges of accounts": {"quota", "several calls"},
    "the period of an account": {"quota", "several calls"},
    "superseded keys": {"attempt", "several calls"},
    "ancestors of a scope": {"child"},
    "refused fields": {"unknown field"},
    "the limit of uses": {"search"},
}
"""Features of a story that reveal a break; none by default."""


def _patched(name: str, owner: Any, attribute: str, value: Any) -> None:
    assert hasattr(owner, attribute), attribute
    BREAKS[name] = lambda _: patch.object(owner, attribute, value)


def _in_content(name: str, **fields: Any) -> None:
    """Leave fields out of the content of a client's body."""
    before = maximum.content_of_body

    def content(*arguments: Any, **options: Any) -> Content:
        return replace(before(*arguments, **options), **fields)

    _patched(name, model_gateway, "content_of_body", content)


def _in_body(name: str, **fields: Any) -> None:
    """Leave fields out of a client's body before its content is read."""
    before = maximum.content_of_body

    def content(body: Any, *others: Any, **options: Any) -> Content:
        changed = {field: change(body) for field, change in fields.items()}
        return before(replace(body, **changed), *others, **options)

    _patched(name, model_gateway, "content_of_body", content)


def _in_media(name: str, function: str, *, named: bool) -> None:
    """Count images or documents as nothing, either named or contained ones."""
    before = getattr(maximum, function)

    def size(value: Any, *others: Any) -> Size | None:
        is_named = str(value).startswith("http")
        found: Size | None = Size(0, 0) if is_named is named else before(value, *others)
        return found

    _patched(name, maximum, function, size)


def _in_usage(name: str, **fields: Any) -> None:
    """Leave fields out of the maximum usage of an attempt."""
    before = Content.usage

    def usage(self: Content, tokens_in: int, tokens_out: int) -> Any:
        return replace(before(self, tokens_in, tokens_out), **fields)

    _patched(name, Content, "usage", usage)


def _in_settling(name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the arguments with which a call without final counts is settled."""
    before = settling.uncounted_usage

    def usage(reserved: Any, state: Any, **options: Any) -> Any:
        return before(reserved, state, **{**options, **change(options)})

    _patched(name, model_call, "uncounted_usage", usage)


def _in_database(name: str, function: str, text: str, replacement: str) -> None:
    """Change a function of the database."""

    @contextmanager
    def broken(connection: psycopg.Connection[Any]) -> Iterator[None]:
        (definition,) = _definition_of(connection, function)
        assert definition.count(text) == 1, function
        changed = definition.replace(text, replacement)
        connection.execute(changed.encode())
        yield
        connection.execute(definition.encode())

    BREAKS[name] = broken


def _definition_of(connection: psycopg.Connection[Any], function: str) -> tuple[str]:
    statement = "SELECT pg_get_functiondef(%s::regproc) AS definition"
    row = connection.execute(statement, (function,)).fetchone()
    assert row is not None
    found: Any = row
    return (found["definition"] if isinstance(found, Mapping) else found[0],)


_in_media("images by URL", "image_size", named=True)
_in_media("images in the body", "image_size", named=False)
_in_media("documents by URL", "document_size", named=True)
_in_media("documents in the body", "document_size", named=False)
_in_content("choices", choices=1)
_in_content("the provider's tools", tools=())
_in_content("cache marks", cache_seconds=0)
_in_content("tools in a prompt", has_tools=False)
_in_body("references", references=lambda body: dict.fromkeys(body.references, 0))
_in_usage("fees of the provider's tools", provider_tool_uses={})
_in_settling("the output speed", lambda _: {"tokens_per_second": 0.0})
_in_settling("choices of a lost call", lambda _: {"choices": 1})
_in_database(
    "reservations of accounts",
    "caseworker_reserve",
    "used + reserved + requested",
    "used + requested",
)
_in_database(
    "charges of accounts",
    "caseworker_settle",
    "a.used_cost_usd + t.used_cost_usd",
    "a.used_cost_usd",
)
_in_database(
    "the period of an account",
    "caseworker_reserve",
    "SELECT sum(used_cost_usd)",
    "SELECT coalesce(sum(used_cost_usd) FILTER (WHERE a.period > since), 0)",
)


def _half_of_text(self: Content) -> int:
    return self._input_tokens(self.near_text_tokens // 2, 0, self.media.hard)


_patched("the hard bound", Content, "hard_tokens", property(_half_of_text))
_patched("silent seconds", SendState, "silent_seconds", property(lambda _: 0.0))
_patched("received tokens", settling, "_tokens", lambda *_: 0)
_patched("lost calls", ModelCall, "lost", lambda _: FREE)
_patched("impossible counts", model_call, "is_possible", lambda *_: True)
_patched("the lowered limit", RelayedCall, "_fitted", lambda self: self.body)
_patched("ancestors of a scope", Scope, "lineage", lambda self: (self,))


async def _use(self: Attempts, key: Any, start: Any) -> None:
    if key.state.attempt > self.current:
        start(key.state.attempt, first_use=True)


_patched("superseded keys", Attempts, "use", _use)

_read = Table.read


def _read_all(self: Table, document: Any, *, limits_spending: bool, free_fields: Any = ()) -> Any:
    return _read(self, document, limits_spending=False, free_fields=free_fields)


_patched("refused fields", Table, "read", _read_all)


def _note_part(self: SendState, reply: Any, at: float | None = None) -> None:
    self.read_reply = reply
    self._since, self._parts = asyncio.get_running_loop().time(), 1


_patched("the seconds before the first part", SendState, "note_part", _note_part)

_settle = Reservation.settle


def _settle_first(self: Reservation, used: Any = NOTHING) -> None:
    estimated = any(dimension in used for dimension in ESTIMATED_OF.values())
    _settle(self, NOTHING if estimated else used)


_patched("estimates in budgets", Reservation, "settle", _settle_first)

_patched(
    "the limit of uses",
    external_gateway,
    "limited_uses",
    lambda document, tools, **_: {},
)
