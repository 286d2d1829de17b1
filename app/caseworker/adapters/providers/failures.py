"""What an endpoint says about a failure, and what kind of failure that is.

A message repeats what the endpoint wrote only redacted and cut.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from caseworker.adapters.retry_after import seconds_asked
from caseworker.llm.ports import ModelError, ModelFault
from caseworker.observability.redaction import redact_text

RAW_REPLY_BYTES = 4096
"""How much of the body of a failed attempt's reply is kept."""

_RETRYABLE = frozenset({408, 409, 429})
_MISCONFIGURED = frozenset({401, 402, 403, 404})
_FORM_STATUSES = frozenset({400, 422})

_STATUS_OF_CODE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "api_error": 500,
    "overloaded_error": 529,
    "timeout_error": 504,
    "1000": 500,  # MiniMax
    "1002": 429,
    "1004": 401,
    "2013": 400,
}
"""HTTP statuses that the codes and types of error documents stand for."""

_QUOTA_CODES = frozenset(
    {
        *("insufficient_quota", "exceeded_current_quota_error", "billing_hard_limit_reached"),
        *("billing_not_active", "insufficient_balance", "insufficient_user_quota"),
        *("billing_error", "1113", "1008"),  # GLM, MiniMax
    }
)
_QUOTA_WORDS = ("credit balance is too low", "insufficient balance", "insufficient credits")
"""What says that no retry helps until somebody pays."""

_WORDS = {
    401: "the API key was not accepted",
    402: "the account's quota is used up",
    403: "the API key was not accepted",
    404: "the model or the endpoint does not exist",
    429: "too many requests",
    503: "the provider is overloaded",
    529: "the provider is overloaded",
}
_PROMPT_TOO_LONG = ("context_length_exceeded", "maximum context length", "prompt is too long")

# The names of the parameters by which JSON is asked for, and how endpoints complain of them.
_FORM_WORDS = (
    *("response_format", "json_schema", "json_object", "tool_choice", "output_format"),
    *("output_config", "structured output", "tools"),
)
_SCHEMA_WORDS = ("invalid schema", "invalid_json_schema", "schema is invalid")
_UNREADABLE_WORDS = ("model produced output that does not match", "failed to parse input at pos")
"""How llama.cpp says that what its model has written is neither text nor the call of a tool."""
_COMPLAINTS = re.compile(
    r"not support|unsupported|unrecognized|unknown|unexpected|not permitted|not allowed"
    r"|is allowed|extra|instead|deprecated|not available"
)
"""How endpoints complain of a parameter that they do not take at all."""
_SEARCHED_CHARS = 20_000
_SAID_CHARS = 300
"""How much of a provider's message is repeated."""


@dataclass(frozen=True, slots=True)
class Said:
    """What an error document says."""

    message: str
    codes: frozenset[str]
    """Its code, type and status, in lower case."""
    body: str
    """The document, in lower case and cut."""

    @property
    def status(self) -> int | None:
        """The HTTP status that its code stands for; None if it has none."""
        for code in sorted(self.codes):
            if code.isdecimal() and 400 <= int(code) < 600:
                return int(code)
        known = (_STATUS_OF_CODE[code] for code in sorted(self.codes) if code in _STATUS_OF_CODE)
        return next(known, None)

    @property
    def is_quota(self) -> bool:
        """Whether the account has nothing left, which no retry mends."""
        return bool(self.codes & _QUOTA_CODES) or any(word in self.body for word in _QUOTA_WORDS)

    @property
    def shown(self) -> str:
        """The message as it may be shown, after a colon; "" if there is none."""
        text = " ".join(self.message[:_SEARCHED_CHARS].split())
        return f": {redact_text(text, max_chars=_SAID_CHARS)}" if text else ""

    def complains_of(self, parameter: str) -> bool:
        """Return whether the endpoint does not take a parameter of the request."""
        named = re.search(rf"\b{parameter}\b", self.body)
        return named is not None and _COMPLAINTS.search(self.body) is not None


def said_in(document: Any) -> Said:
    """Read an error document, whatever form it has."""
    error = _innermost(document)
    body = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    body = body[:_SEARCHED_CHARS].lower()
    if not isinstance(error, Mapping):
        return Said(error if isinstance(error, str) else "", frozenset(), body)
    codes = (error.get(name) for name in ("code", "type", "status", "status_code", "param"))
    known = frozenset(str(code).lower() for code in codes if isinstance(code, str | int))
    return Said(": ".join(_messages(error)), known, body)


def error_in(document: Any) -> Any:
    """Return the error that a document of a reply says under status 200; None if it says none."""
    if isinstance(document, list) and document:
        return error_in(document[0])  # Gemini
    if not isinstance(document, Mapping):
        return None
    choices = document.get("choices")
    entries = choices if isinstance(choices, list) else []
    for each in (document, *entries):
        if isinstance(each, Mapping) and each.get("error"):
            return each["error"]
    state = document.get("base_resp")  # MiniMax
    if isinstance(state, Mapping) and state.get("status_code"):
        return state
    is_reply = any(document.get(name) is not None for name in ("choices", "content", "usage"))
    is_reply |= re.match(r"message|content_block|ping", str(document.get("type"))) is not None
    return None if is_reply else next((document for _ in _messages(document)), None)


def _innermost(document: Any) -> Any:
    if isinstance(document, list) and document:
        return _innermost(document[0])
    inner = document.get("error") if isinstance(document, Mapping) else None
    return _innermost(inner) if inner else document


def _messages(error: Mapping[str, Any]) -> Iterator[str]:
    for name in ("message", "detail", "msg", "status_msg", "error_description", "errors"):
        said = error.get(name)
        if isinstance(said, list) and said and isinstance(said[0], Mapping):
            said = said[0].get("msg") or said[0].get("message")  # FastAPI, Cloudflare
        if isinstance(said, str) and said.strip():
            yield said
            break
    metadata = error.get("metadata")  # OpenRouter: what the provider behind it said
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        yield metadata["raw"]


class Failures:
    """Makes the errors of one attempt.

    ``structured`` if it asked for JSON by a parameter.
    """

    def __init__(self, provider: str, *, structured: bool) -> None:
        self._provider = provider
        self._structured = structured
        self.raw = bytearray()
        """The beginning of the reply's body."""

    def keep(self, part: bytes) -> None:
        """Keep a part of the reply's body, as far as there is room."""
        self.raw += part[: RAW_REPLY_BYTES - len(self.raw)]

    def error(self, words: str, *, retryable: bool, **about: Any) -> ModelError:
        """Return an error with these words and what came of the reply."""
        raw = self.raw.decode(errors="replace") or None
        message = f"{self._provider}: {words}"
        return ModelError(message, retryable=retryable, raw_reply=raw, **about)

    def of_status(
        self, status: int, said: Said, headers: Mapping[str, str], *, adapts: bool
    ) -> ModelError:
        """Return the error of a reply with another HTTP status than 200.

        ``adapts`` if the next request leaves out what the endpoint complains of.
        """
        if 300 <= status < 400:
            words = f"the endpoint redirects elsewhere (HTTP {status})"
            return self.error(words, retryable=False, status=status)
        where = f" (HTTP {status}){said.shown}"
        if adapts:
            words = f"a parameter is left out from now on{where}"
            return self.error(words, retryable=True, status=status)
        milliseconds = seconds_asked(headers.get("retry-after-ms", ""))
        seconds = seconds_asked(headers.get("retry-after", ""))
        asked = seconds if milliseconds is None else milliseconds / 1000
        return self._refused(status, said, where, status=status, retry_after_seconds=asked)

    def of_document(self, said: Said, *, begun: bool) -> ModelError:
        """Return the error of a reply that says one under HTTP 200.

        ``begun`` if there was a part of an answer before: it was charged, so there is no status.
        """
        code = said.status
        if not begun and code is not None:
            return self._refused(code, said, f" (code {code}){said.shown}", status=code)
        usual = "the stream broke off" if begun else "the provider reports an error"
        return self._refused(code, said, said.shown, usual)

    def _refused(
        self, code: int | None, said: Said, where: str, usual: str | None = None, **about: Any
    ) -> ModelError:
        """Return the error that a code and an error document stand for."""
        fault, retryable = None, False
        if any(words in said.body for words in _UNREADABLE_WORDS):
            fault = ModelFault.UNREADABLE_REPLY
            words, where = "the endpoint cannot read what the model has written", said.shown
        elif said.is_quota:
            fault, words = ModelFault.MISCONFIGURED, usual or _WORDS[402]
        elif self._structured and code in _FORM_STATUSES and (found := _form_fault(said)):
            fault, words = found, "JSON cannot be asked for in this way"
        else:
            fault = ModelFault.MISCONFIGURED if code in _MISCONFIGURED else None
            retryable = code is None or code in _RETRYABLE or code >= 500
            words = usual or _words_of(code or 0, said)
        return self.error(f"{words}{where}", retryable=retryable, fault=fault, **about)


def _words_of(status: int, said: Said) -> str:
    if any(each in said.body for each in _PROMPT_TOO_LONG):
        return "the prompt is too long for the model"
    usual = "the provider failed" if status >= 500 else "the request was rejected"
    return _WORDS.get(status, usual)


def _form_fault(said: Said) -> ModelFault | None:
    """Return the fault, if the endpoint names the parameter by which it was asked for JSON."""
    if any(words in said.body for words in _SCHEMA_WORDS):
        return ModelFault.SCHEMA_REFUSED
    return ModelFault.FORM_UNSUPPORTED if any(word in said.body for word in _FORM_WORDS) else None
