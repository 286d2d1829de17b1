"""Contract of the store of API keys."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from caseworker.features.access.agent_keys import AgentTerms
from caseworker.features.access.keys import (
    FORM,
    ApiKey,
    IssuedKey,
    KeyConflictError,
    KeyNotFoundError,
    sha256_of,
)
from caseworker.features.access.postgres import PostgresKeys
from caseworker.platform.caller import (
    OPERATOR,
    Caller,
    KeyScope,
    OtherTenantError,
    ScopeMissingError,
    with_implied,
)
from tests.support.api import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

Ending = Callable[[PostgresKeys, Caller, str], Awaitable[object]]
RUN = frozenset({KeyScope.RUN})
ADMIN_OF_A = Caller("a", "admin", with_implied([KeyScope.ADMIN]))


@pytest.fixture
def keys(api: Api) -> PostgresKeys:
    """Return the keys of an empty database."""
    return api.keys


async def made(keys: PostgresKeys, tenant: str = "a", **given: timedelta) -> IssuedKey:
    expires = {name: datetime.now(UTC) + span for name, span in given.items()}
    return await keys.create(
        OPERATOR, name="robot", scopes=RUN, tenant=tenant, expires_at=expires.get("expires")
    )


async def found(keys: PostgresKeys, key_id: str) -> ApiKey:
    return (await keys.find([key_id]))[key_id][0]


async def test_a_key_is_found_by_its_id_with_the_hash_of_its_secret(keys: PostgresKeys) -> None:
    """Only the hash of the secret of 256 bits is stored."""
    issued = await made(keys, expires=timedelta(days=1))

    key_id = issued.key.key_id
    assert await keys.find([key_id, "0" * 16]) == {key_id: (issued.key, sha256_of(issued.secret))}
    assert FORM.fullmatch(issued.secret)
    assert issued.secret not in repr(issued)


async def test_whether_a_key_was_ever_made_outlives_its_revocation(keys: PostgresKeys) -> None:
    """Revoking the last key must not reopen the service to anonymous callers."""
    assert not await keys.any()
    issued = await made(keys)
    await keys.revoke(OPERATOR, issued.key.key_id)

    assert await keys.any()


async def test_a_tenant_sees_and_revokes_its_own_keys_alone(keys: PostgresKeys) -> None:
    """Keys of other tenants look absent to a tenant; the operator sees all keys."""
    mine, other = await made(keys, "a"), await made(keys, "b")

    assert [one.key_id for one in await keys.list(ADMIN_OF_A)] == [mine.key.key_id]
    assert {one.tenant for one in await keys.list(OPERATOR)} == {"a", "b"}
    for attempt in (keys.revoke, keys.rotate):
        with pytest.raises(KeyNotFoundError):
            await attempt(ADMIN_OF_A, other.key.key_id)
    with pytest.raises(OtherTenantError):
        await keys.create(ADMIN_OF_A, name="x", scopes=RUN, tenant="b")
    assert (await found(keys, other.key.key_id)).revoked_at is None


async def test_only_admins_have_to_do_with_keys(keys: PostgresKeys) -> None:
    """A caller with the scope to run cannot manage keys."""
    runner, issued = Caller("a", "x", with_implied(RUN)), await made(keys)

    for attempt in (
        keys.list(runner),
        keys.create(runner, name="x", scopes=RUN),
        keys.revoke(runner, issued.key.key_id),
        keys.rotate(runner, issued.key.key_id),
    ):
        with pytest.raises(ScopeMissingError):
            await attempt


async def test_a_revocation_counts_from_the_first_time(keys: PostgresKeys) -> None:
    """Revoking twice has the same effect as revoking once."""
    issued = await made(keys)

    first = await keys.revoke(OPERATOR, issued.key.key_id)
    again = await keys.revoke(OPERATOR, issued.key.key_id)

    assert first.revoked_at == again.revoked_at is not None
    assert not again.works_at(datetime.now(UTC))


async def test_a_rotated_key_works_on_for_the_overlap(keys: PostgresKeys) -> None:
    """A rotated key's successor has the same name, scopes and lifetime."""
    old = await made(keys, expires=timedelta(days=90))

    new = (await keys.rotate(OPERATOR, old.key.key_id, overlap=timedelta(hours=1))).key

    replaced, now = await found(keys, old.key.key_id), datetime.now(UTC)
    assert replaced.rotated_to == new.key_id
    assert replaced.works_at(now)
    assert not replaced.works_at(now + timedelta(hours=1))
    assert (new.tenant, new.name, new.scopes) == (old.key.tenant, old.key.name, old.key.scopes)
    assert new.expires_at is not None
    assert old.key.expires_at is not None
    assert old.key.expires_at <= new.expires_at < old.key.expires_at + timedelta(minutes=5)


async def test_a_rotation_never_lengthens_the_life_of_the_old_key(keys: PostgresKeys) -> None:
    """A long overlap does not extend it either."""
    old = await made(keys, expires=timedelta(minutes=1))

    await keys.rotate(OPERATOR, old.key.key_id, overlap=timedelta(days=30))

    assert (await found(keys, old.key.key_id)).expires_at == old.key.expires_at


async def test_a_key_is_rotated_once_however_many_ask_at_once(keys: PostgresKeys) -> None:
    """Concurrent rotations create only one successor, so no unknown second key stays valid."""
    old = await made(keys)

    results: list[bool] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(_rotated(keys, old.key.key_id, results))

    assert sorted(results) == [False] * 4 + [True]
    assert len(await keys.list(ADMIN_OF_A)) == 2


async def _rotated(keys: PostgresKeys, key_id: str, results: list[bool]) -> None:
    try:
        await keys.rotate(OPERATOR, key_id)
    except KeyConflictError:
        results.append(False)
    else:
        results.append(True)


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_what_works_no_more_cannot_be_rotated(keys: PostgresKeys, end: str) -> None:
    """A rotation would reactivate it."""
    if end == "expired":
        issued = await made(keys, expires=timedelta(seconds=-1))
    else:
        issued = await made(keys)
        await keys.revoke(OPERATOR, issued.key.key_id)

    with pytest.raises(KeyConflictError):
        await keys.rotate(OPERATOR, issued.key.key_id)


@pytest.mark.parametrize("meanwhile", [PostgresKeys.revoke, PostgresKeys.rotate])
async def test_a_key_that_ends_while_it_is_rotated_gets_no_successor(
    keys: PostgresKeys, monkeypatch: pytest.MonkeyPatch, meanwhile: Ending
) -> None:
    """The key worked when the rotation read it, and was revoked or rotated before its write."""
    issued, find = await made(keys), keys.find

    async def found_before(key_ids: Sequence[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        read = await find(key_ids)
        monkeypatch.undo()
        await meanwhile(keys, OPERATOR, issued.key.key_id)
        return read

    monkeypatch.setattr(keys, "find", found_before)
    with pytest.raises(KeyConflictError):
        await keys.rotate(OPERATOR, issued.key.key_id)
    working = [each for each in await keys.list(ADMIN_OF_A) if each.works_at(datetime.now(UTC))]
    assert len(working) == (0 if meanwhile is PostgresKeys.revoke else 2)


async def test_a_tenant_has_at_most_so_many_keys_that_work(
    keys: PostgresKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revoked keys, expired keys and keys of other tenants do not count."""
    first, _, _ = await made(keys), await made(keys), await made(keys, "b")
    await made(keys, expires=timedelta(seconds=-1))
    monkeypatch.setattr("caseworker.features.access.postgres.MAX_KEYS", 2)

    with pytest.raises(KeyConflictError):
        await made(keys)
    await keys.revoke(OPERATOR, first.key.key_id)
    await made(keys)

    assert len(await keys.list(ADMIN_OF_A)) == 2


async def test_a_rotated_key_that_works_on_counts_against_the_limit(
    keys: PostgresKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused rotation changes nothing; without an overlap, the old key leaves the limit."""
    monkeypatch.setattr("caseworker.features.access.postgres.MAX_KEYS", 2)
    first, _, _ = await made(keys), await made(keys), await made(keys, "b")

    with pytest.raises(KeyConflictError):
        await keys.rotate(OPERATOR, first.key.key_id)
    assert await found(keys, first.key.key_id) == first.key
    await keys.rotate(OPERATOR, first.key.key_id, overlap=timedelta(0))

    monkeypatch.undo()
    assert len(await keys.list(ADMIN_OF_A)) == 3


async def test_of_keys_that_work_no_more_the_last_ones_are_kept(
    keys: PostgresKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the latest inactive keys of the tenant are kept; other tenants lose none."""
    monkeypatch.setattr("caseworker.features.access.postgres.MAX_KEYS", 2)
    other = await made(keys, "b")
    await keys.revoke(OPERATOR, other.key.key_id)
    made_first, issued = await made(keys), [await made(keys)]
    for _ in range(4):
        last = issued[-1].key.key_id
        issued.append(await keys.rotate(OPERATOR, last, overlap=timedelta(0)))
    await keys.revoke(OPERATOR, made_first.key.key_id)
    issued.append(await made(keys))

    monkeypatch.undo()
    kept = {one.key_id for one in await keys.list(ADMIN_OF_A)}
    assert kept == {made_first.key.key_id, *(each.key.key_id for each in issued[-3:])}
    assert (await found(keys, other.key.key_id)).tenant == "b"


@pytest.mark.req("cw/19.key")
async def test_ended_standing_keys_displace_no_ended_api_key(
    keys: PostgresKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revoked API key still keeps the service closed; a standing key never does."""
    monkeypatch.setattr("caseworker.features.access.postgres.MAX_KEYS", 2)
    api_key = await made(keys)
    await keys.revoke(OPERATOR, api_key.key.key_id)
    for _ in range(4):
        standing = await keys.create(
            OPERATOR,
            name="agent",
            scopes=frozenset({KeyScope.READ}),
            tenant="a",
            agent=AgentTerms(budget_per_day={"max_cost_usd": 1}),
        )
        assert (await found(keys, standing.key.key_id)) == standing.key
        await keys.revoke(OPERATOR, standing.key.key_id)

    assert await keys.any()
    assert (await found(keys, api_key.key.key_id)).revoked_at is not None
