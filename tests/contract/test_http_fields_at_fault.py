"""Errors of bodies and queries name the field at fault, in words that fit it."""

from typing import Any

import pytest

from tests.support.api import Api, client_of
from tests.support.graph_requests import fields

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("path", "body", "field", "said"),
    [
        ("/threads", {"agent": {"name": "a", "prompt": {}}, "tools": ["nope"]}, "tools.0", "nope"),
        ("/threads", {"thread_id": "a b"}, "thread_id", "A thread ID has"),
        ("/threads/t/messages", {"content": "?", "parent_id": "a b"}, "parent_id", "A message ID"),
        ("/threads/t/messages/a%20b/edit", {"content": "?"}, "message_id", "A message ID has"),
        ("/threads/a%20b/cancel", {}, "thread_id", "A thread ID has"),
        ("/runs/cancel", {"metadata.zz": "1"}, "metadata.zz", "Unknown field"),
        ("/runs/cancel", {}, "", "at least one filter that selects the runs"),
        ("/runs/cancel", {"reason": "?"}, "", "at least one filter that selects the runs"),
    ],
)
async def test_the_field_at_fault_is_named(
    api: Api, path: str, body: dict[str, Any], field: str, said: str
) -> None:
    """The message fits the type of the field."""
    async with client_of(api.app()) as client:
        answer = await client.post(path, json=body)

    assert field in fields(answer)
    found = {one["field"]: one["message"] for one in answer.json()["errors"]}
    assert said in found[field]


async def test_a_leaf_is_the_id_of_a_message(api: Api) -> None:
    """The error states the format of a message ID."""
    async with client_of(api.app()) as client:
        answer = await client.get("/threads/t/messages?leaf=a%20b")

    assert answer.json()["errors"][0]["message"].startswith("A message ID has")
