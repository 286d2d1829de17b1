"""Responses of agents.

The events of a stream are computed from the events of the run, and numbered in their order. So a
client that has lost its connection can resume the stream after any of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.faces.openai_api.bodies import METADATA_KEY, refuse
from caseworker.faces.openai_api.runs import Step, about_of, is_of_api
from caseworker.faces.openai_api.transcript import Transcript, answer_of, failure_of, model_of
from caseworker.gateway.refusals import Refusal, RefusedError
from caseworker.models.ports import Incomplete
from caseworker.nodes.agent.node import MESSAGES
from caseworker.nodes.templates import compact
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.run import Run, RunKey, RunStatus
from caseworker.runs.service import RunService

PREFIX: Final = "resp_"
_IN_PROGRESS: Final = "in_progress"
_STATUS: Final[Mapping[RunStatus, str]] = {
    RunStatus.QUEUED: "queued",
    RunStatus.RUNNING: _IN_PROGRESS,
    RunStatus.WAITING: _IN_PROGRESS,
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.HALTED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
_REASONS: Final[Mapping[str | None, str]] = {
    Incomplete.LENGTH: "max_output_tokens",
    Incomplete.CONTENT_FILTER: "content_filter",
    Incomplete.REFUSAL: "content_filter",
}
_LAST_EVENT: Final[Mapping[str, str]] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    # The API has no event for a cancelled response.
    "cancelled": "response.failed",
}


async def run_of(request: ApiRequest, response_id: str) -> Run:
    """Return the run of a response.

    Raises:
        RefusedError: there is no such response.
    """
    run = None
    if response_id.startswith(PREFIX):
        key = RunKey(request.caller.tenant, response_id.removeprefix(PREFIX))
        try:
            run = await request.service(RunService).get(key)
        except RunNotFoundError:
            run = None
    if run is None or not is_of_api(run):
        message = f"No response has the ID {response_id[:128]!r}."
        raise RefusedError(Refusal(status=404, code="response_not_found", message=message))
    return run


async def earlier_messages(request: ApiRequest, previous: str) -> list[Mapping[str, str]]:
    """Return the conversation of the response ``previous``, with its answer.

    Raises:
        RefusedError: there is no such response, or it has no complete answer.
    """
    name = "previous_response_id"
    try:
        run = await run_of(request, previous)
    except RefusedError as refused:
        refuse(name, str(refused), code="previous_response_not_found")
    if run.status is not RunStatus.COMPLETED:
        refuse(name, f"The response {previous} is {_status(run)}: it has no complete answer.")
    inputs, answer = run.request.inputs, answer_of(run)
    messages = list(inputs.get(MESSAGES) or ())
    if (input_ := inputs.get(DEFAULT_HANDLE)) is not None:
        text = input_ if isinstance(input_, str) else compact(input_)
        messages.append({"role": "user", "content": text})
    if answer.strip():
        messages.append({"role": "assistant", "content": answer})
    return messages


def response(run: Run, transcript: Transcript) -> dict[str, Any]:
    """Return the response of a run in its current state."""
    status, about = _status(run), about_of(run)
    failure = failure_of(run) if run.finished else None
    is_over = status in ("completed", "incomplete")
    count = len(transcript.texts)
    output = [
        _message(run, index, text, is_whole=is_over or index + 1 < count)
        for index, text in enumerate(transcript.texts)
    ]
    reason = _REASONS.get((run.result or {}).get("incomplete"))
    return {
        "id": PREFIX + run.key.run_id,
        "object": "response",
        "created_at": run.created_at.timestamp(),
        "completed_at": run.finished_at.timestamp() if is_over and run.finished_at else None,
        "status": status,
        "background": bool(about.get("background")),
        "error": None
        if failure is None or status == "cancelled"
        else {"code": "server_error", "message": failure.message},
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in run.metadata.items()
            if name != METADATA_KEY
        },
        "model": model_of(run),
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": about.get("previous_response_id"),
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": _usage(transcript) if run.finished else None,
    }


@dataclass(slots=True)
class EventWriter:
    """Encodes the events of a run as numbered events of a response."""

    run: Run
    after: int = -1
    """Number of the last event that the client has received; -1 for none."""
    transcript: Transcript = field(default_factory=Transcript)
    _number: int = 0
    _message: int = -1
    _parts: list[bytes] = field(default_factory=list)

    def __call__(self, step: Step) -> bytes:
        """Return the events for a step of the run."""
        run = step.run
        if not self._number:
            initial = {**response(self.run, Transcript()), **_INITIAL}
            self._write("response.created", response=initial)
            self._write("response.in_progress", response=initial)
        for delta in self.transcript.read(step.events):
            self._delta(delta.index, delta.text)
        if run is not None:
            for delta in self.transcript.finish(run):
                self._delta(delta.index, delta.text)
            final = response(run, self.transcript)
            self._close(is_whole=final["status"] in ("completed", "incomplete"))
            self._write(_LAST_EVENT[final["status"]], response=final)
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def _delta(self, index: int, text: str) -> None:
        if index != self._message:
            self._close(is_whole=True)
            self._message = index
            item = {**_message(self.run, index, ""), "status": _IN_PROGRESS, "content": []}
            self._write("response.output_item.added", output_index=index, item=item)
            self._write("response.content_part.added", **self._place, part=_part(""))
        self._write("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def _close(self, *, is_whole: bool) -> None:
        if (index := self._message) < 0:
            return
        text = self.transcript.texts[index]
        self._write("response.output_text.done", **self._place, text=text, logprobs=[])
        self._write("response.content_part.done", **self._place, part=_part(text))
        item = _message(self.run, index, text, is_whole=is_whole)
        self._write("response.output_item.done", output_index=index, item=item)

    @property
    def _place(self) -> dict[str, Any]:
        index = self._message
        item_id = _message_id(self.run, index)
        return {"item_id": item_id, "output_index": index, "content_index": 0}

    def _write(self, kind: str, **fields: Any) -> None:
        number, self._number = self._number, self._number + 1
        if number > self.after:
            document = json.dumps({"type": kind, "sequence_number": number, **fields})
            self._parts.append(f"event: {kind}\ndata: {document}\n\n".encode())


_INITIAL: Final[Mapping[str, Any]] = {
    "status": _IN_PROGRESS,
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "usage": None,
}
"""Fields of a response that has begun. They do not depend on the time at which a stream starts."""


def _status(run: Run) -> str:
    status = _STATUS[run.status]
    cut_off = (run.result or {}).get("incomplete") in _REASONS
    return "incomplete" if status == "completed" and cut_off else status


def _message_id(run: Run, index: int) -> str:
    return f"msg_{run.key.run_id}_{index}"


def _message(run: Run, index: int, text: str, *, is_whole: bool = True) -> dict[str, Any]:
    return {
        "id": _message_id(run, index),
        "type": "message",
        "role": "assistant",
        "status": "completed" if is_whole else "incomplete",
        "content": [_part(text)],
    }


def _part(text: str) -> Mapping[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(transcript: Transcript) -> Mapping[str, Any]:
    tokens_in, tokens_out = transcript.tokens_in, transcript.tokens_out
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens_in + tokens_out,
    }
