"""For whatever watches over the process: it may come from anywhere."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request

from app.api import problem_types as types
from app.api.documentation import answers, operation_id
from app.api.problems import ProblemError
from app.api.services import PartState, Readiness

router = APIRouter(tags=["operation"], generate_unique_id_function=operation_id)


@dataclass(frozen=True, slots=True)
class Health:
    """The process answers."""

    status: str = "alive"


@dataclass(frozen=True, slots=True)
class Ready:
    """Every part of the service works."""

    status: str
    parts: Mapping[str, str]


@router.get("/healthz", responses=answers())
async def healthz() -> Health:
    """Tell that the process lives; asks nobody else."""
    return Health()


@router.get("/readyz", responses=answers(types.NOT_READY))
async def readyz(request: Request) -> Ready:
    """Tell whether the service can take requests, and if not, which part is missing."""
    states = await _states(*request.app.state.readiness)
    parts = {
        name: state.message or ("ready" if state.ready else "not ready")
        for name, state in states.items()
    }
    if not all(state.ready for state in states.values()):
        raise ProblemError(types.NOT_READY, parts=parts)
    return Ready("ready", parts)


async def _states(readiness: Readiness, seconds: float) -> Mapping[str, PartState]:
    try:
        async with asyncio.timeout(seconds):
            return await readiness.check()
    except TimeoutError:
        return {"check": PartState(False, f"The parts did not answer within {seconds:g} seconds.")}
