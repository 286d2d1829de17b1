"""Recorded models: replies from a real endpoint, kept in a file and replayed without a network.

A recording is a JSON Lines file. The header describes the recorded models and settings, and when
the recording was made. Each other line is one exchange, sorted by case and purpose, so that two
recordings can be compared with a line diff. Requests are stored as hashes; keys and URLs are not
stored. Two keys identify an exchange:

- the *case* is the part of the run ID after its first colon, or the whole ID without a colon, so
  that a later evaluation of the same case finds it;
- the *purpose* is the path of the call in its run, such as ``case/small/1/reprompt``.

A run whose ID has no colon, such as a generated one, also finds an exchange with the same purpose
and request. If the caller streams, the reply is replayed word by word.

Only the last attempt of a call is kept, with its number. A final failure is therefore replayed, and
a failure that a retry overcame is not.
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from caseworker.models.forms import ReplyForm
from caseworker.models.ports import (
    Delta,
    ModelEndpoint,
    ModelError,
    ModelFault,
    ModelProvider,
    ModelReply,
    ModelRequest,
)

FORMAT = 1
"""Version of the file format, incremented when older files can no longer be read."""

_TODAY = re.compile(r'"today": "[A-Z][a-z]+, [A-Z][a-z]+ \d\d?, \d{4}"')
_HASH_CHARS = 16
_SIMPLER = (ReplyForm.JSON, ReplyForm.TEXT)
_WORD = re.compile(r"\s*\S+\s*?|\s+$")


class RecordingError(ValueError):
    """A file is not a recording that can be replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFailure:
    """The recorded failure of a call whose retries were exhausted."""

    fault: ModelFault
    message: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One line of a recording: the last attempt of a call, with its reply or failure."""

    case: str
    purpose: str
    attempt: int
    request_hash: str
    seconds: float
    """Duration of the recorded attempt in seconds. A replay does not wait for it."""
    reply: ModelReply | None = None
    error: RecordedFailure | None = None


_EXCHANGE = TypeAdapter(Recording)


def case_of(run_id: str) -> str:
    """Return the case in a run ID: the part after its first colon, or all of it without a colon."""
    return run_id.partition(":")[2] or run_id


def sent_hash(model: str, request: ModelRequest) -> str:
    """Return a hash of everything that is sent, except the run ID and today's date.

    The time limit is not part of the hash.
    """
    run_id = request.origin.run_id if request.origin else ""

    def steady(text: str) -> str:
        return _TODAY.sub('"today": ""', text.replace(run_id, "") if run_id else text)

    content: dict[str, Any] = {
        "model": model,
        "messages": [
            [each.role, steady(each.content), *filter(None, (each.extras(),))]
            for each in request.messages
        ],
        "schema": request.json_schema,
        "json_object": request.json_object,
        "max_output_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
    }
    if request.tools:
        content["tools"] = [tool.to_json() for tool in request.tools]
    document = json.dumps(content, sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()[:_HASH_CHARS]


class Recorder:
    """Writes the recording of one process: each line immediately, and a sorted file at the end."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Create the file, replacing an earlier one; ``about`` goes into its header.

        Raises:
            OSError: the file cannot be written.
        """
        self._path = path
        self._header = json.dumps({"format": FORMAT, **about}, ensure_ascii=False)
        self._last: dict[tuple[str, str], Recording] = {}
        path.write_text(f"{self._header}\n", encoding="utf-8")

    def add(self, exchange: Recording) -> None:
        """Record an exchange. A later attempt of the same call replaces an earlier one."""
        self._last[exchange.case, exchange.purpose] = exchange
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(exchange))

    def close(self) -> None:
        """Rewrite the file in sorted order, with only the last attempt of every call."""
        ordered = (_line(self._last[key]) for key in sorted(self._last))
        self._path.write_text("".join((f"{self._header}\n", *ordered)), encoding="utf-8")


class RecordingProvider:
    """Wraps a provider and records its replies and failures."""

    def __init__(self, provider: ModelProvider, recorder: Recorder) -> None:
        self.name = provider.name
        self.external = provider.external
        self._provider = provider
        self._recorder = recorder

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Make one attempt and record its outcome.

        An attempt that is cancelled after its time limit is recorded as a timeout.

        Raises:
            ModelError: the provider refused, failed, was cut off or took too long.
        """
        began = time.monotonic()
        try:
            reply = await self._provider.complete(model, request)
        except ModelError as error:
            self._keep(model, request, began, error=error)
            raise
        except asyncio.CancelledError:
            limit = request.timeout_seconds
            if limit is not None and time.monotonic() - began >= limit:
                late = ModelError(f"{self.name}: no answer in time", retryable=True)
                self._keep(model, request, began, error=late)
            raise
        self._keep(model, request, began, reply)
        return reply

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await self._provider.aclose()

    def _keep(
        self,
        model: str,
        request: ModelRequest,
        began: float,
        reply: ModelReply | None = None,
        error: ModelError | None = None,
    ) -> None:
        origin = request.origin
        if origin is None:
            return  # not a call of a run, so no replay would look for it
        self._recorder.add(
            Recording(
                case=case_of(origin.run_id),
                purpose=origin.call,
                attempt=origin.attempt,
                request_hash=sent_hash(model, request),
                seconds=round(time.monotonic() - began, 3),
                reply=reply,
                error=RecordedFailure(fault=error.fault, message=str(error), status=error.status)
                if error
                else None,
            )
        )


class RecordedProvider:
    """Replays a recording strictly: a call that is not recorded, or that has changed, is an error.

    Token usage is replayed as recorded and charged at the recorded model's price.
    """

    name = "recorded"
    external = True

    def __init__(self, endpoint: ModelEndpoint) -> None:
        """Read the configured recording.

        Raises:
            RecordingError: no file is configured, or it is not a recording of this model.
            OSError: the file cannot be read.
        """
        if endpoint.recording is None:
            raise RecordingError("the setting recording must name the file of a recording")
        self.model = endpoint.model
        self._file = Path(endpoint.recording).name
        self._exchanges = _read(Path(endpoint.recording), endpoint.model)
        self._by_request = {
            (each.purpose, each.request_hash): each for each in self._exchanges.values()
        }

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Return the recorded reply to a request.

        Raises:
            ModelError: the recorded call failed, the call was not recorded, or its request differs.
                No retry can help.
        """
        origin = request.origin
        if origin is None:
            raise ModelError("recorded: the request belongs to no run", retryable=False)
        case, hash_ = case_of(origin.run_id), sent_hash(model, request)
        exchange = self._exchanges.get((case, origin.call))
        if exchange is None and case == origin.run_id:
            exchange = self._by_request.get((origin.call, hash_))
        why, fault = "there is no such exchange", None
        if exchange is None:
            # Once an endpoint is known to need a simpler form of JSON, it is asked only in that
            # form. A replay in another order of cases asks for the better form first; this fault
            # makes the caller fall back.
            if any((case, f"{origin.call}/{form.value}") in self._exchanges for form in _SIMPLER):
                why, fault = "it was asked in a simpler form", ModelFault.SCHEMA_REFUSED
        elif exchange.request_hash != hash_:
            why = "the request has changed"
        elif failed := exchange.error:
            raise ModelError(
                failed.message, retryable=False, status=failed.status, fault=failed.fault
            )
        elif exchange.reply is not None:
            return streamed(exchange.reply, request)
        place = f"case {case}, purpose {origin.call}, attempt {origin.attempt}"
        message = (
            f"recorded: {place}: {why} in {self._file}; record it again, or configure another"
            " model, with MODELS_SMALL_BASE_URL or OPENAI_API_KEY in the environment"
        )
        raise ModelError(message, retryable=False, fault=fault)

    async def aclose(self) -> None:
        """Do nothing, because the file was read at construction."""


def streamed(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Return a reply; if the request streams, first emit its texts word by word."""
    if (on_delta := request.on_delta) is not None:
        for word in _WORD.findall(reply.thinking):
            on_delta(Delta("thinking", word))
        for word in _WORD.findall(reply.text):
            on_delta(Delta("content", word))
    return reply


def _read(path: Path, model: str) -> dict[tuple[str, str], Recording]:
    head, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    try:
        header = json.loads(head)
        models = [each["model"] for each in header["models"]]
        fits = header["format"] == FORMAT
    except (ValueError, LookupError, TypeError):
        fits = False
    if not fits:
        raise RecordingError(f"{path} is not a recording of format {FORMAT}")
    if model not in models:
        raise RecordingError(f"{path} holds {', '.join(models)} and not {model}")
    exchanges: dict[tuple[str, str], Recording] = {}
    for number, line in enumerate(lines, 2):
        try:
            exchange = _EXCHANGE.validate_json(line)
        except ValidationError:
            raise RecordingError(f"{path}: line {number} is not an exchange") from None
        if exchanges.setdefault((exchange.case, exchange.purpose), exchange) is not exchange:
            raise RecordingError(f"{path}: line {number} repeats an exchange")
    return exchanges


def _line(exchange: Recording) -> str:
    return _EXCHANGE.dump_json(exchange, exclude_defaults=True).decode() + "\n"
