"""Parameters that routes share."""

from typing import Annotated

from fastapi import Path

from app.api.field_types import RunId

RunIdPath = Annotated[RunId, Path(description="The id of a run.")]
