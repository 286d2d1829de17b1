"""Approvals that the user of an MCP client decides in a form, for the SDK's own client."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
)

from caseworker.engine.waiting_calls import Author, Question, Verdict, WaitingCall
from caseworker.faces.mcp_server import elicitation
from caseworker.faces.mcp_server import server as mcp_server
from caseworker.platform.caller import KeyScope
from caseworker.runs.run import Run, RunKey, RunStatus
from caseworker.runs.service import RunService
from tests.contract.mcp_service import QUESTION, McpService, text_of
from tests.support.api import Api
from tests.support.mcp_servers import GENERATIONS
from tests.support.stores import end_of, eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("cw/16.mcp")]

DECIDES = (KeyScope.RUN, KeyScope.APPROVE)
CALL = {"input": QUESTION, "wait_seconds": 30}
ARGUMENTS = {"to": "ann", "amount": 20, "note": None}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["to", "amount"],
    "properties": {
        "to": {"type": "string", "enum": ["ann", "bob"], "description": "Who."},
        "amount": {"type": "integer", "minimum": 1, "multipleOf": 5},
        "note": {"type": "string", "pattern": "^[a-z]*$"},
    },
}
NESTED = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "items": {"type": "array", "items": {}}},
}
APPROVE = ElicitResult(action="accept", content={"decision": "approve"})
CLOSE = ElicitResult(action="cancel")


@dataclass
class User:
    """The user of a client, who answers forms; without an answer, the user closes the form."""

    answers: list[ElicitResult]
    forms: list[ElicitRequestFormParams] = field(default_factory=list)

    async def __call__(self, _: Any, form: ElicitRequestParams) -> ElicitResult:
        """Answer a form; see ElicitationFnT."""
        assert isinstance(form, ElicitRequestFormParams)
        self.forms.append(form)
        return self.answers.pop(0) if self.answers else CLOSE


@dataclass
class Asking:
    """A call of a tool in progress, and its run, which asks for approvals."""

    service: McpService
    headers: dict[str, str]
    call: "asyncio.Task[CallToolResult]"
    run: Run

    async def ask(self, call_id: str, **changes: Any) -> None:
        """Store a question of the run."""
        question = {
            "subject": "pay",
            "message": "Pay Ann?",
            "arguments": ARGUMENTS,
            "schema": SCHEMA,
            "timeout_seconds": 600.0,
            **changes,
        }
        asked = WaitingCall(
            call_id=call_id, node_id="n1", call_key=call_id, question=Question(**question)
        )
        assert await self.service.api.approval_store.ask(self.run, asked) is not None

    async def decisions(self) -> list[dict[str, Any]]:
        """Return the decisions of the run over HTTP, with null for open approvals."""
        async with self.service.http(self.headers) as http:
            path = f"/runs/{self.run.key.run_id}/approvals"
            approvals = (await http.get(path)).json()["approvals"]
        return [each["decision"] for each in approvals]

    async def decided(self) -> list[dict[str, Any]]:
        """Return the decisions once all approvals of the run have one."""

        async def no_open() -> bool:
            return None not in await self.decisions()

        await eventually(no_open)
        return await self.decisions()

    async def end(self) -> Any:
        """Finish the run as a worker does; return the result of the call."""
        await self.service.api.journal.finish(end_of(self.run, RunStatus.COMPLETED))
        return (await self.call).structured_content


Calling = Callable[[Client], Any]


async def run_case(client: Client) -> CallToolResult:
    return await client.call_tool("run_case", CALL)


@pytest.fixture
def mcp_service(api: Api, monkeypatch: pytest.MonkeyPatch) -> McpService:
    monkeypatch.setattr(mcp_server, "FIRST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(mcp_server, "PROGRESS_SECONDS", 0.05)
    return McpService(api.app(), api)


@asynccontextmanager
async def asking(
    service: McpService,
    user: User | None,
    *scopes: KeyScope,
    mode: str = "auto",
    calling: Calling = run_case,
) -> AsyncIterator[Asking]:
    """Call a tool for a user, and claim its run as a worker; None is a client without forms."""
    headers = await service.key("a", *(scopes or DECIDES))
    options = {} if user is None else {"elicitation_callback": user}
    async with service.mcp(headers, mode, **options) as client:
        call = asyncio.create_task(calling(client))
        made = await service.first(headers)
        run = await service.api.store.claim(RunKey("a", made["run_id"]), "worker")
        assert run is not None
        yield Asking(service, headers, call, run)
        call.cancel()


async def test_the_form_shows_the_message_the_tool_and_its_arguments(
    mcp_service: McpService,
) -> None:
    """Its fields are the decision, the reason and the arguments with their current values."""
    user = User([APPROVE])
    async with asking(mcp_service, user) as asked:
        await asked.ask("c1")
        [decision] = await asked.decided()
        run = await asked.end()
    [form] = user.forms

    assert run["status"] == "completed"
    assert (decision["decision"], decision["by"], decision["arguments"]) == (
        "approved",
        "robot",
        None,
    )
    shown = json.dumps(ARGUMENTS, indent=2)
    head = f"Pay Ann?\n\npay of the run {run['run_id']}, with the arguments:\n"
    assert form.message == head + shown
    assert form.requested_schema == {
        "type": "object",
        "required": ["decision"],
        "properties": {
            "decision": {"type": "string", "title": "Decision", "enum": ["approve", "refuse"]},
            "arguments.to": {
                "type": "string",
                "title": "to",
                "description": "Who.",
                "enum": ["ann", "bob"],
                "default": "ann",
            },
            "arguments.amount": {
                "type": "integer",
                "title": "amount",
                "minimum": 1,
                "default": 20,
            },
            "arguments.note": {"type": "string", "title": "note"},
            "reason": {"type": "string", "title": "Reason", "maxLength": 500},
        },
    }


@pytest.mark.parametrize(
    ("answer", "verdict", "reason", "arguments"),
    [
        (ElicitResult(action="decline"), "refused", None, None),
        (
            ElicitResult(action="accept", content={"decision": "refuse", "reason": "Too much."}),
            "refused",
            "Too much.",
            None,
        ),
        (
            ElicitResult(action="accept", content={"decision": "refuse", "arguments.amount": 5}),
            "refused",
            None,
            None,
        ),
        (
            ElicitResult(
                action="accept",
                content={
                    "decision": "approve",
                    "reason": "Less.",
                    "arguments.amount": 5,
                    "arguments.to": "ann",
                },
            ),
            "approved",
            "Less.",
            ARGUMENTS | {"amount": 5, "note": ""},
        ),
    ],
)
async def test_the_answer_of_the_user_is_the_decision(
    mcp_service: McpService,
    answer: ElicitResult,
    verdict: str,
    reason: str | None,
    arguments: Any,
) -> None:
    """Fields that the user does not change keep the requested arguments."""
    requested = ARGUMENTS | {"note": ""}
    async with asking(mcp_service, User([answer])) as asked:
        await asked.ask("c1", arguments=requested)
        [decision] = await asked.decided()
        await asked.end()

    assert (decision["decision"], decision["reason"]) == (verdict, reason)
    assert decision["arguments"] == arguments


async def test_a_user_who_closes_the_form_decides_nothing(mcp_service: McpService) -> None:
    """The call returns the run in its state, with the open call."""
    user = User([CLOSE])
    async with asking(mcp_service, user) as asked:
        await asked.ask("c1")
        run: Any = (await asked.call).structured_content
        assert await asked.decisions() == [None]

    assert [call["call_id"] for call in run["required_action"]["calls"]] == ["c1"]
    assert len(user.forms) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "decision: "),
        ({"decision": "maybe"}, "decision: "),
        ({"decision": "approve", "reason": "x" * 501}, "reason: "),
        ({"decision": "approve", "arguments.amount": 7}, "arguments.amount: "),
        ({"decision": "approve", "arguments.note": "A"}, "arguments.note: "),
    ],
)
async def test_an_invalid_answer_is_asked_for_again(
    mcp_service: McpService, content: dict[str, Any], message: str
) -> None:
    """The next form begins with the reason; nothing was decided."""
    user = User([ElicitResult(action="accept", content=content), CLOSE])
    async with asking(mcp_service, user) as asked:
        await asked.ask("c1", arguments=ARGUMENTS | {"note": ""})
        await asked.call
        assert await asked.decisions() == [None]
    _, second = user.forms

    assert second.message.startswith(f"The last answer is invalid. {message}")


@pytest.mark.parametrize("schema", [None, NESTED, {"type": "object"}])
async def test_arguments_that_no_form_can_hold_are_only_shown(
    mcp_service: McpService, schema: Any
) -> None:
    """The user approves or refuses them as they are."""
    user = User([APPROVE])
    async with asking(mcp_service, user) as asked:
        await asked.ask("c1", schema=schema, arguments={"to": "ann", "items": [1]})
        await asked.decided()
    [form] = user.forms

    assert list(form.requested_schema["properties"]) == ["decision", "reason"]
    assert '"items": [' in form.message


async def test_arguments_too_long_for_a_form_name_the_url_of_all(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user knows that the form does not show all."""
    monkeypatch.setattr(elicitation, "MAX_SHOWN_CHARS", 10)
    user = User([APPROVE])
    async with asking(mcp_service, user) as asked:
        await asked.ask("c1")
        await asked.decided()
    [form] = user.forms

    assert form.message.endswith(f"GET /runs/{asked.run.key.run_id}/approvals returns them.")


async def test_several_approvals_are_decided_in_one_call(mcp_service: McpService) -> None:
    """Those that are open together come in one round; calls of the client are none of them."""
    user = User([APPROVE, APPROVE, ElicitResult(action="decline")])
    async with asking(mcp_service, user) as asked:
        await asked.ask("of-client", author=Author.CLIENT, schema=None)
        await asked.ask("c1")
        await asked.decided()
        await asked.ask("c2", message="Second?")
        await asked.decided()
        await asked.ask("c3", message="Third?")
        decisions = await asked.decided()
        run = await asked.end()

    assert run["status"] == "completed"
    assert [each["decision"] for each in decisions] == ["approved", "approved", "refused"]
    assert [form.message.split("?")[0] for form in user.forms] == ["Pay Ann", "Second", "Third"]


async def test_a_decision_from_elsewhere_counts_and_the_call_goes_on(
    mcp_service: McpService,
) -> None:
    """The user's later answer changes nothing."""
    async with asking(mcp_service, None) as asked:
        user = User([])

        async def refused_elsewhere(context: Any, params: ElicitRequestParams) -> ElicitResult:
            await user(context, params)
            async with mcp_service.http(asked.headers) as http:
                path = f"/runs/{asked.run.key.run_id}/approvals/c1"
                answer = await http.post(path, json={"decision": "refuse", "reason": "No."})
                assert answer.status_code == 202
            return APPROVE

        await asked.ask("c1")
        service, callback = mcp_service, refused_elsewhere
        async with service.mcp(asked.headers, elicitation_callback=callback) as client:
            args = {"run_id": asked.run.key.run_id}
            second = asyncio.create_task(client.call_tool("get_run", args))
            [decision] = await asked.decided()
            await asked.end()
            result: Any = (await second).structured_content

    assert (decision["decision"], decision["reason"]) == ("refused", "No.")
    assert (result["status"], len(user.forms)) == ("completed", 1)


@pytest.mark.parametrize("mode", GENERATIONS)
@pytest.mark.parametrize("scopes", [DECIDES, (KeyScope.RUN,)])
@pytest.mark.parametrize("has_forms", [True, False])
async def test_who_cannot_be_asked_gets_the_run_that_waits(
    mcp_service: McpService, mode: str, scopes: tuple[KeyScope, ...], has_forms: bool
) -> None:
    """A form needs the scope approve, a client with forms, and the newer protocol."""
    user = User([CLOSE])

    async def briefly(client: Client) -> CallToolResult:
        return await client.call_tool("run_case", CALL | {"wait_seconds": 1})

    shown = user if has_forms else None
    async with asking(mcp_service, shown, *scopes, mode=mode, calling=briefly) as asked:
        await asked.ask("c1")
        result = await asked.call

    run: Any = result.structured_content
    assert not result.is_error
    assert [call["call_id"] for call in run["required_action"]["calls"]] == ["c1"]
    assert len(user.forms) == (has_forms and mode == "auto" and KeyScope.APPROVE in scopes)


async def answered(
    client: Client, state: str, responses: Any, tool: str = "run_case", **args: Any
) -> CallToolResult | InputRequiredResult:
    """Send the answers of a later round."""
    return await client.session.call_tool(
        tool,
        {"wait_seconds": 0, **args},
        input_responses=responses,
        request_state=state,
        allow_input_required=True,
    )


async def test_the_state_of_a_round_opens_nothing_to_the_caller(mcp_service: McpService) -> None:
    """A client can send any state: scope and tenant are checked in every round."""
    async with asking(mcp_service, None) as asked:
        await asked.ask("c1")
        state, answers = f"1/{asked.run.key.run_id}", {"c1": APPROVE}
        others = await mcp_service.key("b", *DECIDES)
        running = await mcp_service.key("a", KeyScope.RUN)
        reading = await mcp_service.key("a", KeyScope.READ, KeyScope.APPROVE)
        results = []
        for headers in (others, running, reading):
            async with mcp_service.mcp(headers) as client:
                results.append(await answered(client, state, answers, input=QUESTION))
        async with mcp_service.mcp(others) as client:
            unknown = await answered(client, "1/no-such-run", answers, input=QUESTION)
        assert await asked.decisions() == [None]
        assert len(await mcp_service.made(asked.headers)) == 1

    foreign, *unscoped = results
    assert isinstance(foreign, CallToolResult)
    assert isinstance(unknown, CallToolResult)
    assert foreign.is_error
    assert text_of(foreign) == text_of(unknown)
    for result, scope in zip(unscoped, ("approve", "run"), strict=True):
        assert isinstance(result, CallToolResult)
        assert result.is_error
        assert f"scope {scope}" in text_of(result).replace("`", "")


@pytest.mark.parametrize("state", ["", "1/", "no", "-1/a", "1/a/b", "100/a", "1/\n"])
async def test_a_state_that_the_service_never_sent_is_an_error(
    mcp_service: McpService, state: str
) -> None:
    """The call creates no run."""
    headers = await mcp_service.key("a", *DECIDES)
    async with mcp_service.mcp(headers) as client:
        with pytest.raises(MCPError) as refused:
            await answered(client, state, {}, input=QUESTION)

    assert refused.value.error.code == INVALID_PARAMS
    assert await mcp_service.made(headers) == []


async def test_answers_to_other_questions_are_ignored(mcp_service: McpService) -> None:
    """Calls of the client and unknown IDs are not decided by forms."""
    async with asking(mcp_service, None) as asked:
        await asked.ask("of-client", author=Author.CLIENT, schema=None)
        answers = {"of-client": APPROVE, "no-such-call": APPROVE}
        async with mcp_service.mcp(asked.headers) as client:
            state = f"1/{asked.run.key.run_id}"
            result = await answered(client, state, answers, input=QUESTION)
        [call] = await mcp_service.api.approval_store.calls(asked.run.key)

    assert isinstance(result, CallToolResult)
    assert not result.is_error
    assert call.decision is None


async def test_after_the_last_round_the_run_is_returned(mcp_service: McpService) -> None:
    """The SDK's client raises an error after ten rounds, so the service asks no further."""
    user = User([APPROVE] * 20)
    async with asking(mcp_service, user) as asked:
        for number in range(elicitation.MAX_ROUNDS):
            await asked.ask(f"c{number}")
            await asked.decided()
        await asked.ask("one-more")
        run = await asked.end()
        decisions = await asked.decisions()

    assert run["status"] == "completed"
    assert len(user.forms) == elicitation.MAX_ROUNDS
    assert decisions[-1] is None


async def test_a_round_has_a_limited_number_of_forms(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further approvals come in the next round."""
    monkeypatch.setattr(elicitation, "MAX_FORMS", 2)
    async with asking(mcp_service, None) as asked:
        for number in range(3):
            await asked.ask(f"c{number}")
        user, rounds = User([]), []
        async with mcp_service.mcp(asked.headers, elicitation_callback=user) as client:
            args, answers = {"run_id": asked.run.key.run_id}, dict[str, ElicitResult]()
            for number in range(2):
                result = await answered(client, f"{number}/a", answers, "get_run", **args)
                assert isinstance(result, InputRequiredResult)
                rounds.append(list(result.input_requests or ()))
                answers = dict.fromkeys(rounds[-1], APPROVE)
        stored = await mcp_service.api.approval_store.calls(asked.run.key)

    assert rounds == [["c0", "c1"], ["c2"]]
    verdicts = [each.decision and each.decision.verdict for each in stored]
    assert verdicts == [Verdict.APPROVED, Verdict.APPROVED, None]


async def test_a_client_that_leaves_after_an_answer_cancels_the_run(
    mcp_service: McpService,
) -> None:
    """The later rounds of a call belong to its run like the first one."""
    async with asking(mcp_service, User([APPROVE])) as asked:
        await asked.ask("c1")
        await asked.decided()
        async with mcp_service.http(asked.headers) as http:
            asked.call.cancel()

            async def cancelling() -> bool:
                run = (await http.get(f"/runs/{asked.run.key.run_id}")).json()
                return run["cancel"] is not None

            await eventually(cancelling)


async def test_after_a_closed_form_the_call_waits_no_longer(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is the run in its state, whatever the remaining time of the call."""
    async with asking(mcp_service, None) as asked:
        await asked.ask("c1")

        async def waited(*_: object, **__: object) -> None:
            raise AssertionError("The call waits for its run.")

        monkeypatch.setattr(RunService, "wait", waited)
        async with mcp_service.mcp(asked.headers) as client:
            state = f"1/{asked.run.key.run_id}"
            result = await answered(client, state, {"c1": CLOSE}, input=QUESTION, wait_seconds=30)

    assert isinstance(result, CallToolResult)
    assert not result.is_error, result
