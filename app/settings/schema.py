"""All settings with their defaults, and the keys that they have."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from app.settings import cases, service
from app.settings.values import Section, contradiction


class Settings(Section, BaseSettings, case_sensitive=True, hide_input_in_errors=True):
    """Everything that can be configured; `Settings()` is the defaults and reads nothing."""

    server: service.ServerSettings = service.ServerSettings()
    database: service.DatabaseSettings = service.DatabaseSettings()
    models: cases.ModelsSettings = cases.ModelsSettings()
    budget: cases.BudgetSettings = cases.BudgetSettings()
    act: cases.ActSettings = cases.ActSettings()
    verifier_thresholds: cases.VerifierSettings = cases.VerifierSettings()
    flags: cases.FlagSettings = cases.FlagSettings()
    retry: cases.RetrySettings = cases.RetrySettings()
    cancellation: service.CancellationSettings = service.CancellationSettings()
    trace: service.TraceSettings = service.TraceSettings()
    tools: cases.ToolSettings = cases.ToolSettings()
    worker: service.WorkerSettings = service.WorkerSettings()
    admission: cases.AdmissionSettings = cases.AdmissionSettings()
    auth: service.AuthSettings = service.AuthSettings()
    artifacts: service.ArtifactSettings = service.ArtifactSettings()
    events: service.EventSettings = service.EventSettings()
    shutdown: service.ShutdownSettings = service.ShutdownSettings()
    logging: service.LoggingSettings = service.LoggingSettings()

    @classmethod
    def settings_customise_sources(
        cls, *_: Any, **sources: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the arguments alone; the loader has sources of its own."""
        return (sources["init_settings"],)

    @model_validator(mode="after")
    def _steps_fit_the_mode(self) -> Self:
        """Refuse steps that the mode does not allow, but not the default of the other mode."""
        steps = self.act.max_steps
        changed = steps != cases.ActSettings.model_fields["max_steps"].default
        if self.flags.mode == "fallback_only" and steps > 1 and changed:
            problem = f"must be 0 or 1 while flags.mode is fallback_only (got {steps})"
            raise contradiction("act.max_steps", problem)
        return self


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: where it stands, and its field of the schema."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def variable(self) -> str:
        """Its name in the environment: ``BUDGET_MAX_SECONDS``."""
        return "_".join(self.path).upper()

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of its value; of generic ones, the origin."""
        union = get_origin(self.field.annotation) in (Union, UnionType)
        kinds = get_args(self.field.annotation) if union else (self.field.annotation,)
        bare = (kind.__origin__ if get_origin(kind) is Annotated else kind for kind in kinds)
        return tuple(get_origin(kind) or kind for kind in bare)


def keys_of(section: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield all keys in a section at ``path`` and below it, as they are declared."""
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from keys_of(type(field.default), (*path, name))
        else:
            yield Key((*path, name), field)
