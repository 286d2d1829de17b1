"""Chat Completions without what OpenAI's SDK does around a request, which costs most of a call.

The SDK searches each request for fields to rename, merges its headers several times, and makes the
objects of a reply one by one in Python. Its types, and what it raises, stay.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar, cast

import httpx2
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, NotGiven, Omit
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from app.adapters.providers.pydantic_ai.transport import ReplyRefusedError

_DRAIN_SECONDS = 0.1
"""How long the end of a reply is waited for whose last event came; then it is cut off."""

_NOT_SENT = frozenset({"extra_headers", "extra_body", "timeout"})
"""Options of the SDK; an attempt is limited by its caller."""

_Document = TypeVar("_Document", ChatCompletion, ChatCompletionChunk)


class ChatCompletions:
    """The completions of one endpoint."""

    def __init__(self, base_url: str, api_key: str, http: httpx2.AsyncBaseTransport) -> None:
        """Send requests through ``http``, which the caller closes."""
        self._url = httpx2.URL(base_url.rstrip("/") + "/chat/completions")
        self._headers = {
            "authorization": f"Bearer {api_key}",
            "content-type": "application/json",
            "accept": "application/json",
        }
        self._http = http

    async def create(self, **options: Any) -> Any:
        """Return the completion, or its chunks as they come if ``stream`` is set.

        Raises:
            APIError: there is none, as the SDK says it.
        """
        request, stream = self._request(options), options["stream"]
        options.clear()  # it may be a long wait
        try:
            response = await self._http.handle_async_request(request)
        except httpx2.TransportError as error:
            raise _api_error(error, request) from error
        response.request = request
        if stream and response.is_success:
            return _Chunks(response)
        try:
            content = b"".join([part async for part in _parts(response)])
        finally:
            await response.aclose()
        if not response.is_success:
            raise _status_error(response, content)
        return _read(ChatCompletion, content)

    def _request(self, options: Mapping[str, Any]) -> httpx2.Request:
        headers, more = options["extra_headers"], options["extra_body"] or {}
        asked = {
            name: value
            for name, value in {**options, **more}.items()
            if name not in _NOT_SENT and not isinstance(value, Omit | NotGiven)
        }
        content = json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()
        return httpx2.Request(
            "POST", self._url, headers={**headers, **self._headers}, content=content
        )


class _Chunks:
    """The chunks of a completion, as pydantic-ai reads and closes them."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = _chunks(response)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self._chunks

    async def close(self) -> None:
        """Close the connection, unless all was read."""
        await self._response.aclose()


async def _chunks(response: httpx2.Response) -> AsyncIterator[ChatCompletionChunk]:
    parts = _parts(response)
    async for data in _data_of_events(parts):
        if data.startswith(b"[DONE]"):
            break
        chunk = _read(ChatCompletionChunk, data)
        if error := getattr(chunk, "error", None):
            message = str(error.get("message")) if isinstance(error, dict) else str(error)
            raise APIError(message, response.request, body=error)
        yield chunk
    # A connection can be used again if nothing is left in it.
    with suppress(TimeoutError, APIConnectionError, ReplyRefusedError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in parts:
                pass


async def _data_of_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    begun, data = list[bytes](), list[bytes]()
    async for part in parts:
        complete, newline, rest = part.rpartition(b"\n")
        if not newline:
            begun.append(rest)
            continue
        for line in b"".join((*begun, complete)).split(b"\n"):
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line.rstrip() and data:
                yield b"\n".join(data)
                data.clear()
        begun = [rest]


async def _parts(response: httpx2.Response) -> AsyncIterator[bytes]:
    try:
        async for part in cast(httpx2.AsyncByteStream, response.stream):
            yield part
    except httpx2.TransportError as error:
        raise _api_error(error, response.request) from error


def _api_error(error: httpx2.TransportError, request: httpx2.Request) -> APIError:
    if isinstance(error, httpx2.TimeoutException):
        return APITimeoutError(request)
    return APIConnectionError(request=request)


def _read(kind: type[_Document], content: bytes) -> _Document:
    """Return a document; unchecked, as the SDK makes it, if it is not as it should be."""
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        document = json.loads(content)
        return kind.construct(**document) if isinstance(document, dict) else document


def _status_error(response: httpx2.Response, content: bytes) -> APIStatusError:
    said: Any = content.decode(errors="replace").strip()
    with suppress(ValueError, RecursionError):
        said = json.loads(content)
    body = said.get("error", said) if isinstance(said, dict) else said
    message = body.get("message") if isinstance(body, dict) else None
    text = f"Error code: {response.status_code} - {message}"
    return APIStatusError(text, response=response, body=body)
