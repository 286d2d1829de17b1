"""Messages of several threads in one table."""

from caseworker.features.threads.postgres.threads import PostgresThreads
from caseworker.features.threads.thread import Role, Thread, ThreadMessage
from caseworker.nodes.nesting import DefinitionKind
from tests.support.stores import Stores
from tests.support.threads import store_messages


async def test_a_thread_has_its_own_messages_alone(stores: Stores) -> None:
    """Messages of other threads and of other tenants are not returned."""
    threads = PostgresThreads(stores.engines)
    for tenant, thread_id in (("a", "one"), ("a", "two"), ("b", "one")):
        made = Thread(tenant=tenant, thread_id=thread_id, kind=DefinitionKind.AGENT, definition={})
        await threads.create(made)
        said = ThreadMessage(
            message_id=f"{tenant}-{thread_id}", parent_id=None, role=Role.USER, content="Hello."
        )
        await store_messages(stores.engines, tenant, thread_id, [said])

    found = [message.message_id for message in await threads.messages("a", "one")]

    assert found == ["a-one"]
