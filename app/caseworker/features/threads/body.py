"""Request schemas for the thread endpoints."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field, StringConstraints, model_validator

from caseworker.nodes.agent.definition import MAX_TOOLS
from caseworker.platform.http.field_types import (
    STORABLE,
    BodyModel,
    Instant,
    QueryModel,
    Reason,
    ZoneName,
)
from caseworker.platform.validation import refusal
from caseworker.runs.http.body import BudgetBody
from caseworker.runs.http.definition_body import AgentOrName, GraphOrName
from caseworker.runs.http.fields import CaseInput, MessageId, RunId, Seed, ThreadId

ThreadIdPath = Annotated[ThreadId, Path(description="ID of the thread.")]
MessageIdPath = Annotated[MessageId, Path(description="ID of the message.")]


class NewThreadBody(BodyModel):
    """A thread to create, in which either an agent or a graph answers."""

    thread_id: ThreadId | None = None
    """ID of the thread; defaults to a generated UUIDv7."""
    agent: AgentOrName | None = None
    """An agent included in the request, or a reference to a registered one."""
    graph: GraphOrName | None = None
    """A graph included in the request, or a reference to a registered one. It starts at its
    ``chat_start`` steps, if it has any and defines no entry."""
    inputs: dict[str, Any] | None = None
    """Values for the variables that the agent declares, or further inputs of the graph."""
    tools: Annotated[list[str | dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    """Tools that the user brings, in the format of an agent's tools. They are offered to the
    graph's entry agents if its chat starts permit it."""
    title: Annotated[str, StringConstraints(max_length=200), STORABLE] | None = None
    metadata: dict[str, Any] | None = None
    """JSON object that is returned with the thread and not interpreted by the service."""

    @model_validator(mode="after")
    def _has_one(self) -> "NewThreadBody":
        if (self.agent is None) == (self.graph is None):
            raise refusal("Send either an agent or a graph.")
        return self


class GoOnBody(BodyModel):
    """Options for continuing an answer."""

    run_id: RunId | None = None
    """ID of the run that creates the answer; defaults to a generated one. Sending the same ID again
    creates no second run."""
    budget: BudgetBody | None = None
    """Limits for the run that creates the answer."""
    deadline: Instant | None = None
    """Time at which the run is halted if it has not ended."""
    metadata: dict[str, Any] | None = None
    """JSON object that is returned with the run and not interpreted by the service."""


class AnswerBody(GoOnBody):
    """Options for answering a message."""

    agent: AgentOrName | None = None
    """Agent that answers this message instead of the thread's own agent or graph."""
    graph: GraphOrName | None = None
    """Graph that answers this message instead of the thread's own agent or graph."""
    inputs: dict[str, Any] | None = None
    """Inputs that replace those of the thread for this answer."""
    seed: Seed | None = None
    """Seed that makes sampling reproducible where the provider supports it."""
    timezone: ZoneName | None = None
    """Time zone that defines "today"; defaults to the configured one."""

    @model_validator(mode="after")
    def _has_at_most_one(self) -> "AnswerBody":
        if self.agent is not None and self.graph is not None:
            raise refusal("Send either an agent or a graph, not both.")
        return self


class EditBody(AnswerBody):
    """A user message that replaces another one."""

    content: CaseInput
    """Text of the user's message."""


class MessageBody(EditBody):
    """A user message to send."""

    parent_id: MessageId | None = None
    """ID of the answer that the message follows; defaults to the newest answer."""


class CancelThreadBody(BodyModel):
    """Options for cancelling the answers of a thread."""

    reason: Reason | None = None
    """Reason for cancelling the answers, shown in the receipts and in the traces."""


class MessagesQuery(QueryModel):
    """Query parameters that select messages of a thread."""

    leaf: MessageId | None = None
    """ID of a message in the branch to return. The branch continues to the newest message after it.
    Defaults to the branch of the newest message of the thread."""
    tree: bool = False
    """Whether to return all messages of the thread in chronological order, without contents."""
