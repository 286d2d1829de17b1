"""API schemas for results, usage and early ends of runs.

These objects are stored as they are shown, so the models only document them and are never
instantiated. Fields with a default may be missing.
"""

from datetime import datetime

from caseworker.core.budget.stops import StopKind
from caseworker.platform.http.bodies import View


class Usage(View):
    """Resources used by a run, including estimates; so far, if the run has not ended."""

    tokens: int
    """Number of input and output tokens."""
    seconds: float
    steps: int
    """Number of executed steps; retries of a step are not counted."""
    api_calls: int
    """Number of requests to model providers, including retries."""
    cost_usd: float | None
    """Cost in US dollars; null if a model with an unknown price was called."""
    llm_calls: int = 0
    """Number of model calls; retries of a call are not counted."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    """Number of tool calls, including retries."""
    turns: int = 0
    """Number of turns: iterations of an agent that call the model and then tools."""
    tokens_estimated: int = 0
    """Number of tokens in ``tokens`` that are estimated because a request got no response."""
    cost_usd_estimated: float = 0
    """Part of the cost that is estimated, in US dollars."""
    cost_usd_known: float | None = None
    """Cost of the calls with a known price, in US dollars; only present if other calls have an
    unknown price."""
    unpriced_calls: int = 0
    """Number of requests to models with an unknown price."""


class RunStop(View):
    """The reason why a run ended early."""

    kind: StopKind
    dimension: str | None = None
    """Budget dimension whose limit was exceeded, such as ``seconds`` or ``tool_calls``; null for
    other reasons."""
    scope: str | None = None
    """Where the limit applied: ``run``, the path of a step, or a quota such as ``quota of the
    tenant, day``."""
    limit: float | None = None
    used: float | None = None
    reserved: float | None = None
    """Amount of the dimension that calls in progress had reserved."""
    requested: float | None = None
    """Amount of the dimension that was requested and refused."""
    resets_at: datetime | None = None
    """Time at which the period of the limit ends, for a quota of the tenant; null otherwise."""
    requested_by: str | None = None
    reason: str | None = None
    step_id: str | None = None
    """ID of the step that failed, if the run stopped because of an error; otherwise null."""
    error_class: str | None = None
    """Error class, if the run stopped because of an error; otherwise null."""
    call: str | None = None
    """Name of the tool, function or code agent that ended the processes of the run, if its kind is
    ``poisoned``; otherwise null."""
    at: datetime | None = None


class UsedModel(View):
    """A model that answered calls, and their number."""

    provider: str
    model: str
    calls: int
