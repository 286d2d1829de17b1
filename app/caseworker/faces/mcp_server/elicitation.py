"""Approvals that the user of an MCP client decides in a form (elicitation).

The protocol asks in several rounds, without a connection that stays open: a call returns the forms,
and the client repeats the call with the user's answers and the state that it got. The state is not
trusted. It only names the run, which is read and decided with the permissions of the caller.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from mcp_types.version import is_version_at_least
from pydantic import ValidationError

from caseworker.engine.waiting_calls import Author, Verdict
from caseworker.features.waiting_calls.approvals_http import DecisionBody
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    ApprovalDecidedError,
    Deciding,
    InvalidArgumentsError,
    RunWaitingCalls,
)
from caseworker.platform.caller import KeyScope
from caseworker.platform.http.bodies import MAX_REASON_CHARS
from caseworker.platform.http.problems import Violation, violations_of, violations_text
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.run import RunKey

MAX_ROUNDS: Final = 10
"""Maximum number of rounds of one call; clients of the official SDKs fail after as many."""
MAX_FORMS: Final = 20
"""Maximum number of approvals in one round; a later round has further ones."""
MAX_SHOWN_CHARS: Final = 8_000
"""Maximum number of characters of the arguments that a form shows."""

_FIRST_WITH_ROUNDS: Final = "2026-07-28"
_DECISION, _REASON, _ARGUMENTS = "decision", "reason", "arguments"
_STATE = re.compile(r"([0-9]{1,2})/([A-Za-z0-9._:-]{1,64})", re.ASCII)
_FORM_KEYWORDS: Final = frozenset(
    {"title", "description", "minimum", "maximum", "minLength", "maxLength"}
)
"""Keywords of an argument's schema that forms have, too."""
_FORMATS: Final = frozenset({"date", "date-time", "email", "uri"})
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


@dataclass(frozen=True, slots=True)
class Round:
    """The state of a call that the client repeats with the user's answers."""

    number: int
    """Number of rounds so far."""
    run_id: str
    """ID of the run that the first round created. It comes from the client."""

    @classmethod
    def parsed(cls, state: str) -> Self:
        """Return the round that a client sends.

        Raises:
            MCPError: the state is none that the service has sent.
        """
        if (match := _STATE.fullmatch(state)) is None:
            message, data = "Invalid or expired requestState", {"reason": "invalid_request_state"}
            raise MCPError(INVALID_PARAMS, message, data=data)
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.number}/{self.run_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The effect of the answers in one round."""

    is_cancelled: bool = False
    """Whether the user closed a form without a decision."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Reasons why an answer is not valid, by approval ID."""


def can_ask(context: ServerRequestContext[Any, Any]) -> bool:
    """Return whether the client shows forms to its user, and its protocol has rounds."""
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    has_forms = elicitation is not None and (
        elicitation.form is not None or elicitation.url is None
    )
    return has_forms and is_version_at_least(context.protocol_version, _FIRST_WITH_ROUNDS)


async def open_approvals(key: RunKey, request: ApiRequest) -> Sequence[Approval]:
    """Return the open approvals of a run, oldest first."""
    calls = await request.service(RunWaitingCalls).store.calls(key)
    return [each for each in calls if each.open and each.question.author is Author.APPROVER]


def question_of(
    approvals: Sequence[Approval], state: Round, problems: Mapping[str, str]
) -> InputRequiredResult:
    """Return the result that asks the user for a decision on the first approvals."""
    forms = {
        each.approval_id: _form(each, problems.get(each.approval_id))
        for each in approvals[:MAX_FORMS]
    }
    return InputRequiredResult(input_requests=dict(forms), request_state=str(state))


async def decided(key: RunKey, responses: InputResponses, request: ApiRequest) -> Answers:
    """Store the decisions of a user on approvals of a run; ignore answers to other questions.

    Raises:
        ScopeMissingError: the caller may not decide approvals.
        StoreUnavailableError: the database did not answer; the decisions can be sent again.
    """
    request.require(KeyScope.APPROVE)
    calls, by = request.service(RunWaitingCalls), request.caller.name
    problems, is_cancelled = dict[str, str](), False
    for approval in await calls.store.calls(key):
        answer = responses.get(approval.approval_id)
        if approval.question.author is not Author.APPROVER or not isinstance(answer, ElicitResult):
            continue
        if answer.action == "cancel":
            is_cancelled = True
            continue
        try:
            with suppress(ApprovalDecidedError):  # the run shows which decision came first
                await calls.decide(key, _deciding(approval, answer, by))
        except ValidationError as error:
            problems[approval.approval_id] = violations_text(violations_of(error.errors()))
        except InvalidArgumentsError as error:
            violations = [Violation(field, message) for field, message in error.problems]
            problems[approval.approval_id] = violations_text(violations)
    return Answers(is_cancelled=is_cancelled, problems=problems)


def _deciding(approval: Approval, answer: ElicitResult, by: str) -> Deciding:
    """Return the decision that a form holds.

    Raises:
        ValidationError: the form has no valid decision.
    """
    if answer.action == "decline":
        return Deciding(approval_id=approval.approval_id, verdict=Verdict.REFUSED, by=by)
    content = answer.content or {}
    body: dict[str, Any] = {name: content.get(name) for name in (_DECISION, _REASON)}
    if body[_DECISION] == "approve":
        requested = approval.question.arguments
        changes = {
            name: value
            for name in _fields_of(approval)
            if (value := content.get(f"{_ARGUMENTS}.{name}")) is not None
            and value != requested.get(name)
        }
        body[_ARGUMENTS] = {**requested, **changes} if changes else None
    return DecisionBody.model_validate(body).deciding(approval.approval_id, by)


def _form(approval: Approval, problem: str | None) -> ElicitRequest:
    question = approval.question
    decision = {"type": "string", "title": "Decision", "enum": ["approve", "refuse"]}
    reason = {"type": "string", "title": "Reason", "maxLength": MAX_REASON_CHARS}
    arguments = {f"{_ARGUMENTS}.{name}": each for name, each in _fields_of(approval).items()}
    parts = (
        problem and f"The last answer is invalid. {problem}",
        question.message,
        f"{question.subject} of the run {approval.key.run_id}, with the arguments:\n"
        f"{_shortened(approval)}",
    )
    return ElicitRequest(
        params=ElicitRequestFormParams(
            message="\n\n".join(filter(None, parts)),
            requested_schema={
                "type": "object",
                "properties": {_DECISION: decision, **arguments, _REASON: reason},
                "required": [_DECISION],
            },
        )
    )


def _shortened(approval: Approval) -> str:
    text = json.dumps(approval.question.arguments, ensure_ascii=False, indent=2)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    path = f"/runs/{approval.key.run_id}/approvals"
    return f"{text[:MAX_SHOWN_CHARS]}\n… These are not all arguments: GET {path} returns them."


def _fields_of(approval: Approval) -> Mapping[str, Mapping[str, Any]]:
    """Return the form fields for the arguments, by name; none if a form cannot hold all of them."""
    schema, arguments = approval.question.schema or {}, approval.question.arguments
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not isinstance(arguments, Mapping):
        return {}
    fields = {name: _field(name, each, arguments) for name, each in properties.items()}
    return {name: each for name, each in fields.items() if each} if all(fields.values()) else {}


def _field(name: str, schema: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the form field for an argument; None if its values are not flat."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        return None
    form_field = {
        "type": kind,
        "title": name,
        **{key: schema[key] for key in _FORM_KEYWORDS & schema.keys()},
    }
    if (choices := schema.get("enum")) is not None:
        if kind != "string" or not all(isinstance(each, str) for each in choices):
            return None
        form_field["enum"] = list(choices)
    if schema.get("format") in _FORMATS:
        form_field["format"] = schema["format"]
    value = arguments.get(name)
    if isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean"):
        form_field["default"] = value
    return form_field
