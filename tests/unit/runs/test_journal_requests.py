"""The request of a call is stored once, with the call."""

import pytest

from caseworker.runs.ports import Permission
from tests.support.runs import run_story
from tests.unit.runs.opened import Open, Store


def test_a_request_is_stored_with_its_call_and_not_again() -> None:
    """Later writes of the call leave it out."""

    async def story() -> None:
        run = Open()
        node = run.begin("ask")
        run.journal.note_request(node, {"messages": ["Why?"]})
        await run.journal.barrier(external=True)
        run.end(node, "ask")
        await run.journal.barrier(external=True)

        first, second = (write.calls[-1] for write in run.store.writes)
        assert first.request == {"messages": ["Why?"]}
        assert (second.node["status"], second.request) == ("success", None)

    run_story(story, after_seconds=10)


@pytest.mark.parametrize("lost", [ConnectionError(), Permission(owned=False, cancel_request=None)])
def test_a_request_whose_write_was_lost_is_written_again(
    lost: Permission | BaseException,
) -> None:
    """The write may or may not have reached the database."""

    async def story() -> None:
        run = Open(Store(answers=[lost]))
        node = run.begin("ask")
        run.journal.note_request(node, {"messages": ["Why?"]})
        with pytest.raises(BaseException):  # noqa: B017, PT011
            await run.journal.barrier(external=True)

        (record,) = [each for each in run.journal.close() if each.node_id == node]
        assert record.request == {"messages": ["Why?"]}

    run_story(story, after_seconds=10)
