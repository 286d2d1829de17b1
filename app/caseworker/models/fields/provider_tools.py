"""Tools that the provider executes within a call: their prices, and the limits of their uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from caseworker.models.fields.table import (
    Part,
    RefusedBodyError,
    Use,
    require_count,
    type_without_date,
)

_USES: Final = "max_uses"
"""Field of a tool that limits its uses, in APIs without a limit for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPrice:
    """Maximum cost of one use of a tool, and the uses that one call may make of it."""

    usd_per_use: Decimal
    tokens_per_use: int
    """Input tokens of one result."""
    max_uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTool:
    """A tool that a body offers, with what its uses in one call may cost at most."""

    name: str
    """Its type without the date, such as ``web_search``."""
    place: str
    """Where it is in the body, such as ``tools[7]``."""
    max_uses: int
    """The provider's own limit: the smaller one of the client's and the configured limit."""
    usd_per_use: Decimal
    tokens_per_use: int


def priced_tools(
    document: Mapping[str, Any],
    parts: Sequence[Part],
    prices: Mapping[str, ToolPrice],
    *,
    alias: str,
    uses_field: str,
) -> Sequence[ProviderTool]:
    """Return the tools in a body that the provider executes.

    ``alias`` is the configured name of the model. ``uses_field`` is the field of the body that
    limits the uses of all tools together; empty if each tool has its own limit.

    Raises:
        RefusedBodyError: a tool has no price, or its limit of uses is not a number.
    """
    priced: list[tuple[Part, str, ToolPrice]] = []
    for part in parts:
        if part.use is Use.PROVIDER_TOOL:
            name = type_without_date(str(part.value.get("type")))
            if name not in prices:
                raise _unpriced(name, part.place, alias)
            priced.append((part, name, prices[name]))
    if not uses_field:
        return [
            _tool(name, part, price, _uses(part.value, _USES, price.max_uses, f"{part.place}."))
            for part, name, price in priced
        ]
    limit = min((price.max_uses for _, _, price in priced), default=0)
    uses = _uses(document, uses_field, limit, "") if priced else 0
    return [_tool(name, part, price, uses) for part, name, price in priced]


def limited_uses(
    document: Mapping[str, Any], tools: Sequence[ProviderTool], *, uses_field: str
) -> Mapping[str, Any]:
    """Return the fields of a body to replace, so that the provider limits the uses of its tools.

    It is empty if the client's own limits are low enough.
    """
    if not tools:
        return {}
    if uses_field:
        limit = tools[0].max_uses
        return {} if document.get(uses_field) == limit else {uses_field: limit}
    limits = {tool.place: {_USES: tool.max_uses} for tool in tools}
    offered = [
        {**each, **limits[place]} if (place := f"tools[{at}]") in limits else each
        for at, each in enumerate(document["tools"])
    ]
    return {} if offered == document["tools"] else {"tools": offered}


def _uses(holder: Mapping[str, Any], field: str, limit: int, place: str) -> int:
    client_limit = holder.get(field)
    if client_limit is None:
        return limit
    require_count(place + field, client_limit)
    return min(int(client_limit), limit)


def _tool(name: str, part: Part, price: ToolPrice, uses: int) -> ProviderTool:
    return ProviderTool(
        name=name,
        place=part.place,
        max_uses=uses,
        usd_per_use=price.usd_per_use,
        tokens_per_use=price.tokens_per_use,
    )


def _unpriced(name: str, place: str, alias: str) -> RefusedBodyError:
    message = (
        f"The field {place}: {name} is not offered: the run limits its cost or its tokens, the"
        f" provider executes this tool, and no price is configured for it. Remove the tool, or"
        f" switch it off in the client. The operator can price it by the setting provider_tools"
        f" of the model {alias}: {{{name}: {{usd_per_use: 0.01, tokens_per_use: 10000,"
        f" max_uses: 5}}}}."
    )
    return RefusedBodyError("unsupported_field", message, place)
