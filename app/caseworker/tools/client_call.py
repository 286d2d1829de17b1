"""Calls of tools that the client of a run executes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from caseworker.core.budget.ledger import FreeAmounts
from caseworker.core.budget.retry import ONE_ATTEMPT, RetryPolicy
from caseworker.engine.call import FREE, AttemptError, Call, Reply, Spent
from caseworker.engine.context import FlowContext
from caseworker.engine.waiting_calls import (
    ERROR,
    NOT_ANSWERED,
    OUTPUT,
    Question,
    Verdict,
    WaitingCall,
    WaitingCalls,
)


@dataclass(kw_only=True, eq=False)
class ClientCall(Call):
    """A call of a tool that the client of the run executes.

    It is charged once, before the client sees it, however often the run is suspended or resumed.
    """

    is_charged_first: ClassVar[bool] = True
    kind: Literal["llm", "tool", "system"] = "tool"
    retry: RetryPolicy = ONE_ATTEMPT
    context: FlowContext
    question: Question
    call_id: str

    def maximum(self, free: FreeAmounts) -> Spent:
        """Return no usage: the call uses no tokens."""
        return FREE

    async def send(self, attempt: int) -> Reply:
        """Wait for the client's answer.

        Raises:
            AttemptError: the client sent an error, or no answer in time.
        """
        calls = self.context.service(WaitingCalls)
        call = WaitingCall(
            call_id=self.call_id,
            node_id=self.node_id,
            call_key=self.key.text,
            question=self.question,
        )
        decision = await calls.of_client(self.context, self.key, call)
        answer = decision.arguments or {}
        if decision.verdict is Verdict.TIMED_OUT:
            message = f"The client did not answer within {self.question.timeout_seconds:g} seconds."
            raise AttemptError(message, error_class=NOT_ANSWERED, retryable=False)
        if OUTPUT in answer:
            return Reply({OUTPUT: answer[OUTPUT]})
        error = answer.get(ERROR) or {"class": "no_output", "message": "There is no output."}
        raise AttemptError(error["message"], error_class=error["class"], retryable=False)
