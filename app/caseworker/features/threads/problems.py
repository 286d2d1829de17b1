"""Problem types of threads, and the errors that cause them."""

from caseworker.features.threads.thread import (
    AnswerNotEndedError,
    MessageNotFoundError,
    ThreadConflictError,
    ThreadFullError,
    ThreadNotFoundError,
)
from caseworker.platform.http.problems import Errors, ProblemError, ProblemType, Violation

THREAD_NOT_FOUND = ProblemType(
    slug="thread-not-found",
    status=404,
    title="Thread not found",
    detail="No thread has this ID. GET /threads lists all threads.",
)
MESSAGE_NOT_FOUND = ProblemType(
    slug="message-not-found",
    status=404,
    title="Message not found",
    detail=(
        "The thread has no message with this ID. GET /threads/{thread_id}/messages?tree=true "
        "lists all messages."
    ),
)
THREAD_CONFLICT = ProblemType(
    slug="thread-conflict",
    status=409,
    title="Thread ID already used for a different request",
    detail="Use another thread_id, or repeat the original request unchanged.",
)
THREAD_FULL = ProblemType(
    slug="thread-full",
    status=409,
    title="Thread is full",
    detail="Start a new thread.",
)
ANSWER_NOT_ENDED = ProblemType(
    slug="answer-not-ended",
    status=409,
    title="Answer is still in progress",
    detail="Wait until its run ends or cancel the run, then repeat the request.",
)


def _answer_not_ended(error: AnswerNotEndedError) -> ProblemError:
    violation = Violation(error.field, "This message is still being generated.")
    return ProblemError(ANSWER_NOT_ENDED, violations=[violation])


ERRORS: Errors = {
    ThreadNotFoundError: THREAD_NOT_FOUND,
    MessageNotFoundError: MESSAGE_NOT_FOUND,
    ThreadConflictError: THREAD_CONFLICT,
    ThreadFullError: THREAD_FULL,
    AnswerNotEndedError: _answer_not_ended,
}
PROBLEMS = (ANSWER_NOT_ENDED,)
