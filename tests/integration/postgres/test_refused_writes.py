"""A write that the database rejects fails alone and is not treated as an outage."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import JSON, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.connections import is_contended, is_passing, is_unavailable
from caseworker.platform.postgres.engines import transaction
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.errors import InvalidRunError
from caseworker.runs.ports import JournalWrite, RunFilter
from caseworker.runs.run import CallRecord, RunKey
from tests.support.stores import (
    CANCEL_REQUEST,
    Stores,
    end_of,
    graph_with_calls,
    new_run,
    records_of,
)

KEY = RunKey("default", "case-1")


async def test_what_no_text_may_hold_is_replaced_in_every_value(stores: Stores) -> None:
    """This holds for direct queries through the pools and for every type of column."""
    for kind in (JSON, JSONB):
        async with transaction(stores.engines.work) as connection:
            value = await connection.scalar(select(literal({"x": "\ud800", "y": "\x00"}, kind)))
        assert value == {"x": "\ufffd", "y": "\ufffd"}


def call_with(value: Any) -> CallRecord:
    *_, call = records_of(graph_with_calls("case-1"))
    return replace(call, value=value)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="not a number"),
        pytest.param(10**5000, id="an integer that nobody reads back"),
        pytest.param(nested(100_000), id="deeper than can be written"),
        pytest.param({1, 2}, id="not JSON"),
    ],
)
async def test_a_write_that_cannot_be_stored_fails_alone(stores: Stores, value: Any) -> None:
    """Other writes of the batch succeed, and so does the next one of the same run."""
    run = (await stores.runs.accept(new_run("case-1"), worker_id="w1")).run
    other = (await stores.runs.accept(new_run("other"), worker_id="w1")).run
    bad = JournalWrite(key=run.key, fence=1, calls=(call_with(value),))
    async with asyncio.TaskGroup() as group:
        journal = stores.journal
        refused = group.create_task(refusal(journal.write(bad)))
        accepted = group.create_task(stores.runs.accept(new_run("third"), worker_id="w1"))
        finish_result = group.create_task(journal.finish(end_of(other)))

    assert isinstance(refused.result(), ValueError | TypeError | RecursionError)
    assert accepted.result().created
    assert finish_result.result().done
    good = JournalWrite(key=run.key, fence=1, calls=(call_with("fine"),))
    assert (await stores.journal.write(good)).owned


async def test_an_id_that_is_too_long_for_an_index_is_refused(stores: Stores) -> None:
    """A long ID is refused alone and at once, and not treated as an outage."""
    long = new_run("".join(f"{n:x}" for n in range(10_000)))
    async with asyncio.timeout(150), asyncio.TaskGroup() as group:
        refused = group.create_task(refusal(stores.runs.accept(long, worker_id="w1")))
        accepted = group.create_task(stores.runs.accept(new_run("case-1"), worker_id="w1"))
    queued = await refusal(stores.runs.accept(long, worker_id=None))
    early = await refusal(stores.runs.cancel(long.key, CANCEL_REQUEST))

    for error in (refused.result(), queued):
        assert isinstance(error, psycopg.errors.ProgramLimitExceeded)
    assert accepted.result().created
    assert isinstance(early, DBAPIError)
    assert isinstance(early.orig, psycopg.errors.ProgramLimitExceeded)


async def test_what_a_provider_wrote_is_stored_with_marks_for_what_cannot_be(
    stores: Stores,
) -> None:
    """NUL and lone surrogates are replaced in values and keys, in the journal and in the end."""
    written = {
        "a\x00b": ["\ud800", "x\udc00y", "\U0001f600", "\\u0000", "\ufeff", {"\udfff": None}]
    }
    stored = {
        "a\ufffdb": ["\ufffd", "x\ufffdy", "\U0001f600", "\\u0000", "\ufeff", {"\ufffd": None}]
    }
    run = (await stores.runs.accept(new_run("case-1"), worker_id="w1")).run
    root, _ = records_of(graph_with_calls("case-1"))
    calls = (root, call_with(written))
    await stores.journal.write(JournalWrite(key=KEY, fence=1, calls=calls))

    await stores.journal.finish(end_of(run, result=written))
    ended = await stores.runs.get(KEY)
    assert ended is not None
    assert ended.result == stored
    assert [record.value for record in await stores.runs.calls(KEY)] == [None, stored]


async def test_what_a_run_was_accepted_with_comes_back_as_it_was(stores: Stores) -> None:
    """Every character and key that JSON allows is preserved."""
    metadata = {"\u00e4\u2028\x7f\x1f": ["\U0001f600", 1.5, -0.0, 2**60, None, True, {"": []}]}
    for worker_id, name in (("w1", "claimed"), (None, "queued")):
        new = replace(new_run(name, text="\u0130 \U0001f600"), metadata=metadata)
        await stores.runs.accept(new, worker_id=worker_id)
        stored = await stores.runs.get(new.key)

        assert stored is not None
        assert (stored.metadata, stored.request) == (metadata, new.request)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("\\u0000 \\ud800", "\\u0000 \\ud800"),
        (10**30, 10**30),
        (1e-7, 1e-7),
        ([[]] * 300, [[]] * 300),
        ({1: 2}, {"1": 2}),
    ],
    ids=("NUL", "half a pair", "text of escapes", "long integer", "exponent", "wide", "number key"),
)
def test_what_is_alone_in_a_row_is_written_so_that_it_can_be_stored(
    value: object, stored: object
) -> None:
    """Each value is tested separately, so that one fix cannot hide a missing one."""
    assert json.loads(dump({"value": value})) == {"value": stored}


def test_plain_values_are_written_as_they_are() -> None:
    """Plain values are not scanned a second time."""
    assert dump({"a": [1, 2.5, None, "\u00e4"]}) == '{"a":[1,2.5,null,"\u00e4"]}'


@pytest.mark.parametrize(
    ("code", "away", "contended", "passing"),
    [
        ("08006", True, False, True),
        ("57P01", True, False, True),
        ("57P03", True, False, True),
        ("53300", True, False, True),
        ("53100", True, False, True),
        ("25006", True, False, True),
        ("53200", False, False, True),
        ("40001", False, True, True),
        ("40P01", False, True, True),
        ("55P03", False, True, True),
        ("57014", False, False, True),
        ("54000", False, False, False),
        ("22P05", False, False, False),
        ("23505", False, False, False),
        ("42P01", False, False, False),
    ],
)
async def test_an_error_tells_whether_to_try_again(
    stores: Stores, code: str, away: bool, contended: bool, passing: bool
) -> None:
    """The SQLSTATE of the server decides; callers of the store get only errors they can handle."""
    statement = text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$")
    with pytest.raises(StoreUnavailableError if passing else DBAPIError) as raised:
        async with transaction(stores.engines.work) as connection:
            await connection.execute(statement)

    error = raised.value.__cause__ if passing else raised.value
    assert isinstance(error, DBAPIError)
    assert error.orig is not None
    judged = is_unavailable(error.orig), is_contended(error.orig), is_passing(error.orig)
    assert judged == (away, contended, passing)


@pytest.mark.parametrize(
    "cursor", ["WyIyMDI1LTAxLTAxIiwgIlx1MDAwMCJd", "WyIyMDI1LTAxLTAxIiwgIlx1ZDgwMCJd"]
)
async def test_a_cursor_holds_nothing_that_the_database_refuses(
    stores: Stores, cursor: str
) -> None:
    """NUL or a lone surrogate in a cursor is a mistake of the caller."""
    with pytest.raises(InvalidRunError):
        await stores.runs.find("default", RunFilter(cursor=cursor))


async def refusal(call: Any) -> Exception | None:
    try:
        await call
    except Exception as error:
        return error
    return None
