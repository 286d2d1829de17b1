"""Parses the error responses of endpoints and classifies the failures.

Text of an endpoint is redacted and truncated before an error message quotes it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caseworker.models.ports import ModelError, ModelFault
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.logs.secret_mask import SecretMask
from caseworker.platform.retry_after import retry_after_seconds

RAW_REPLY_BYTES = 4096
"""Maximum number of bytes of the reply body that are kept for a failed attempt."""

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
"""HTTP statuses that correspond to codes and types in error documents."""

_QUOTA_CODES = frozenset(
    {
        *("insufficient_quota", "exceeded_current_quota_error", "billing_hard_limit_reached"),
        *("billing_not_active", "insufficient_balance", "insufficient_user_quota"),
        *("billing_error", "1113", "1008"),  # GLM, MiniMax
    }
)
_QUOTA_WORDS = ("credit balance is too low", "insufficient balance", "insufficient credits")
"""Phrases that say the account's credit is exhausted, so that retries cannot help."""

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

# Parameters that request JSON, as they appear in error messages about them.
_FORM_WORDS = (
    *("response_format", "json_schema", "json_object", "tool_choice", "output_format"),
    *("output_config", "structured output", "tools"),
)
_SCHEMA_WORDS = ("invalid schema", "invalid_json_schema", "schema is invalid")
_UNREADABLE_WORDS = ("model produced output that does not match", "failed to parse input at pos")
"""llama.cpp's messages when it can parse the model's output neither as text nor as a tool call."""
_COMPLAINTS = re.compile(
    r"not support|unsupported|unrecognized|unknown|unexpected|not permitted|not allowed"
    r"|is allowed|extra|instead|deprecated|not available"
)
"""Phrases by which endpoints reject an unsupported parameter."""
_SEARCHED_CHARS = 20_000
_QUOTED_CHARS = 300
"""Maximum characters quoted from a provider's message."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The parsed contents of an endpoint's error document."""

    message: str
    codes: frozenset[str]
    """Values of the document's code, type and status fields, in lower case."""
    body: str
    """Text of the document, in lower case and truncated."""

    @property
    def status(self) -> int | None:
        """HTTP status that corresponds to the document's error code; None if none does."""
        for code in sorted(self.codes):
            if code.isdecimal() and 400 <= int(code) < 600:
                return int(code)
        statuses = (_STATUS_OF_CODE[code] for code in sorted(self.codes) if code in _STATUS_OF_CODE)
        return next(statuses, None)

    @property
    def is_quota(self) -> bool:
        """Whether the account's quota is exhausted, so that a retry cannot help."""
        return bool(self.codes & _QUOTA_CODES) or any(word in self.body for word in _QUOTA_WORDS)

    @property
    def redacted_suffix(self) -> str:
        """The redacted error message with a colon in front, or an empty string."""
        text = " ".join(self.message[:_SEARCHED_CHARS].split())
        return f": {redact_text(text, max_chars=_QUOTED_CHARS)}" if text else ""

    def complains_of(self, parameter: str) -> bool:
        """Return whether the error document rejects the given request parameter."""
        match = re.search(rf"\b{parameter}\b", self.body)
        return match is not None and _COMPLAINTS.search(self.body) is not None


_MAY_FAIL = frozenset({"error", "response", "base_resp"})
"""Fields of a chat completion that may have an error."""


def report_in(document: Any) -> ErrorReport:
    """Parse an error document of any supported format."""
    error = _innermost(document)
    body = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    body = body[:_SEARCHED_CHARS].lower()
    if not isinstance(error, dict):
        return ErrorReport(error if isinstance(error, str) else "", frozenset(), body)
    codes = (error.get(name) for name in ("code", "type", "status", "status_code", "param"))
    error_codes = frozenset(str(code).lower() for code in codes if isinstance(code, str | int))
    return ErrorReport(": ".join(_messages(error)), error_codes, body)


def error_in(document: Any) -> Any:
    """Return the error in a document that was sent with HTTP 200; None if it has no error."""
    if isinstance(document, list) and document:
        return error_in(document[0])  # Gemini
    if not isinstance(document, dict):
        return None
    choices = document.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and _MAY_FAIL.isdisjoint(document):
        choice = choices[0]
        if isinstance(choice, dict) and "error" not in choice:
            return None  # a usual chunk
    entries = choices if isinstance(choices, list) else []
    for each in (document, document.get("response"), *entries):
        if isinstance(each, dict) and each.get("error"):
            return each["error"]
    state = document.get("base_resp")  # MiniMax
    if isinstance(state, dict) and state.get("status_code"):
        return state
    for name in ("choices", "content", "usage"):
        if document.get(name) is not None:
            return None
    if re.match(r"message|content_block|ping", str(document.get("type"))):
        return None
    return next((document for _ in _messages(document)), None)


def _innermost(document: Any) -> Any:
    if isinstance(document, list) and document:
        return _innermost(document[0])
    inner = document.get("error") if isinstance(document, dict) else None
    return _innermost(inner) if inner else document


def _messages(error: Mapping[str, Any]) -> Iterator[str]:
    for name in ("message", "detail", "msg", "status_msg", "error_description", "errors"):
        message = error.get(name)
        if isinstance(message, list) and message and isinstance(message[0], dict):
            message = message[0].get("msg") or message[0].get("message")  # FastAPI, Cloudflare
        if isinstance(message, str) and message.strip():
            yield message
            break
    metadata = error.get("metadata")  # OpenRouter: the message of the upstream provider
    if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):
        yield metadata["raw"]


@dataclass(slots=True, eq=False)
class Failures:
    """Builds the ModelError of one attempt to call a model endpoint.

    It masks the key and keeps the start of the reply's body.
    """

    _provider: str
    _structured: bool
    """Whether a request parameter asked for JSON output."""
    mask: SecretMask
    """Masks the key of the endpoint."""
    raw: bytearray = field(default_factory=bytearray)
    """The first ``RAW_REPLY_BYTES`` of the reply's body."""

    def error(self, words: str, *, retryable: bool, **about: Any) -> ModelError:
        """Build an error with this message and the kept part of the reply body."""
        raw = self.mask.apply(self.raw.decode(errors="replace")) or None
        message = f"{self._provider}: {words}"
        return ModelError(message, retryable=retryable, raw_reply=raw, **about)

    def of_status(
        self, status: int, report: ErrorReport, headers: Mapping[str, str], *, adapts: bool
    ) -> ModelError:
        """Build the error for a reply with an HTTP status other than 200.

        ``adapts`` is True if the next request will omit the rejected parameter.
        """
        if 300 <= status < 400:
            words = f"the endpoint redirects elsewhere (HTTP {status})"
            return self.error(words, retryable=False, status=status)
        where = f" (HTTP {status}){report.redacted_suffix}"
        if adapts:
            words = f"a parameter is left out from now on{where}"
            return self.error(words, retryable=True, status=status)
        milliseconds = retry_after_seconds(headers.get("retry-after-ms", ""))
        seconds = retry_after_seconds(headers.get("retry-after", ""))
        delay = seconds if milliseconds is None else milliseconds / 1000
        return self._refused(status, report, where, status=status, retry_after_seconds=delay)

    def of_document(self, report: ErrorReport, *, has_started: bool) -> ModelError:
        """Build the error for an error document that was sent with HTTP 200.

        ``has_started`` is True if part of an answer arrived before the error. The error then has no
        status, so that the partial answer is charged.
        """
        code = report.status
        if not has_started and code is not None:
            return self._refused(
                code, report, f" (code {code}){report.redacted_suffix}", status=code
            )
        usual = "the stream broke off" if has_started else "the provider reports an error"
        return self._refused(code, report, report.redacted_suffix, usual)

    def _refused(
        self,
        code: int | None,
        report: ErrorReport,
        where: str,
        usual: str | None = None,
        **about: Any,
    ) -> ModelError:
        """Return the error for a status code and an error document."""
        fault, retryable = None, False
        if any(words in report.body for words in _UNREADABLE_WORDS):
            fault = ModelFault.UNREADABLE_REPLY
            words, where = (
                "the endpoint cannot read what the model has written",
                report.redacted_suffix,
            )
        elif report.is_quota:
            fault, words = ModelFault.MISCONFIGURED, usual or _WORDS[402]
        elif self._structured and code in _FORM_STATUSES and (form_fault := _form_fault(report)):
            fault, words = form_fault, "JSON cannot be asked for in this way"
        else:
            fault = ModelFault.MISCONFIGURED if code in _MISCONFIGURED else None
            retryable = code is None or code in _RETRYABLE or code >= 500
            words = usual or _words_of(code or 0, report)
        return self.error(f"{words}{where}", retryable=retryable, fault=fault, **about)


def _words_of(status: int, report: ErrorReport) -> str:
    if any(each in report.body for each in _PROMPT_TOO_LONG):
        return "the prompt is too long for the model"
    usual = "the provider failed" if status >= 500 else "the request was rejected"
    return _WORDS.get(status, usual)


def _form_fault(report: ErrorReport) -> ModelFault | None:
    """Return the fault if the endpoint rejects the parameter that requests JSON, else None."""
    if any(words in report.body for words in _SCHEMA_WORDS):
        return ModelFault.SCHEMA_REFUSED
    return ModelFault.FORM_UNSUPPORTED if any(word in report.body for word in _FORM_WORDS) else None
