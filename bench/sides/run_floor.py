"""The floor of a durable run behind FastAPI: insert, run, update, two commits; and an echo."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from psycopg_pool import AsyncConnectionPool

from bench.serving import serve

CREATE = """
CREATE TABLE IF NOT EXISTS floor_runs (
    id bigserial PRIMARY KEY, status text NOT NULL, request jsonb NOT NULL, result jsonb
)
"""
INSERT = "INSERT INTO floor_runs (status, request) VALUES ('running', %s::jsonb) RETURNING id"
UPDATE = "UPDATE floor_runs SET status = 'completed', result = %s::jsonb WHERE id = %s"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold a pool of connections with autocommit."""
    pool = AsyncConnectionPool(
        os.environ["DATABASE_URL"],
        min_size=16,
        max_size=16,
        kwargs={"autocommit": True, "prepare_threshold": 0},
        open=False,
    )
    async with pool:
        async with pool.connection() as connection:
            await connection.execute(CREATE)
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/echo")
async def echo(request: Request) -> JSONResponse:
    """Answer with the request body."""
    return JSONResponse(await request.json(), 202)


@app.post("/runs")
async def run(request: Request) -> JSONResponse:
    """Insert, do nothing, update."""
    asked = await request.body()
    async with app.state.pool.connection() as connection:
        cursor = await connection.execute(INSERT, (asked.decode(),))
        row: Any = await cursor.fetchone()
        await connection.execute(UPDATE, ('{"answer": "4"}', row[0]))
    return JSONResponse({"id": row[0], "status": "completed"})


if __name__ == "__main__":
    serve(app)
