"""All settings with their defaults."""

from typing import Self

from pydantic import model_validator

from app.settings.cases import ActSettings, FlagSettings, ToolSettings, VerifierSettings
from app.settings.execution import TraceSettings, WorkerSettings
from app.settings.limits import (
    AdmissionSettings,
    ArtifactSettings,
    BudgetSettings,
    CancellationSettings,
    EventSettings,
    RetrySettings,
)
from app.settings.models import ModelsSettings
from app.settings.service import (
    AuthSettings,
    DatabaseSettings,
    LoggingSettings,
    ServerSettings,
    ShutdownSettings,
)
from app.settings.values import Section


class ContradictionError(ValueError):
    """A value that is fine by itself and does not fit another one."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        """The dotted path of the value."""
        self.problem = problem


class Settings(Section):
    """Everything that can be configured; `Settings()` is the defaults and reads nothing."""

    server: ServerSettings = ServerSettings()
    database: DatabaseSettings = DatabaseSettings()
    models: ModelsSettings = ModelsSettings()
    budget: BudgetSettings = BudgetSettings()
    act: ActSettings = ActSettings()
    verifier_thresholds: VerifierSettings = VerifierSettings()
    flags: FlagSettings = FlagSettings()
    retry: RetrySettings = RetrySettings()
    cancellation: CancellationSettings = CancellationSettings()
    trace: TraceSettings = TraceSettings()
    tools: ToolSettings = ToolSettings()
    worker: WorkerSettings = WorkerSettings()
    admission: AdmissionSettings = AdmissionSettings()
    auth: AuthSettings = AuthSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    events: EventSettings = EventSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    logging: LoggingSettings = LoggingSettings()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Refuse values that contradict one another."""
        for tier, model in (("small", self.models.small), ("big", self.models.big)):
            if found := model.problem():
                raise ContradictionError(f"models.{tier}.{found[0]}", found[1])
        if found := self.tools.prices.problem():
            raise ContradictionError(f"tools.prices.{found[0]}", found[1])
        self._require_steps_of_the_mode()
        if self.worker.stale_after_seconds < 2 * self.worker.heartbeat_seconds:
            raise ContradictionError(
                "worker.stale_after_seconds", "must be at least twice worker.heartbeat_seconds"
            )
        if self.artifacts.max_run_mb < self.artifacts.max_artifact_mb:
            raise ContradictionError(
                "artifacts.max_run_mb", "must be at least artifacts.max_artifact_mb"
            )
        return self

    def _require_steps_of_the_mode(self) -> None:
        """Hold `act.max_steps` to what the mode allows (seed 002, requirement 24).

        Its default is left alone, since it is the default of the other mode.
        """
        untouched = self.act.max_steps == ActSettings().max_steps
        if self.flags.mode == "fallback_only" and self.act.max_steps > 1 and not untouched:
            raise ContradictionError(
                "act.max_steps",
                f"must be 0 or 1 while flags.mode is fallback_only (got {self.act.max_steps})",
            )
