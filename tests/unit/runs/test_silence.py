"""A worker's silence counts only while the database is available."""

from datetime import UTC, datetime, timedelta

import pytest

from caseworker.runs.recover.failure_detector import SilenceWatch

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL, STALE = 1.0, 10.0


class Looking:
    """A process that checks every second; workers send heartbeats every second until they stop."""

    def __init__(self, own: str | None = None) -> None:
        self.watch = SilenceWatch(interval_seconds=INTERVAL, stale_seconds=STALE, own_id=own)
        self.now = 0.0
        self.beats = {"alive": EPOCH, "dead": EPOCH}

    def look(self, *beating: str, took: float = 0.002, after: float = INTERVAL) -> dict[str, bool]:
        """Check once; return the silent workers and whether each one is certainly dead."""
        began = self.now + after
        self.now = began + took
        for name in beating:
            self.beats[name] = EPOCH + timedelta(seconds=self.now)
        silent = self.watch.look(self.beats, began=began, ended=self.now)
        return {each.worker_id: each.exceeded_stale_timeout for each in silent}

    def looks(self, seconds: float, *beating: str, **options: float) -> dict[str, float]:
        """Check repeatedly; return after how long each worker was first reported silent."""
        began, found = self.now, dict[str, float]()
        while self.now - began < seconds:
            for name in self.look(*beating, **options):
                found.setdefault(name, self.now - began)
        return found


def test_a_worker_that_missed_three_beats_is_suspected_and_after_the_long_time_it_is_sure() -> None:
    """A suspected worker counts as dead only if it holds no connection."""
    looking = Looking()
    looking.look("alive", "dead")
    assert looking.looks(2.5, "alive") == {}
    assert looking.look("alive") == {"dead": False}
    looking.looks(STALE - 4, "alive")
    assert looking.look("alive") == {"dead": True}


def test_only_a_worker_that_missed_a_beat_is_suspected() -> None:
    """A worker that sends every heartbeat on time is not, however often this process looks."""
    looking = Looking()
    for beating in (["alive", "dead"], []) * 5:
        looking.look(*beating, after=INTERVAL / 2)
        assert (looking.watch.suspects, looking.watch.look_seconds) == (False, INTERVAL)
    looking.looks(1.5, "alive", after=INTERVAL / 2)
    assert (looking.watch.suspects, looking.watch.look_seconds) == (True, INTERVAL / 4)


def test_a_beat_ends_the_silence() -> None:
    """A late heartbeat ends the silence of its worker."""
    looking = Looking()
    looking.looks(8, "alive")
    assert looking.look("alive", "dead") == {}
    assert looking.looks(2.5, "alive") == {}


@pytest.mark.parametrize("seconds", [3.5, 12.0, 30.0, 3600.0])
@pytest.mark.parametrize("how", ["the looks failed", "a look took long", "this process was frozen"])
def test_an_outage_is_nobodys_silence(how: str, seconds: float) -> None:
    """After an outage all workers get the long timeout to come back."""
    looking = Looking()
    looking.looks(20, "alive", "dead")
    if how == "a look took long":
        assert looking.look(took=seconds) == {}
    else:
        looking.watch.interrupted()
        assert looking.look(after=seconds) == {}
    assert looking.looks(STALE - 2.5) == {}
    assert looking.look("alive", "dead") == {}


@pytest.mark.parametrize("seconds", [3.5, 12.0, 3600.0])
def test_a_database_that_answers_and_takes_no_beats_is_nobodys_silence(seconds: float) -> None:
    """If the checking process cannot write heartbeats, no worker can."""
    looking = Looking(own="me")
    looking.looks(20, "me", "alive", "dead")
    assert looking.looks(seconds) == {}
    assert looking.looks(STALE - 5, "me") == {}, "others come back later than this process"
    assert looking.looks(2, "me", "alive") == {}
    assert looking.looks(STALE, "me", "alive").keys() == {"dead"}


def test_a_worker_that_does_not_come_back_after_an_outage_is_found() -> None:
    """The worker is reported after the long timeout."""
    looking = Looking()
    looking.looks(20, "alive", "dead")
    looking.watch.interrupted()
    looking.look(after=30)
    assert STALE - 2 < looking.looks(2 * STALE, "alive")["dead"] < STALE + 2


@pytest.mark.parametrize("took", [0.3, 0.9, 5.0])
def test_dead_workers_are_found_over_a_slow_network(took: float) -> None:
    """A dead worker is found later on a slow network, where reconnecting takes longer."""
    looking = Looking()
    looking.looks(20, "alive", "dead", took=took)
    found = looking.looks(100, "alive", took=took)
    assert set(found) == {"dead"}
    assert found["dead"] >= 3 + 4 * min(took, 1.0)


def test_silence_before_an_outage_of_beats_was_noticed_is_not_counted_either() -> None:
    """A database that became read-only stored no heartbeats, and counts as down."""
    looking = Looking(own="me")
    looking.look("me", "alive", "dead")
    looking.looks(30)
    assert looking.looks(STALE - 1.5, "me") == {}
    assert looking.look("me", "alive").keys() == {"dead"}


@pytest.mark.parametrize("known", [True, False])
def test_a_looker_that_others_took_for_dead_or_never_knew_is_not_heard_either(known: bool) -> None:
    """Silence is not counted while the checking process has no row of its heartbeats."""
    looking = Looking(own="me")
    if known:
        looking.looks(20, "me", "alive", "dead")
        del looking.beats["me"]
    else:
        looking.look("alive", "dead")
    assert looking.looks(2 * STALE) == {}
    assert looking.looks(STALE - 1.5, "me") == {}
    assert looking.look("me", "alive").keys() == {"dead"}
