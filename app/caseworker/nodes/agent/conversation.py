"""An agent's messages: the full history, and the window that is sent to the model.

A message with tool calls and the messages with their results are kept or dropped together. The
system messages and the first user message, which states the task, are always sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.models.message_log import MessageLog, PromptMemory
from caseworker.models.ports import Message, ToolDefinition
from caseworker.models.pricing import json_text, message_bytes
from caseworker.models.tokens import utf8
from caseworker.nodes.templates import compact

TARGET_SHARE = 0.75
"""Fraction of the token limit that messages may fill after trimming. It is below 1 so that the next
turn does not have to trim again."""


class ConversationTooLongError(Exception):
    """The messages do not fit into the agent's token limit."""

    def __init__(self, tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"The conversation has about {tokens:,} tokens; at most {max_tokens:,} are allowed"
            " (conversation.max_tokens)."
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """The messages to drop so that the remaining ones fit into the token limit."""

    messages_dropped: tuple[Message, ...]
    messages_kept: tuple[Message, ...]
    tokens_before: int
    tokens_after: int


class Conversation:
    """The messages of one agent execution."""

    def __init__(
        self, messages: Iterable[Message] = (), memory: PromptMemory | None = None
    ) -> None:
        """Begin with these messages; ``memory`` is that of :class:`MessageLog`."""
        self.messages: list[Message] = list(messages)
        """The full history."""
        self._window = MessageLog(self.messages, memory)

    @property
    def window(self) -> Sequence[Message]:
        """The messages to send to the model. Each call stores only those added since the last."""
        return self._window

    def add(self, *messages: Message) -> None:
        """Append messages to the history and the window."""
        self.messages += messages
        self._window.add(*messages)

    def cut(self, max_tokens: int, tools: Sequence[ToolDefinition]) -> Cut | None:
        """Return the messages to drop so that the remaining ones fit; None if all messages fit.

        Raises:
            ConversationTooLongError: the messages that must always be sent do not fit either.
        """
        sizes = [_tokens(message) for message in self._window]
        before = _tokens(tools=tools) + sum(sizes)
        if before <= max_tokens:
            return None
        head = self._head()
        starts = [at for at in range(head, len(self._window)) if self._window[at].role != "tool"]
        tokens_left, target = before, max_tokens * TARGET_SHARE
        for at, start in enumerate(starts):
            last = at + 1 == len(starts)
            if tokens_left <= target or (last and tokens_left <= max_tokens):
                messages_kept = (*self._window[:head], *self._window[start:])
                return Cut(tuple(self._window[head:start]), messages_kept, before, tokens_left)
            end = len(self._window) if last else starts[at + 1]
            tokens_left -= sum(sizes[start:end])
        raise ConversationTooLongError(before, max_tokens)

    def replace(self, cut: Cut, summary: Message | None = None) -> None:
        """Drop the given messages from the window and insert the summary in their place, if any."""
        head = self._head()
        between = () if summary is None else (summary,)
        self._window = MessageLog([*cut.messages_kept[:head], *between, *cut.messages_kept[head:]])

    def _head(self) -> int:
        """Return the number of messages at the start that are always sent."""
        roles = [message.role for message in self._window]
        systems = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
        return systems + (roles[systems : systems + 1] == ["user"])

    def convert_calls_to_text(self) -> None:
        """Send tool calls as plain text from now on; used for an agent without tools."""
        if any(message.tool_calls for message in self._window):
            self._window = MessageLog(plain_messages(self._window))

    def plain(self) -> list[Message]:
        """Return the window with tool calls converted to text, for a request without tools."""
        return list(plain_messages(self._window))

    def as_result(
        self, max_bytes: int, *, with_references: bool = False, only_new: bool = False
    ) -> dict[str, Any]:
        """Return the newest messages that fit into ``max_bytes`` as JSON.

        The result also contains the number of omitted messages. If ``with_references``, messages
        that a journaled call produced are replaced by a reference to the call. If ``only_new``, the
        messages of a thread before the question are omitted, because the thread stores them.
        """
        entries: list[dict[str, Any]] = []
        bytes_left = max_bytes
        for message in reversed(self.messages[self._before_question if only_new else 0 :]):
            one = message_json(message)
            bytes_left -= len(compact(one).encode("utf-8", "surrogatepass")) + 1
            if bytes_left < 0:
                break
            entries.append((message.reference if with_references else None) or one)
        omitted = len(self.messages) - len(entries)
        return {"messages": entries[::-1]} | ({"messages_left_out": omitted} if omitted else {})

    @property
    def _before_question(self) -> int:
        """Number of messages before the question from a thread; 0 without a thread."""
        of_thread = [at for at, one in enumerate(self.messages) if one.branch_index is not None]
        if not of_thread:
            return 0
        last = of_thread[-1]
        return last if self.messages[last].role == "user" else last + 1


def plain_messages(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages with tool calls and results converted to plain text."""
    for message in messages:
        if message.role == "tool":
            text = f"Result of {message.tool_name}: {message.content}"
            yield Message(role="user", content=text)
        elif message.tool_calls:
            calls = (f"I call {call.name} with {call.arguments}" for call in message.tool_calls)
            text = "\n".join([*filter(None, (message.content,)), *calls])
            yield Message(role="assistant", content=text)
        else:
            yield message


def message_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON in the format of agent results."""
    fields = {"role": message.role, "content": message.content, **message.extras()}
    fields.pop("provider_state", None)  # only its provider can use it
    return fields


def _tokens(*messages: Message, tools: Sequence[ToolDefinition] = ()) -> int:
    """Estimate the tokens of messages and tools: one for three bytes, and eight for each of them.

    This only decides when to shorten a conversation; a call reserves more.
    """
    size_bytes = sum(map(message_bytes, messages)) + sum(tool.form(_tool_bytes) for tool in tools)
    return size_bytes // 3 + 8 * (len(messages) + len(tools) + 1)


def _tool_bytes(tool: ToolDefinition) -> int:
    return len(utf8(json_text(tool.to_json())))
