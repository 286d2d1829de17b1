"""Every way a model call can fail, told in words that are safe to log.

The libraries put the provider's body, and sometimes the prompt, into their messages. None of that
is repeated here: a failure is told by its kind, its HTTP status and the names of its classes.
"""

from collections.abc import Iterator
from http import HTTPStatus

from pydantic_ai import exceptions

from app.adapters.providers.pydantic_ai.transport import ReplyRefusedError
from app.llm.ports import ModelError, ModelFault

_RETRYABLE_STATUSES = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS}
)

# The first class that fits is the most telling one.
_HTTP_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.ModelQuotaExceededError, "the account's quota is used up"),
    (exceptions.ModelRateLimitError, "too many requests"),
    (exceptions.ModelOverloadedError, "the provider is overloaded"),
    (exceptions.ModelContextWindowExceededError, "the prompt is too long for the model"),
    (exceptions.ModelAuthenticationError, "the API key was not accepted"),
    (exceptions.ModelNotFoundError, "the model or the endpoint does not exist"),
    (exceptions.ModelRequestRejectedError, "the request was rejected"),
)

_FORM_STATUSES = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})

# What the protocols call the parameters by which we ask for JSON, and the ways to complain of them.
_FORM_WORDS = (
    *("response_format", "json_schema", "json_object", "tool_choice", "output_format"),
    *("output_config", "structured output", "tools"),
)
_SCHEMA_WORDS = ("invalid schema", "invalid_json_schema", "schema is invalid")
_SEARCHED_CHARS = 20_000


def model_error(error: Exception, provider: str, *, structured: bool = False) -> ModelError:
    """Translate whatever an attempt raised; ``structured`` if it asked for JSON by a parameter.

    A reply that cannot be read counts as retryable although its status was 200: it is the
    provider's fault, as with a 502, and mostly a gateway's passing trouble. A reply that was
    refused for its size would be as long the next time, so that one is not.
    """
    if isinstance(error, exceptions.ModelHTTPError):
        return _of_status(error, provider, structured=structured)
    if any(isinstance(cause, ReplyRefusedError) for cause in _causes(error)):
        return ModelError(f"{provider}: the reply is too long or compressed", retryable=False)
    if isinstance(error, TimeoutError | exceptions.ModelTimeoutError):
        return ModelError(f"{provider}: no answer in time", retryable=True)
    if isinstance(error, exceptions.ModelConnectionError):
        return ModelError(f"{provider}: the connection failed or was cut", retryable=True)
    if isinstance(error, exceptions.UserError | UnicodeEncodeError):
        kind = type(error).__name__
        return ModelError(f"{provider}: the request cannot be sent ({kind})", retryable=False)
    if (status := _redirect_status(error)) is not None:
        message = f"{provider}: the endpoint redirects elsewhere (HTTP {status})"
        return ModelError(message, retryable=False, status=status)
    kind = type(error).__name__
    return ModelError(f"{provider}: the reply cannot be read ({kind})", retryable=True)


def _of_status(error: exceptions.ModelHTTPError, provider: str, *, structured: bool) -> ModelError:
    status = error.status_code
    fault = _form_fault(error) if structured and status in _FORM_STATUSES else None
    if fault is not None:
        message = f"{provider}: JSON cannot be asked for in this way (HTTP {status})"
        return ModelError(message, retryable=False, status=status, fault=fault)
    fitting = (words for kind, words in _HTTP_FAILURES if isinstance(error, kind))
    words = next(fitting, "the provider failed" if status >= 500 else "the request was refused")
    return ModelError(
        f"{provider}: {words} (HTTP {status})",
        retryable=status in _RETRYABLE_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        status=status,
        retry_after_seconds=error.retry_after,
    )


def _form_fault(error: exceptions.ModelHTTPError) -> ModelFault | None:
    """Tell whether the endpoint names the parameter by which it was asked for JSON."""
    said = str(error.body)[:_SEARCHED_CHARS].lower()
    if any(words in said for words in _SCHEMA_WORDS):
        return ModelFault.SCHEMA_REFUSED
    return ModelFault.FORM_UNSUPPORTED if any(word in said for word in _FORM_WORDS) else None


def _redirect_status(error: Exception) -> int | None:
    for cause in _causes(error):
        status = getattr(cause, "status_code", None)
        if isinstance(status, int) and 300 <= status < 400:
            return status
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__
