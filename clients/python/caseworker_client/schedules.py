"""Operations on schedules, which create runs at recurring times."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from caseworker_client.flow import Flow, Request, ask, fetch
from caseworker_client.models import Run
from caseworker_client.service_models import Schedule, ScheduleList
from caseworker_client.settings import Settings


def put_schedule(
    settings: Settings,
    name: str,
    cron: str,
    run: Mapping[str, Any],
    *,
    timezone: str = "UTC",
    overlap: str = "skip",
    catch_up: str = "one",
    max_catch_up: int = 10,
    paused: bool = False,
) -> Flow[Schedule]:
    """Create or replace a schedule; ``run`` is a body as for ``create_run``."""
    body = {
        "cron": cron,
        "run": dict(run),
        "timezone": timezone,
        "overlap": overlap,
        "catch_up": catch_up,
        "max_catch_up": max_catch_up,
        "paused": paused,
    }
    request = Request(method="PUT", path=_path(name), json=body)
    return (yield from fetch(settings, request, Schedule))


def get_schedule(settings: Settings, name: str) -> Flow[Schedule]:
    """Return a schedule with its next scheduled time and its latest run."""
    return (yield from fetch(settings, Request(method="GET", path=_path(name)), Schedule))


def list_schedules(
    settings: Settings, *, limit: int = 50, cursor: str | None = None
) -> Flow[ScheduleList]:
    """Return a page of schedules, by name."""
    params = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
    request = Request(method="GET", path="/schedules", params=params)
    return (yield from fetch(settings, request, ScheduleList))


def pause_schedule(settings: Settings, name: str) -> Flow[Schedule]:
    """Pause a schedule; its existing runs continue."""
    request = Request(method="POST", path=f"{_path(name)}/pause")
    return (yield from fetch(settings, request, Schedule))


def resume_schedule(settings: Settings, name: str) -> Flow[Schedule]:
    """Resume a schedule; times that passed while it was paused start no runs."""
    request = Request(method="POST", path=f"{_path(name)}/resume")
    return (yield from fetch(settings, request, Schedule))


def run_schedule(settings: Settings, name: str) -> Flow[Run]:
    """Create a run of a schedule now, in addition to its scheduled runs."""
    request = Request(method="POST", path=f"{_path(name)}/run", repeatable=False)
    return (yield from fetch(settings, request, Run))


def delete_schedule(settings: Settings, name: str) -> Flow[None]:
    """Delete a schedule; its runs are not affected."""
    yield from ask(settings, Request(method="DELETE", path=_path(name), repeatable=False))


def _path(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"
