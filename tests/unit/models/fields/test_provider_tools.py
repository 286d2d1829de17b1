"""Tools that the provider executes get a price and a limit of uses, or are refused."""

from decimal import Decimal
from typing import Any

import pytest

from caseworker.models.fields.provider_tools import (
    ProviderTool,
    ToolPrice,
    limited_uses,
    priced_tools,
)
from caseworker.models.fields.table import RefusedBodyError
from caseworker.models.fields.tables import TABLES

PRICES = {
    "web_search": ToolPrice(usd_per_use=Decimal("0.01"), tokens_per_use=10_000, max_uses=5),
    "web_fetch": ToolPrice(usd_per_use=Decimal(0), tokens_per_use=20_000, max_uses=2),
    "file_search": ToolPrice(usd_per_use=Decimal("0.0025"), tokens_per_use=16_000, max_uses=3),
}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
USES_FIELDS = {"responses": "max_tool_calls", "messages": ""}


def priced(body: dict[str, Any], dialect: str) -> tuple[list[ProviderTool], dict[str, Any]]:
    """Return the tools of a body, and the fields to replace in it."""
    parts = TABLES[dialect].read(body, limits_spending=True)
    uses_field = USES_FIELDS[dialect]
    tools = priced_tools(body, parts, PRICES, alias="big", uses_field=uses_field)
    return list(tools), dict(limited_uses(body, tools, uses_field=uses_field))


@pytest.mark.req("cw/3.provider-tools")
@pytest.mark.parametrize(("given", "uses"), [(None, 5), (3, 3), (90, 5), (0, 0)])
def test_a_tool_of_messages_gets_the_smaller_limit_of_uses(given: int | None, uses: int) -> None:
    """The client's limit and the configured one both hold."""
    mine = {"name": "mine", "input_schema": {"type": "object"}}
    search = SEARCH if given is None else {**SEARCH, "max_uses": given}
    body = {"tools": [mine, search]}

    (tool,), changes = priced(body, "messages")

    assert (tool.name, tool.place, tool.max_uses) == ("web_search", "tools[1]", uses)
    assert (tool.usd_per_use, tool.tokens_per_use) == (Decimal("0.01"), 10_000)
    assert {**body, **changes}["tools"] == [mine, {**SEARCH, "max_uses": uses}]
    assert (changes == {}) is (given == uses)


@pytest.mark.req("cw/3.provider-tools")
@pytest.mark.parametrize(("given", "uses"), [(None, 3), (2, 2), (90, 3)])
def test_all_tools_of_a_response_share_one_limit_of_uses(given: int | None, uses: int) -> None:
    """It is the smallest one, so that each tool keeps within its own; later tools count, too."""
    files = {"type": "file_search", "vector_store_ids": ["v1"]}
    body = {
        "tools": [{"type": "web_search"}],
        "input": [{"type": "additional_tools", "tools": [files]}],
        "max_tool_calls": given,
    }

    tools, changes = priced(body, "responses")

    assert {tool.place: (tool.name, tool.max_uses) for tool in tools} == {
        "tools[0]": ("web_search", uses),
        "input[0].tools[0]": ("file_search", uses),
    }
    assert changes == ({} if given == uses else {"max_tool_calls": uses})


def test_several_tools_of_messages_have_their_own_limits() -> None:
    """Each tool has a field for it."""
    body = {"tools": [SEARCH, {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 1}]}

    tools, changes = priced(body, "messages")

    assert [tool.max_uses for tool in tools] == [5, 1]
    assert [tool["max_uses"] for tool in changes["tools"]] == [5, 1]


@pytest.mark.parametrize("dialect", USES_FIELDS)
def test_a_body_without_such_tools_stays_as_it_is(dialect: str) -> None:
    """A limit of the client without a tool is passed on."""
    tool = {"type": "custom", "name": "mine"}
    assert priced({"tools": [tool], "max_tool_calls": 900}, "responses") == ([], {})
    assert priced({"tools": [tool]}, dialect) == ([], {})
    local = {"type": "shell", "environment": {"type": "local", "skills": []}}
    assert priced({"tools": [local]}, "responses") == ([], {})
    search = {"type": "tool_search", "execution": "client"}
    assert priced({"tools": [search]}, "responses") == ([], {})


@pytest.mark.req("cw/3.provider-tools")
@pytest.mark.parametrize(
    ("dialect", "tool", "name"),
    [
        ("responses", {"type": "mcp", "server_label": "a", "server_url": "x"}, "mcp"),
        (
            "responses",
            {"type": "code_interpreter", "container": {"type": "auto"}},
            "code_interpreter",
        ),
        ("responses", {"type": "shell", "environment": {"type": "container_auto"}}, "shell"),
        ("responses", {"type": "shell"}, "shell"),
        ("responses", {"type": "tool_search"}, "tool_search"),
        ("responses", {"type": "web_search_preview_2025_03_11"}, "web_search_preview"),
    ],
)
def test_a_tool_without_a_price_is_refused_by_its_name_and_place(
    dialect: str, tool: dict[str, Any], name: str
) -> None:
    """The message names the setting that prices it, and the model."""
    body = {"tools": [{"type": "function", "name": "mine"}, tool]}
    with pytest.raises(RefusedBodyError) as refused:
        priced(body, dialect)

    assert refused.value.field == "tools[1]"
    for words in (f"tools[1]: {name}", "provider_tools of the model big", f"{{{name}: {{usd_per"):
        assert words in str(refused.value)


@pytest.mark.parametrize("limit", ["3", -1, 2.5, True, [3]])
def test_a_limit_of_uses_must_be_a_number(limit: Any) -> None:
    """Otherwise the provider might read another one."""
    with pytest.raises(RefusedBodyError, match=r"tools\[0\].max_uses must be a whole number"):
        priced({"tools": [{**SEARCH, "max_uses": limit}]}, "messages")
    with pytest.raises(RefusedBodyError, match="max_tool_calls must be a whole number"):
        priced({"tools": [{"type": "web_search"}], "max_tool_calls": limit}, "responses")
