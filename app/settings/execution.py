"""Settings of how runs are executed and recorded."""

from typing import Literal

from app.settings.values import Positive, Seconds, Section


class WorkerSettings(Section):
    """The part of a process that executes runs."""

    enabled: bool = True
    """Whether `caseworker serve` executes runs itself, or leaves them to workers."""
    max_runs: Positive = 1000
    """Runs that a process executes at once."""
    max_parallel_steps: Positive = 64
    """Steps of one run that work at once, however wide its graphs are."""
    heartbeat_seconds: Seconds = 2.0
    """How often a process says that it lives, and looks for wishes to stop."""
    stale_after_seconds: Seconds = 10.0
    """Silence after which a process counts as dead and its runs are taken over; at least twice
    heartbeat_seconds."""
    max_attempts: Positive = 3
    """Workers that a run may lose before it fails."""
    poll_seconds: Seconds = 0.5
    """How often a worker looks into the queue when no notification comes."""
    cancel_grace_seconds: Seconds = 1.0
    """How long a call or step may take to end after it was cancelled; then it is abandoned."""


class TraceSettings(Section):
    """What is recorded of a run besides its structure."""

    payloads: Literal["redacted", "none", "full"] = "redacted"
    """Inputs, outputs and prompts in traces: without secrets, not at all, or as they are."""
    snapshot_interval_seconds: Seconds = 2.0
    """Least time between two stored snapshots of a run that is at work."""
