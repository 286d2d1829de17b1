"""Branches that a process remembers."""

import random

from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.history import history_of
from caseworker.features.threads.memory import (
    MAX_BYTES,
    BranchMemory,
    KnownBranch,
    ThreadVersion,
    numbered,
)
from caseworker.features.threads.thread import Role, Thread, ThreadMessage
from caseworker.models.message_log import MessageLog
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import RunStatus

STATE = ThreadVersion(None, 0)
QUESTION = numbered([Message(role="user", content="Hello")])
THREAD = Thread(tenant="t", thread_id="c", kind=DefinitionKind.AGENT, definition={})


def test_a_remembered_branch_grows_to_the_history_that_would_be_read() -> None:
    """Answers without text are left out, whatever their status is."""
    chance = random.Random(1)
    for _ in range(50):
        messages, answers = list[ThreadMessage](), dict[str, StoredAnswer]()
        branch, answer = KnownBranch(STATE, None), None
        for number in range(chance.randint(1, 12)):
            question = f"Q{number}"
            messages.append(
                ThreadMessage(
                    message_id=f"u{number}", parent_id=None, role=Role.USER, content=question
                )
            )
            history = numbered(branch.followed_by(answer, question) or ())
            branch = KnownBranch(STATE, f"u{number}", history)
            expected = numbered(history_of(messages, answers))
            status = chance.choice([RunStatus.COMPLETED, RunStatus.CANCELLED])
            answer = StoredAnswer(status=status, content=chance.choice([f"A{number}", "", None]))
            answers[f"a{number}"] = answer
            messages.append(
                ThreadMessage(
                    message_id=f"a{number}",
                    parent_id=None,
                    role=Role.ASSISTANT,
                    content=answer.content,
                    status=status,
                )
            )

            assert history == expected
            assert [one.branch_index for one in history] == list(range(len(history)))


def test_a_branch_is_read_again_if_an_answer_called_tools() -> None:
    """Only the calls of the newest answers belong to the history, so it does not simply grow."""
    calls = {"messages": [{"role": "tool", "tool_call_id": "1", "content": "42"}]}
    called = StoredAnswer(status=RunStatus.COMPLETED, content="42", calls=calls["messages"])
    too_long = StoredAnswer(status=RunStatus.COMPLETED, content="42", calls=None)
    tool = Message(role="tool", content="42", tool_call_id="1")

    for branch, answer in (
        (KnownBranch(STATE, "u"), called),
        (KnownBranch(STATE, "u"), too_long),
        (KnownBranch(STATE, "u", (tool,)), None),
    ):
        assert branch.followed_by(answer, "And?") is None


def test_a_branch_is_remembered_for_one_state_and_one_leaf() -> None:
    """An erasure, a thread with the same ID and another branch are different."""
    memory = BranchMemory()
    messages = (Message(role="user", content="Hello"),)
    memory.remember("t", ChatInput(thread_id="c", messages=messages, leaf="u"), STATE)

    remembered = memory.branch("t", "c", STATE, "u")
    assert remembered is not None
    assert remembered.messages == messages
    assert memory.branch("t", "c", ThreadVersion(None, 1), "u") is None
    assert memory.branch("t", "c", STATE, "other") is None
    assert memory.branch("other", "c", STATE, "u") is None


def test_the_memory_is_bounded_by_the_size_of_the_texts() -> None:
    """The branches that were used last stay."""
    memory = BranchMemory()
    messages = (Message(role="user", content="x" * 2_000_000),)
    for number in range(20):
        chat = ChatInput(thread_id=f"c{number}", messages=messages, leaf="u")
        memory.remember("t", chat, STATE)

    present = [n for n in range(20) if memory.branch("t", f"c{n}", STATE, "u") is not None]
    assert present == list(range(12, 20))


def test_the_prompt_of_a_branch_is_remembered_until_a_text_is_erased() -> None:
    """The next run in the thread continues it."""
    memory, chat = BranchMemory(), ChatInput(thread_id="c", messages=QUESTION, leaf="u")
    memory.remember("t", chat, STATE)

    assert memory.prompt_memory("t", "c", STATE) is chat.memory
    assert memory.prompt_memory("t", "c", ThreadVersion(None, 1)) is not chat.memory
    assert memory.prompt_memory("t", "other", STATE) is not chat.memory


def test_a_branch_with_a_prompt_that_is_too_long_is_forgotten() -> None:
    """The text before the messages of the branch counts, too."""
    memory, chat = BranchMemory(), ChatInput(thread_id="c", messages=QUESTION, leaf="u")
    memory.remember("t", chat, STATE, THREAD)
    answer = StoredAnswer(status=RunStatus.COMPLETED, content="Hi")
    for length, is_known in ((1000, True), (MAX_BYTES // 4, False)):
        log = MessageLog([Message(role="system", content="x" * length), *QUESTION], chat.memory)
        log.hashed("", len(log))
        log.note_stored("turn/1", len(log), {})
        memory.note_answer(THREAD, "u", "a", answer)

        assert (memory.answered("t", "c") is not None) is is_known
