"""A client of Caseworker: create runs, follow them, stop them, and see what they did."""

from caseworker_client.async_client import AsyncCaseworkerClient
from caseworker_client.errors import (
    ApiError,
    CaseworkerError,
    FieldError,
    ServiceUnreachableError,
    WaitTimeoutError,
)
from caseworker_client.models import (
    AgentList,
    Artifact,
    Call,
    CancelReceipt,
    Definition,
    Event,
    GraphList,
    Problem,
    Run,
    RunList,
    RunSummary,
    Stop,
    Trace,
    Usage,
    Validation,
)
from caseworker_client.settings import RetryPolicy
from caseworker_client.sync_client import CaseworkerClient
from caseworker_client.text import StreamedText, TextKey

__all__ = [
    "AgentList",
    "ApiError",
    "Artifact",
    "AsyncCaseworkerClient",
    "Call",
    "CancelReceipt",
    "CaseworkerClient",
    "CaseworkerError",
    "Definition",
    "Event",
    "FieldError",
    "GraphList",
    "Problem",
    "RetryPolicy",
    "Run",
    "RunList",
    "RunSummary",
    "ServiceUnreachableError",
    "Stop",
    "StreamedText",
    "TextKey",
    "Trace",
    "Usage",
    "Validation",
    "WaitTimeoutError",
]
