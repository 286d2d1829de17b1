"""Settings of what a run may spend and how it retries."""

from app.settings.values import (
    Amount,
    Count,
    Factor,
    Megabytes,
    Positive,
    Seconds,
    Section,
    Share,
    Usd,
)


class LimitSettings(Section):
    """The limits of a run: null is unlimited, 0 allows nothing."""

    max_llm_calls_small: Count | None = None
    """Logical calls of the small model, reprompts included."""
    max_llm_calls_big: Count | None = None
    """Logical calls of the big model, reprompts included."""
    max_tool_calls: Count | None = None
    """Tool attempts."""
    max_seconds: Amount | None = None
    """Seconds from the first time a worker takes the run; waiting in a queue does not count."""
    max_tokens: Count | None = None
    """Input plus output tokens."""
    max_steps: Count | None = None
    """Step executions; further attempts of a step are not counted."""
    max_api_calls: Count | None = None
    """Attempts at model providers, retries included."""
    max_cost_usd: Usd | None = None
    """US dollars; refuses a model whose price is not known."""
    max_turns: Count | None = None
    """Turns of an agent."""


class BudgetSettings(LimitSettings):
    """What a case run may spend unless its caller says otherwise: null is unlimited, 0 nothing."""

    max_llm_calls_small: Count | None = 6
    """Logical calls of the small model, reprompts included."""
    max_llm_calls_big: Count | None = 2
    """Logical calls of the big model, reprompts included."""
    max_tool_calls: Count | None = 6
    """Tool attempts."""
    max_seconds: Amount | None = 60.0
    """Seconds from the first time a worker takes the run; waiting in a queue does not count."""
    wrap_up_reserve: Count = 1
    """Calls of the small model, out of its limit, that a case which would halt without them keeps
    for its final answer; a limit below 2 keeps none."""


class AdmissionSettings(LimitSettings):
    """What no run of any kind may exceed, whatever its caller says, and how many may wait."""

    max_queued: Positive = 10_000
    """Runs that may wait for a worker; more are answered 429."""
    max_graph_kb: Positive = 1024
    """Longest graph as JSON, in KiB, with all the graphs it contains; so are the next three."""
    max_graph_steps: Positive = 10_000
    """Steps of a graph."""
    max_graph_edges: Positive = 50_000
    """Edges of a graph."""
    max_graph_depth: Positive = 8
    """Graphs inside one another, the outermost included."""


class RetrySettings(Section):
    """How a failed call to a model provider or over the network is tried again."""

    max_retries: Count = 2
    """Further attempts after the first."""
    base_seconds: Amount = 0.5
    """Wait before the first retry."""
    factor: Factor = 2.0
    """What each further wait is multiplied by."""
    jitter: Share = 0.2
    """Share by which a wait may be longer or shorter by chance: 0.2 is plus or minus 20 %."""
    max_seconds: Seconds = 30.0
    """Longest wait between two attempts."""


class CancellationSettings(Section):
    """Wishes to stop a run that does not exist yet."""

    intent_ttl_seconds: Seconds = 3600.0
    """How long such a wish waits for its run."""
    max_early_intents: Count = 1000
    """How many such wishes a tenant may have waiting; more are answered 429."""


class ArtifactSettings(Section):
    """The files that runs make, such as pictures."""

    max_artifact_mb: Megabytes = 5
    """Largest file, in MiB; a tool that makes a larger one is told so."""
    max_run_mb: Positive = 50
    """All files of a run together, in MiB; at least max_artifact_mb."""
    max_per_run: Positive = 100
    """Files of a run."""


class EventSettings(Section):
    """The events of runs, as callers follow them."""

    max_streams: Positive = 500
    """Event streams that a process keeps open at once; more are answered 429."""
