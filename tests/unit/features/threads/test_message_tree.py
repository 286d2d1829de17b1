"""Branches of random trees of messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.features.threads.thread import (
    MessageNotFoundError,
    MessageTree,
    Role,
    ThreadMessage,
)


@st.composite
def trees(draw: st.DrawFn) -> MessageTree:
    """Draw messages in creation order, each with an earlier parent or none."""
    count = draw(st.integers(0, 30))
    messages: list[ThreadMessage] = []
    for number in range(count):
        parent = draw(st.sampled_from([None, *messages])) if messages else None
        role = Role.ASSISTANT if parent and draw(st.booleans()) else Role.USER
        parent_id = parent.message_id if parent else None
        messages.append(ThreadMessage(message_id=f"m{number}", parent_id=parent_id, role=role))
    return MessageTree(messages)


@pytest.mark.req("004/chat")
@given(trees(), st.data())
def test_a_branch_leads_from_a_first_message_through_the_one_asked_for(
    tree: MessageTree, data: st.DataObject
) -> None:
    """A branch runs from a first message through the requested one to the newest leaf."""
    asked = data.draw(st.sampled_from([None, *tree.messages]))
    branch = tree.branch_through(asked.message_id if asked else None)

    if not tree.messages:
        assert branch == []
        return
    ids = [message.message_id for message in branch]
    assert [message.parent_id for message in branch] == [None, *ids[:-1]]
    assert all(message.parent_id != ids[-1] for message in tree.messages)
    if asked is None:
        assert branch[-1] is tree.messages[-1]
    else:
        place = ids.index(asked.message_id)
        assert tree.branch_to(asked.message_id) == branch[: place + 1]
        for above, below in zip(branch[place:], branch[place + 1 :], strict=False):
            children = [one for one in tree.messages if one.parent_id == above.message_id]
            assert below is children[-1]


@pytest.mark.req("004/chat")
@given(trees())
def test_siblings_share_their_place_and_their_side(tree: MessageTree) -> None:
    """Each message is in exactly one group of siblings, ordered by age."""
    groups = {tuple(tree.siblings(message)) for message in tree.messages}

    assert sorted(one for group in groups for one in group) == sorted(
        message.message_id for message in tree.messages
    )
    order = [message.message_id for message in tree.messages]
    assert all(list(group) == sorted(group, key=order.index) for group in groups)


def test_a_message_that_is_not_there_is_missed() -> None:
    """Requesting an unknown message raises MessageNotFoundError."""
    with pytest.raises(MessageNotFoundError):
        MessageTree([]).branch_through("m")
