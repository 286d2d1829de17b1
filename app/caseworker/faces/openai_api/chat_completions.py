"""Chat completions of agents."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from caseworker.faces.openai_api.bodies import AgentCall
from caseworker.faces.openai_api.client_tools import BETWEEN, id_of
from caseworker.faces.openai_api.runs import Step
from caseworker.faces.openai_api.transcript import (
    Transcript,
    answer_of,
    failure_of,
    model_of,
)
from caseworker.features.waiting_calls.waiting_calls import Approval
from caseworker.gateway.dialects.chat_completions import openai_error
from caseworker.models.ports import Incomplete
from caseworker.runs.run import Run

_FINISH: Final[Mapping[str | None, str]] = {
    Incomplete.LENGTH: "length",
    Incomplete.CONTENT_FILTER: "content_filter",
    Incomplete.REFUSAL: "content_filter",
}
_CALLS: Final = "tool_calls"


def completion(
    run: Run, transcript: Transcript, calls: Sequence[Approval] = ()
) -> Mapping[str, Any]:
    """Return the chat completion of a run that has completed, or that waits for ``calls``."""
    message: dict[str, Any] = {"role": "assistant", "content": answer_of(run), "refusal": None}
    if calls:
        message["content"] = BETWEEN.join(transcript.texts) or None
        message[_CALLS] = [_call(each) for each in calls]
    finish = _CALLS if calls else _finish(run)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {
        **_about(run, "chat.completion"),
        "choices": [choice],
        "usage": _usage(transcript),
    }


@dataclass(slots=True)
class ChunkWriter:
    """Encodes the events of a run as chunks of a chat completion."""

    run: Run
    call: AgentCall
    transcript: Transcript = field(default_factory=Transcript)
    _message: int = -1

    def __call__(self, step: Step) -> bytes:
        """Return the chunks for a step of the run."""
        run, calls = step.run, step.calls
        parts = [self._delta(each.index, each.text) for each in self.transcript.read(step.events)]
        if run is not None and not calls and (refusal := failure_of(run)) is not None:
            return b"".join([*parts, _frame(openai_error(refusal))])
        if run is not None:
            if not calls:
                parts += [
                    self._delta(each.index, each.text) for each in self.transcript.finish(run)
                ]
            if self._message < 0:
                parts.append(self._delta(0, ""))
            for index, call in enumerate(calls):
                parts.append(self._chunk({_CALLS: [{"index": index, **_call(call)}]}, None))
            parts.append(self._chunk({}, _CALLS if calls else _finish(run)))
            if self.call.includes_usage:
                usage = {"choices": [], "usage": _usage(self.transcript)}
                parts.append(_frame({**self._head(), **usage}))
            parts.append(b"data: [DONE]\n\n")
        return b"".join(parts)

    def _delta(self, index: int, text: str) -> bytes:
        delta = {"content": text if index == self._message or index == 0 else BETWEEN + text}
        if self._message < 0:
            delta = {"role": "assistant", "content": text}
        self._message = index
        return self._chunk(delta, None)

    def _chunk(self, delta: Mapping[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self.call.includes_usage else {}
        return _frame({**self._head(), "choices": [choice], **usage})

    def _head(self) -> Mapping[str, Any]:
        return _about(self.run, "chat.completion.chunk")


def _call(call: Approval) -> Mapping[str, Any]:
    function = {"name": call.question.subject, "arguments": json.dumps(call.question.arguments)}
    return {"id": id_of(call), "type": "function", "function": function}


def _about(run: Run, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{run.key.run_id}",
        "object": kind,
        "created": int(run.created_at.timestamp()),
        "model": model_of(run),
    }


def _finish(run: Run) -> str:
    return _FINISH.get((run.result or {}).get("incomplete"), "stop")


def _usage(transcript: Transcript) -> Mapping[str, int]:
    tokens_in, tokens_out = transcript.tokens_in, transcript.tokens_out
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


def _frame(document: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()
