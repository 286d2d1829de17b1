"""Tools that the clients of chat completions execute.

A chat completion is stateless: the client sends the whole conversation again. The ID of a call
names its run, and the run's own record decides whether the conversation continues it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from caseworker.engine.events import REQUIRED_ACTION
from caseworker.engine.waiting_calls import OUTPUT, Verdict
from caseworker.faces.openai_api.bodies import AgentCall, refuse
from caseworker.faces.openai_api.runs import calls_of_client, is_of_api
from caseworker.faces.openai_api.transcript import Transcript, event_pages
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    CallAnsweredError,
    CallNotFoundError,
    Deciding,
    RunWaitingCalls,
)
from caseworker.models.ports import Message
from caseworker.nodes.agent.node import MESSAGES
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.run import EventRecord, Run, RunKey
from caseworker.runs.service import RunService

BETWEEN: Final = "\n\n"
"""Text between the messages of two turns, because a chat completion has one message."""

_ID: Final = re.compile(r"call_([0-9a-f]{32})_(.{1,200})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Continuation:
    """A run that a request continues, and the number of its last event before the request."""

    run: Run
    after: int = 0


def id_of(call: Approval) -> str:
    """Return the ID of a call for its client."""
    return f"call_{call.approval_id}_{call.key.run_id}"


async def require_room(request: ApiRequest, limit: int) -> None:
    """Check how many runs of the caller wait for results of a client's tools.

    Raises:
        RefusedError: there are ``limit`` or more.
    """
    caller = request.caller
    waiting = request.service(RunWaitingCalls).store.waiting_runs_of
    if await waiting(caller.tenant, caller.identity, limit=limit) >= limit:
        message = (
            f"{limit} runs of this key wait for the results of tools (faces.max_waiting_runs). Send"
            " results, or cancel runs."
        )
        refuse("tools", message, code="too_many_waiting_runs")


async def continuation(
    request: ApiRequest, call: AgentCall, *, appends_system: bool
) -> Continuation | None:
    """Continue the run whose open calls a request answers; return None if it continues none.

    Then the run whose calls the conversation contains ends, because its client has left it.
    """
    if (run_id := _last_run_of(call.messages)) is None:
        return None
    key, runs = RunKey(request.caller.tenant, run_id), request.service(RunService)
    try:
        run = await runs.get(key)
    except RunNotFoundError:
        return None
    if not is_of_api(run):
        return None
    calls = await calls_of_client(request, key)
    if call.messages[-1].role == "tool":
        rounds = await _rounds(runs, key)
        results = _History(run, calls, rounds).results_of(call, appends_system)
        if results is not None:
            with suppress(CallNotFoundError, CallAnsweredError):
                await _answer(request, calls, results)
                after = max(rounds.numbers.get(each, 0) for each in results)
                return Continuation(await runs.get(key), after)
    await _end(request, calls)
    return None


def _last_run_of(messages: Sequence[Message]) -> str | None:
    """Return the ID of the run whose calls a conversation contains last; None without any."""
    for message in reversed(messages):
        for call_id in (message.tool_call_id, *(each.id for each in message.tool_calls)):
            if (reference := _reference(call_id)) is not None:
                return reference[1]
    return None


async def _answer(
    request: ApiRequest, calls: Iterable[Approval], results: Mapping[str, str]
) -> None:
    service, caller = request.service(RunWaitingCalls), request.caller
    for each in calls:
        if each.approval_id in results:
            answer = {OUTPUT: results[each.approval_id]}
            deciding = Deciding(
                approval_id=each.approval_id,
                verdict=Verdict.APPROVED,
                by=caller.name,
                arguments=answer,
            )
            await service.answer(each.key, deciding, caller)


async def _end(request: ApiRequest, calls: Iterable[Approval]) -> None:
    """Let the open calls of a run expire, because its client has left it."""
    store = request.service(RunWaitingCalls).store
    for each in calls:
        if each.open and each.may_answer(request.caller):
            late = Deciding(approval_id=each.approval_id, verdict=Verdict.TIMED_OUT, by=None)
            await store.decide(each.key, late)


@dataclass(slots=True)
class _Rounds:
    """The texts of a run before each call of its client."""

    texts: dict[str, str] = field(default_factory=dict)
    """Text of the message with a call, by the call's ID."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Sequence number of the event of each call."""
    _transcript: Transcript = field(default_factory=Transcript)
    _first: int = 0
    _has_ended: bool = False

    def read(self, event: EventRecord) -> None:
        for delta in self._transcript.read([event]):
            if self._has_ended:
                self._first, self._has_ended = delta.index, False
        if event.type == REQUIRED_ACTION:
            call_id = event.data["call_id"]
            texts = () if self._has_ended else self._transcript.texts[self._first :]
            self.texts[call_id] = BETWEEN.join(texts)
            self.numbers[call_id] = event.seq
            self._has_ended = True


async def _rounds(runs: RunService, key: RunKey) -> _Rounds:
    rounds = _Rounds()
    async for events in event_pages(runs, key):
        for event in events:
            rounds.read(event)
    return rounds


@dataclass(frozen=True, slots=True)
class _History:
    """The conversation of a run with its client, from the record of the run."""

    run: Run
    calls: Sequence[Approval]
    rounds: _Rounds

    def results_of(self, call: AgentCall, appends_system: bool) -> Mapping[str, str] | None:
        """Return the results at the end of a conversation by call ID; None if it differs."""
        messages = call.messages
        begin = next((at for at, each in enumerate(messages) if self._has_call(each)), 0)
        first = replace(call, messages=messages[:begin])
        body = first.run_body((), appends_system=appends_system, about={})
        if body["messages"] != list(self.run.request.inputs.get(MESSAGES) or ()):
            return None
        results = dict[str, str]()
        trailing = set[str]()
        for message in messages[begin:]:
            if message.role == "assistant":
                if not self._is_ours(message):
                    return None
                trailing.clear()
            elif (reference := _reference(message.tool_call_id)) and reference[
                1
            ] == self.run.key.run_id:
                results[reference[0]] = message.content
                trailing.add(reference[0])
            else:
                return None
        if not trailing or not all(self._agrees(each, results, trailing) for each in self.calls):
            return None
        return {call_id: results[call_id] for call_id in trailing}

    def _has_call(self, message: Message) -> bool:
        ids = (_reference(each.id) for each in message.tool_calls)
        return any(
            reference is not None and reference[1] == self.run.key.run_id for reference in ids
        )

    def _is_ours(self, message: Message) -> bool:
        """Return whether the message of the assistant is as the run has written it."""
        texts = self.rounds.texts
        by_id = {id_of(each): each for each in self.calls}
        for each in message.tool_calls:
            call = by_id.get(each.id)
            if call is None or each.name != call.question.subject:
                return False
            if _parsed(each.arguments) != call.question.arguments:
                return False
        contents = {texts.get(by_id[each.id].approval_id, "") for each in message.tool_calls}
        return bool(message.tool_calls) and (not message.content or message.content in contents)

    def _agrees(self, call: Approval, results: Mapping[str, str], trailing: set[str]) -> bool:
        """Return whether a call of the run has the answer of the conversation."""
        result = results.get(call.approval_id)
        if result is None:  # a repeated request does not know the calls that followed it
            ends = [
                each.decision.at
                for each in self.calls
                if each.decision is not None and each.approval_id in trailing
            ]
            return call.open and len(ends) == len(trailing) and call.requested_at >= max(ends)
        if call.decision is None:
            return call.open and call.approval_id in trailing
        return bool(call.decision.arguments == {OUTPUT: result})


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _reference(call_id: str | None) -> tuple[str, str] | None:
    """Return the call and the run that an ID names; None for an ID of another form."""
    match = _ID.fullmatch(call_id or "")
    return None if match is None else (match[1], match[2])
