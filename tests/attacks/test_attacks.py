"""The short attacks of ``make attacks``, without time limits."""

import pytest

from tests.attacks.__main__ import attacked
from tests.support.database import TestServer
from tests.support.fake_provider.client import FakeProvider

QUICK = ("long-header", "many-headers", "long-url", "foreign-host", "reply-long", "reply-halves")


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.proof
async def test_an_attack_hurts_neither_the_process_nor_the_runs_of_others(
    name: str, postgres: TestServer
) -> None:
    """The process survives, uses little more memory, and serves the next caller."""
    async with FakeProvider() as provider:
        measured = await attacked(name, postgres, provider)

    assert measured.harmless, measured.remark
    assert measured.alive
    assert measured.others_go_on
    assert measured.health.memory_max_mb - measured.health.memory_before_mb < 200
