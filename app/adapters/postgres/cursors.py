"""Where a page of runs ended, as text that callers hand back."""

import base64
import binascii
import json
import re
from datetime import datetime
from typing import Any

from sqlalchemy import literal, tuple_
from sqlalchemy.sql import ColumnElement

from app.runs.errors import InvalidRunError
from app.runs.run import Run

_PLAIN = re.compile(r"[\x20-\x7e]{1,200}")
"""What a run id may consist of, and more; nothing that the database would refuse."""


def cursor_of(run: Run) -> str:
    """Return the cursor after a run."""
    place = json.dumps([run.created_at.isoformat(), run.key.run_id])
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def after(cursor: str) -> ColumnElement[Any]:
    """Return what rows after a cursor are less than.

    Raises:
        InvalidRunError: the cursor is not one of ours.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        created_at, run_id = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
        if not _PLAIN.fullmatch(run_id):
            raise ValueError(run_id)
        return tuple_(literal(datetime.fromisoformat(created_at)), literal(run_id))
    except (ValueError, TypeError, RecursionError, binascii.Error):
        message = "This is not a cursor of this service; leave it out to start at the newest run."
        raise InvalidRunError("cursor", message) from None
