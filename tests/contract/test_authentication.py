"""Tests which caller a credential identifies, how long answers are cached, what guesses cost."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from unittest.mock import AsyncMock

import pytest

from caseworker.features.access import authentication as module
from caseworker.features.access.authentication import Authentication, Identity
from caseworker.features.access.keys import ApiKey, IssuedKey
from caseworker.features.access.postgres import PostgresKeys
from caseworker.platform.caller import OPERATOR, Caller, InvalidCredentialError, KeyScope
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import Pool
from tests.support.api import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

BOOTSTRAP = "operator-" + "7" * 32
RUN = frozenset({KeyScope.RUN})


@dataclass
class Clock:
    """The clock of cached answers."""

    now: float = field(default_factory=lambda: datetime.now(UTC).timestamp())

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock with one that moves only on request; a slow machine expires no answer."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class CountedKeys(PostgresKeys):
    """A key store that counts its lookups."""

    asked = 0

    async def find(self, key_ids: Collection[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        self.asked += 1
        return await super().find(key_ids)


@pytest.fixture
def store(api: Api) -> CountedKeys:
    return CountedKeys(api.keys._pool)


async def issued(store: PostgresKeys, expires_at: datetime | None = None) -> IssuedKey:
    return await store.create(OPERATOR, name="robot", scopes=RUN, tenant="a", expires_at=expires_at)


async def test_a_key_shows_its_tenant_name_and_scopes(store: CountedKeys) -> None:
    """The caller also has the scopes that the key's scopes imply."""
    key = await issued(store)

    caller = await Authentication(store).caller_of(key.secret)

    scopes = frozenset({KeyScope.READ, KeyScope.RUN})
    assert caller == Caller("a", "robot", scopes, key_id=key.key.key_id)


async def test_the_bootstrap_key_shows_the_operator(store: CountedKeys) -> None:
    """The bootstrap key works without the database."""
    authentication = Authentication(store, bootstrap_key=BOOTSTRAP)

    assert await authentication.caller_of(BOOTSTRAP) is OPERATOR
    with pytest.raises(InvalidCredentialError):
        await authentication.caller_of(BOOTSTRAP[:-1])


async def test_a_key_that_is_shown_again_and_again_is_looked_up_once(
    store: CountedKeys, clock: Clock
) -> None:
    """The cached answer is used until it expires."""
    key, authentication = await issued(store), Authentication(store)

    for _ in range(100):
        await authentication.caller_of(key.secret)
    assert store.asked == 1
    clock.now += module.KEPT_SECONDS
    await authentication.caller_of(key.secret)

    assert store.asked == 2


async def test_many_that_show_a_key_at_once_ask_once(store: CountedKeys) -> None:
    """Concurrent requests share one lookup."""
    key, authentication = await issued(store), Authentication(store)

    async with asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(authentication.caller_of(key.secret))

    assert store.asked == 1


async def test_a_revoked_key_works_no_longer_than_an_answer_counts(
    store: CountedKeys, clock: Clock
) -> None:
    """The process that revoked the key refuses it at once."""
    key = await issued(store)
    here, elsewhere = Authentication(store), Authentication(store)
    for each in (here, elsewhere):
        await each.caller_of(key.secret)
    await store.revoke(OPERATOR, key.key.key_id)
    here.forget()

    with pytest.raises(InvalidCredentialError):
        await here.caller_of(key.secret)
    clock.now += module.KEPT_SECONDS
    with pytest.raises(InvalidCredentialError):
        await elsewhere.caller_of(key.secret)


async def test_an_answer_counts_no_longer_than_its_key_lives(
    store: CountedKeys, clock: Clock
) -> None:
    """The key expires even if its cached answer is still fresh."""
    key = await issued(store, datetime.fromtimestamp(clock.now, UTC) + timedelta(seconds=2))
    authentication = Authentication(store)
    await authentication.caller_of(key.secret)
    await store.revoke(OPERATOR, key.key.key_id)  # the same as its end, without waiting

    clock.now += 2
    with pytest.raises(InvalidCredentialError):
        await authentication.caller_of(key.secret)


@pytest.mark.parametrize("change", ["id", "secret", "prefix", "length", "empty"])
async def test_what_is_nearly_a_key_is_none(store: CountedKeys, change: str) -> None:
    """A single wrong digit makes a key invalid."""
    secret = (await issued(store)).secret
    flipped = "1" if secret[-1] == "0" else "0"
    changed = {
        "id": f"cwk_{'0' * 16}{secret[20:]}",
        "secret": secret[:-1] + flipped,
        "prefix": secret.replace("cwk_", "cwk-"),
        "length": secret + "0",
        "empty": "",
    }[change]

    with pytest.raises(InvalidCredentialError) as refused:
        await Authentication(store).caller_of(changed)
    assert secret not in str(refused.value)


async def test_a_refused_credential_is_looked_up_once(store: CountedKeys, clock: Clock) -> None:
    """A repeated invalid credential is answered from the cache."""
    authentication = Authentication(store)

    for _ in range(10):
        with pytest.raises(InvalidCredentialError):
            await authentication.caller_of(f"cwk_{'0' * 16}_{'0' * 64}")

    assert store.asked == 1


async def test_guesses_fill_no_memory_and_push_nobody_out(
    store: CountedKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of refused credentials is bounded and separate from the cache of callers."""
    monkeypatch.setattr(module, "MAX_KEPT", 50)
    key, authentication = await issued(store), Authentication(store)
    await authentication.caller_of(key.secret)

    for guess in range(500):
        with pytest.raises(InvalidCredentialError):
            await authentication.caller_of(f"cwk_{guess:016x}_{'0' * 64}")
    asked = store.asked
    await authentication.caller_of(key.secret)

    assert store.asked == asked == 501
    assert len(authentication._refused) <= 50


async def test_a_key_that_works_waits_for_no_more_than_one_query_of_guesses(
    api: Api,
) -> None:
    """Keys that arrive during a lookup share the next one and its connection."""
    store = SlowKeys(api.keys._pool)
    key, authentication = await issued(store), Authentication(store)

    async def guess(number: int) -> None:
        with pytest.raises(InvalidCredentialError):
            await authentication.caller_of(f"cwk_{number:016x}_{'0' * 64}")

    guesses = [asyncio.create_task(guess(number)) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    guesses += [asyncio.create_task(guess(number)) for number in range(50, 100)]
    caller = asyncio.create_task(authentication.caller_of(key.secret))
    await asyncio.sleep(0)
    store.answers.set()

    assert (await caller).tenant == "a"
    assert store.asked == 2
    await asyncio.wait(guesses)


async def test_a_query_that_fails_is_made_again_for_the_next_caller(api: Api) -> None:
    """All requests that share a failed lookup get its error."""
    store = SlowKeys(api.keys._pool)
    key, authentication = await issued(store), Authentication(store)
    store.fails = True
    waiting = [asyncio.create_task(authentication.caller_of(key.secret)) for _ in range(3)]
    store.answers.set()
    await asyncio.wait(waiting)
    store.fails = False

    assert {type(each.exception()) for each in waiting} == {StoreUnavailableError}
    assert (await authentication.caller_of(key.secret)).tenant == "a"


async def test_refused_requests_are_answered_at_a_bounded_rate(
    store: CountedKeys, clock: Clock
) -> None:
    """After a pause a few requests are answered at once, and none waits longer than the limit."""
    authentication = Authentication(store)
    rate = module.REFUSALS_PER_SECOND

    at_once = [authentication.refusal_delay() for _ in range(rate)]
    later = [authentication.refusal_delay() for _ in range(rate)]
    flood = [authentication.refusal_delay() for _ in range(1000)]

    assert at_once == [0.0] * rate
    assert later == pytest.approx([(n + 1) / rate for n in range(rate)], abs=1e-4)
    assert max(flood) == pytest.approx(module.MAX_REFUSAL_SECONDS)
    clock.now += 100
    assert authentication.refusal_delay() == 0.0


async def test_callers_come_without_a_credential_while_there_is_none(
    store: CountedKeys, clock: Clock
) -> None:
    """A key made by another process ends anonymous access as soon as the cache expires."""
    authentication = Authentication(store)
    assert await authentication.is_open()
    key = await issued(store)

    clock.now += module.KEPT_SECONDS
    assert not await authentication.is_open()
    await store.revoke(OPERATOR, key.key.key_id)
    authentication.forget()

    assert not await authentication.is_open()
    assert not await Authentication(store).is_open()


class SlowKeys(CountedKeys):
    """A key store that answers only after an event is set, or fails."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.answers = asyncio.Event()
        self.fails = False

    async def any(self) -> bool:
        self.asked += 1
        await self._answered()
        return await super().any()

    async def find(self, key_ids: Collection[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        await self._answered()
        return await super().find(key_ids)

    async def _answered(self) -> None:
        await self.answers.wait()
        if self.fails:
            raise StoreUnavailableError


async def test_all_that_come_at_once_without_a_credential_ask_once(api: Api) -> None:
    """Concurrent callers share one lookup, and cancelling one of them does not cancel it."""
    store = SlowKeys(api.keys._pool)
    authentication = Authentication(store)

    waiting = [asyncio.create_task(authentication.is_open()) for _ in range(200)]
    await asyncio.sleep(0)
    waiting.pop(0).cancel()
    await asyncio.sleep(0)
    store.answers.set()

    answers = [await each for each in waiting]

    assert all(answers)
    assert store.asked == 1


async def test_all_that_wait_hear_that_nobody_can_say_and_the_next_asks_anew(api: Api) -> None:
    """All callers that share a failed lookup get its error; the next caller starts a new one."""
    store = SlowKeys(api.keys._pool)
    store.fails = True
    authentication = Authentication(store)

    waiting = [asyncio.create_task(authentication.is_open()) for _ in range(20)]
    await asyncio.sleep(0)
    store.answers.set()
    await asyncio.wait(waiting)
    store.fails = False

    assert {type(each.exception()) for each in waiting} == {StoreUnavailableError}
    assert store.asked == 1
    assert await authentication.is_open()


async def refuse(_: str) -> Identity:
    raise InvalidCredentialError


async def test_nobody_comes_without_a_credential_where_one_is_configured(
    store: CountedKeys,
) -> None:
    """A bootstrap key or a token issuer ends anonymous access."""
    assert not await Authentication(store, bootstrap_key=BOOTSTRAP).is_open()
    assert not await Authentication(store, verify_token=refuse).is_open()


async def test_a_key_is_never_taken_for_a_token(store: CountedKeys) -> None:
    """A credential that is far too long is rejected at once."""
    verify_token = AsyncMock(side_effect=refuse)
    authentication = Authentication(store, verify_token=verify_token)

    for credential in (f"cwk_{'0' * 16}_{'0' * 64}", "x" * 10_000, "a.b.c"):
        with pytest.raises(InvalidCredentialError):
            await authentication.caller_of(credential)

    verify_token.assert_called_once_with("a.b.c")
