"""The feature ``retention``: deletes data after the retention periods of tenants."""

from typing import Final

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.retention.postgres import PostgresRetention
from caseworker.features.retention.sweep import Retention


def open_retention(parts: Parts) -> Opened:
    """Build the loop that deletes expired data of all features."""
    settings = parts.settings.retention
    sweeping = Retention(
        store=PostgresRetention(parts.engines.work, parts.drops),
        nearly_full=parts.service(PostgresQuotas).nearly_full,
        days={name: getattr(settings, f"{name}_days") for name in parts.drops},
        unlimited=settings.unlimited,
        sweep_seconds=settings.sweep_seconds,
    )
    return Opened(loops={"retention": sweeping.run})


RETENTION: Final = Feature(name="retention", tables=["retention"], open=open_retention)
