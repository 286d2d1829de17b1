"""Branches that a process remembers, so that a turn of a long chat does not read all messages.

A remembered branch belongs to a thread with a number of erasures. Texts of messages change only by
erasures, so the branch is current as long as the thread still has that number. The statement that
stores the next run checks it once more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import takewhile
from typing import Final

from cachetools import LRUCache

from caseworker.features.threads.answers import StoredAnswer
from caseworker.features.threads.thread import Thread
from caseworker.models.message_log import PromptMemory
from caseworker.models.ports import Message
from caseworker.nodes.chat import ChatInput

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum estimated size, in bytes, of all branches that a process remembers, at four bytes a
character."""
BYTES_OF_MESSAGE: Final = 512
"""Estimated size of a message without its text, in bytes."""


@dataclass(frozen=True, slots=True)
class ThreadVersion:
    """Version of a thread: remembered texts of messages are valid as long as it is unchanged."""

    created_at: datetime | None
    """Distinguishes threads that had the same ID one after the other."""
    erasures: int
    """Number of erasures in the thread so far."""


@dataclass(frozen=True, slots=True)
class KnownBranch:
    """The messages that the answer to a message receives."""

    state: ThreadVersion
    leaf: str | None
    """ID of the message that is answered; None before the first message of a thread."""
    messages: tuple[Message, ...] = ()
    without: tuple[str, ...] = ()
    """IDs of the answers in the branch that had no text yet."""
    size_bytes: int = 0
    thread: Thread | None = None
    """The thread; None if it was not read with the branch."""
    thread_bytes: int = 0
    """Estimated size of the thread in bytes."""
    answer_id: str | None = None
    """ID of the message that answered the leaf; None if it is unknown."""
    answer: StoredAnswer | None = None
    memory: PromptMemory = field(default_factory=PromptMemory)
    """The prompt of the run that answers the leaf, hashed and measured."""

    @property
    def is_plain(self) -> bool:
        """Whether no answer in the branch called tools.

        Otherwise the history must be read again: it contains only the newest tool calls.
        """
        return not any(one.role == "tool" or one.tool_calls for one in self.messages)

    def followed_by(self, answer: StoredAnswer | None, question: str) -> Sequence[Message] | None:
        """Return the messages for the next question; None if they must be read.

        ``answer`` is the answer to the leaf; None before the first message.
        """
        if not self.is_plain:
            return None
        text = None
        if answer is not None:
            if answer.calls is None or answer.calls:
                return None
            text = answer.content
        new = [] if not text else [Message(role="assistant", content=text)]
        return [*self.messages, *new, Message(role="user", content=question)]


class BranchMemory:
    """Remembers one branch of each of the threads that were used last."""

    def __init__(self) -> None:
        self._branches = LRUCache[tuple[str, str], KnownBranch](MAX_BYTES, getsizeof=_size_of)

    def branch(
        self, tenant: str, thread_id: str, state: ThreadVersion, leaf: str | None
    ) -> KnownBranch | None:
        """Return the remembered branch to a leaf; None if it is unknown or out of date."""
        branch = self._branches.get((tenant, thread_id))
        if branch is None or (branch.state, branch.leaf) != (state, leaf):
            return None
        return branch

    def answered(self, tenant: str, thread_id: str) -> KnownBranch | None:
        """Return the remembered branch of a thread, if its answer is known; maybe out of date."""
        branch = self._branches.get((tenant, thread_id))
        if branch is None or branch.thread is None or branch.answer is None:
            return None
        return branch

    def prompt_memory(self, tenant: str, thread_id: str, state: ThreadVersion) -> PromptMemory:
        """Return the memory of the last prompt in a thread, or an empty one."""
        branch = self._branches.get((tenant, thread_id))
        return PromptMemory() if branch is None or branch.state != state else branch.memory

    def remember(
        self, tenant: str, chat: ChatInput, state: ThreadVersion, thread: Thread | None = None
    ) -> None:
        """Remember the messages of a chat with a leaf."""
        before, thread_bytes = self._branches.get((tenant, chat.thread_id)), 0
        if thread is not None:
            is_same = before is not None and before.thread is thread
            thread_bytes = before.thread_bytes if before and is_same else 4 * len(repr(thread))
        branch = KnownBranch(
            state=state,
            leaf=chat.leaf,
            messages=chat.messages,
            without=chat.without,
            size_bytes=thread_bytes + _bytes_of(chat.messages),
            thread=thread,
            thread_bytes=thread_bytes,
            memory=chat.memory,
        )
        self._keep((tenant, chat.thread_id), branch)

    def note_answer(
        self, thread: Thread, leaf: str | None, message_id: str, answer: StoredAnswer
    ) -> None:
        """Remember the answer to a leaf, if it is that of the remembered branch."""
        key = thread.tenant, thread.thread_id
        branch = self._branches.get(key)
        if branch is not None and branch.thread is not None and branch.leaf == leaf:
            self._keep(key, replace(branch, answer_id=message_id, answer=answer))

    def forget_answer(self, thread: Thread) -> None:
        """Forget the answer of the remembered branch, because another message has followed it."""
        key = thread.tenant, thread.thread_id
        if (branch := self._branches.get(key)) is not None:
            self._keep(key, replace(branch, answer_id=None, answer=None))

    def _keep(self, key: tuple[str, str], branch: KnownBranch) -> None:
        if _size_of(branch) < MAX_BYTES:  # it grows by the prompt of the run that answers
            self._branches[key] = branch
        else:
            self._branches.pop(key, None)


def _size_of(branch: KnownBranch) -> int:
    """Return the estimated size, in bytes, of a branch and of the prompt before its messages."""
    prompt = branch.memory.prompt
    beginning = () if prompt is None else takewhile(_is_of_no_branch, prompt.messages)
    return branch.size_bytes + _bytes_of(beginning)


def _is_of_no_branch(message: Message) -> bool:
    return message.branch_index is None


def _bytes_of(messages: Iterable[Message]) -> int:
    return sum(BYTES_OF_MESSAGE + 4 * len(one.content) for one in messages)


def numbered(history: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages with their positions in the branch."""
    return tuple(
        message if message.branch_index == at else replace(message, branch_index=at)
        for at, message in enumerate(history)
    )
