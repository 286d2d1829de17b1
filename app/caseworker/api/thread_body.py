"""What a caller may send about threads."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field, StringConstraints, model_validator

from caseworker.api.definition_body import AgentOrName, GraphOrName
from caseworker.api.field_types import (
    STORABLE,
    Body,
    CaseInput,
    Instant,
    MessageId,
    Query,
    Reason,
    RunId,
    Seed,
    ThreadId,
    ZoneName,
)
from caseworker.api.run_body import BudgetBody
from caseworker.nodes.agent.definition import MAX_TOOLS
from caseworker.nodes.reading import refusal

ThreadIdPath = Annotated[ThreadId, Path(description="ID of the thread.")]
MessageIdPath = Annotated[MessageId, Path(description="ID of the message.")]


class NewThreadBody(Body):
    """A thread to begin; either an agent or a graph answers in it."""

    thread_id: ThreadId | None = None
    """Names the thread; left out, the service makes a UUIDv7."""
    agent: AgentOrName | None = None
    """The agent itself, or the name of a registered one."""
    graph: GraphOrName | None = None
    """The graph itself, or the name of a registered one; it begins at its steps of type
    ``chat_start``, if it has any and names no entry."""
    inputs: dict[str, Any] | None = None
    """The values of the variables that the agent declares, or further inputs of the graph."""
    tools: Annotated[list[str | dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    """What the user brings along, named as the tools of an agent are. It is offered to the entry
    agents of the graph, where its chat starts let it through."""
    title: Annotated[str, StringConstraints(max_length=200), STORABLE] | None = None
    metadata: dict[str, Any] | None = None
    """Comes back with the thread and means nothing to the service."""

    @model_validator(mode="after")
    def _has_one(self) -> "NewThreadBody":
        if (self.agent is None) == (self.graph is None):
            raise refusal("Send either an agent or a graph.")
        return self


class GoOnBody(Body):
    """How an answer is to go on."""

    run_id: RunId | None = None
    """Names the run that makes the answer; left out, the service makes an id. Repeating an id
    repeats nothing."""
    budget: BudgetBody | None = None
    """What the run may spend."""
    deadline: Instant | None = None
    """When the run is halted at the latest."""
    metadata: dict[str, Any] | None = None
    """Comes back with the run."""


class AnswerBody(GoOnBody):
    """How a message is to be answered."""

    agent: AgentOrName | None = None
    """Answers this once in place of what the thread was begun with."""
    graph: GraphOrName | None = None
    """Likewise."""
    inputs: dict[str, Any] | None = None
    """In place of those of the thread."""
    seed: Seed | None = None
    """Makes sampling repeatable where the provider supports it."""
    timezone: ZoneName | None = None
    """Where "today" begins; left out, as configured."""

    @model_validator(mode="after")
    def _has_at_most_one(self) -> "AnswerBody":
        if self.agent is not None and self.graph is not None:
            raise refusal("Send either an agent or a graph, not both.")
        return self


class EditBody(AnswerBody):
    """What the user says instead."""

    content: CaseInput
    """Text."""


class MessageBody(EditBody):
    """What the user says."""

    parent_id: MessageId | None = None
    """The answer that it follows; left out, the newest."""


class CancelThreadBody(Body):
    """Why the answers of a thread are cancelled."""

    reason: Reason | None = None
    """Shown in the receipts and in the traces."""


class MessagesQuery(Query):
    """Which messages of a thread to show."""

    leaf: MessageId | None = None
    """A message of the branch to show, which goes on to the newest message behind it; left out,
    the branch of the newest message of all."""
    tree: bool = False
    """Show all messages of the thread in the order in which they came, without contents."""
