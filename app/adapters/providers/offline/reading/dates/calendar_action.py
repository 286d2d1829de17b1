"""The end of every question about dates: its zone, and the tool call."""

from collections.abc import Mapping
from typing import Any

from app.adapters.providers.offline.reading.dates.zones import read_in_zone
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.frames import read_closing

CALENDAR = "calendar"


def calendar_action(cursor: Cursor, args: Mapping[str, Any]) -> Action:
    """Read the rest of the question, and return the call of the calendar."""
    zone = cursor.attempt(read_in_zone)
    read_closing(cursor)
    return Action(CALENDAR, dict(args) if zone is None else {**args, "timezone": zone})
