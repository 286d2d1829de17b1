"""The promises that can be asked from outside, each with what was checked and what broke it."""

from collections import Counter
from collections.abc import Callable, Iterator

from app.runs.run import RunKey
from tests.chaos.customers import TERMINAL
from tests.chaos.evidence import Evidence, place_of, step_of
from tests.chaos.requests import Posted
from tests.support.event_log import event_problems
from tests.support.graph_invariants import violations
from tests.support.memory_rows import RUN_ENDS
from tests.support.usage_oracle import differences

LATE_SECONDS = 0.25
"""How long after the receipt of a cancel a call may still begin, beside a database that is near."""
APART_SECONDS = 0.05
"""How far the clocks of a call's node and of the provider's log may be apart."""
FREEZING = ("frozen for a moment", "frozen for long")
HARD_LIMITS = ("llm_calls_small", "api_calls")

Check = Iterator[str | None]
"""One for every thing that was checked: None, or what is wrong with it."""


def _survival(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        yield _about(posted, None if run else "acknowledged, and not stored")


def _settled(all_: Evidence) -> Check:
    for run in all_.runs.values():
        yield None if run.status in TERMINAL else f"{run.run_id} is {run.status}"


def _no_call_after_a_cancel(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        if posted.cancelled_at is None:
            continue
        since, chronicle = posted.cancelled_at, all_.world.chronicle
        late = []
        for arrival in all_.every[posted.name]:
            after = arrival.arrived_monotonic - since
            about = [one.kind for one in chronicle.between(since - 1, arrival.arrived_monotonic)]
            slack = chronicle.lag(since - 1, arrival.arrived_monotonic + 1) + about.count("slow")
            if after > LATE_SECONDS + slack:
                late.append((round(after, 3), set(about)))
        thawed = [one for one in late if one[1].intersection(FREEZING)]
        wrong = len(late) > len(thawed) or len(thawed) > posted.lanes
        yield _about(posted, f"calls began so late after its cancel: {late}" if wrong else None)


def _cancelled_before(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        if posted.cancelled_first and posted.cancelled_at is not None:
            calls, run = len(all_.every[posted.name]), all_.of(posted)
            well = run is not None and run.status == "cancelled" and not calls
            yield _about(posted, None if well else f"cancelled before it was posted: {calls} calls")


def _stop_wins(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        if posted.cancelled_at is not None and run is not None:
            well = run.status == "cancelled"
            yield _about(posted, None if well else f"its cancel was accepted, and it {run.status}")


def _events(all_: Evidence) -> Check:
    for key, (status, events) in all_.events.items():
        problems = event_problems(events, status)
        yield f"{key.run_id}: {problems[:3]}" if problems else None


def _snapshots(all_: Evidence) -> Check:
    for run in all_.runs.values():
        if run.status in TERMINAL:
            snapshot = all_.snapshots.get(run.run_id)
            problems = ["there is none"] if snapshot is None else violations(snapshot)
            yield f"the snapshot of {run.run_id}: {problems[:3]}" if problems else None


def _budgets(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        if (run := all_.of(posted)) is None:
            continue
        asked, used = all_.asked(posted), run.usage
        logical = len({arrival.marker for arrival in asked})
        calls = used.get("llm_calls_small", 0) + used.get("llm_calls_big", 0)
        if len(asked) > used.get("api_calls", 0) or logical > calls:
            yield _about(posted, f"{len(asked)} attempts of {logical} calls came, used: {used}")
        for name, limit in (posted.body.get("budget") or {}).items():
            dimension = name.removeprefix("max_")
            if limit is not None and dimension in HARD_LIMITS:
                over = used.get(dimension, 0) > limit
                yield _about(posted, f"{name} is {limit}, used: {used}" if over else None)


def _all_that_is_allowed(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        if run is None or (run.stop or {}).get("dimension") not in HARD_LIMITS:
            continue
        stop = dict(run.stop or {})
        came = len(all_.asked(posted))
        well = stop["used"] == stop["limit"] == run.usage[stop["dimension"]]
        if stop["dimension"] == "api_calls" and run.attempts == 1:
            well = well and came == stop["limit"]
        yield _about(posted, None if well else f"it was stopped at {stop}, and {came} calls came")


def _one_run_for_a_key(all_: Evidence) -> Check:
    known = {run_id for posted in all_.acknowledged for run_id in posted.run_ids}
    keys = Counter(run.key for run in all_.runs.values() if run.key is not None)
    for posted in all_.acknowledged:
        several = len(posted.run_ids) > 1 or (posted.key is not None and keys[posted.key] > 1)
        yield _about(posted, f"two runs: {posted.run_ids}" if several else None)
    for run_id in all_.runs.keys() - known:
        yield f"{run_id} ({all_.runs[run_id].key}) was acknowledged to nobody"


def _no_recorded_call_again(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        ends: dict[str, float] = {}
        for node in run.calls if run else ():
            place = place_of(node)
            if place and node["status"] == "success" and "taken_over" not in node["metadata"]:
                ends[place] = max(ends.get(place, 0.0), node["end_ts_ms"] / 1000)
        for place, ended in ends.items():
            again = [
                arrival
                for arrival in all_.at[posted.name, place]
                if arrival.arrived_wall > ended + APART_SECONDS
            ]
            excused = again and any(
                one.kind in FREEZING
                for one in all_.world.chronicle.between(
                    again[0].arrived_monotonic - 1, again[0].arrived_monotonic
                )
            )
            wrong = len(again) > (posted.lanes if excused else 0)
            yield _about(posted, f"{place} was recorded, and made again" if wrong else None)


def _called_once(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        for node in run.calls if run else ():
            if node["name"] == "once" and (place := place_of(node)):
                made = len(all_.at[posted.name, place])
                yield _about(posted, f"{place} was made {made} times" if made > 1 else None)


def _followed(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        if posted.followed is None:
            continue
        _, events = all_.events[RunKey("default", posted.run_id)]
        end = next((event.seq for event in events if event.type in RUN_ENDS), 0)
        well = posted.followed == list(range(1, end + 1))
        yield _about(posted, None if well else f"of {end} events came {posted.followed}")


def _usage(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        if run is None or run.run_id not in all_.snapshots:
            continue
        snapshot, used = all_.snapshots[run.run_id], {"usage": run.usage}
        problems = list(differences(used, snapshot, all_.asked(posted), step_of=step_of))
        yield _about(posted, f"{problems[:3]}" if problems else None)


def _taken_over(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        run = all_.of(posted)
        for node in run.calls if run else ():
            if "taken_over" in node["metadata"] and (place := place_of(node)):
                made = all_.at[posted.name, place]
                yield _about(posted, f"{place} was taken over, and made" if made else None)


def _read_at_once(all_: Evidence) -> Check:
    yield from [None] * all_.customers.counts["read at once"]


def _read_again(all_: Evidence) -> Check:
    yield from [None] * all_.customers.counts["reads"]
    yield from all_.world.problems


def _orderly_ends(all_: Evidence) -> Check:
    yield from [None] * all_.world.chronicle.happened["terminated"]


def _losses(all_: Evidence) -> Check:
    yield from [None] * len(all_.watch.losses)
    for run_id, problem in all_.watch.unexplained().items():
        yield f"{run_id}: {problem}"


PROMISES: dict[str, Callable[[Evidence], Check]] = {
    "1, 19  an acknowledged run is there": _survival,
    "2  no call begins after the receipt of a cancel": _no_call_after_a_cancel,
    "2  an accepted cancel wins": _stop_wins,
    "3  cancelled before it was posted: no call": _cancelled_before,
    "4  one terminal status, read again and again": _read_again,
    "5  a step is started once and ends once": _events,
    "6  stored snapshots keep the five invariants": _snapshots,
    "7  no limit of calls is passed": _budgets,
    "8  one key, one run": _one_run_for_a_key,
    "9  a recorded call is not made again": _no_recorded_call_again,
    "9  a tool that must not be repeated is not": _called_once,
    "10, 19  everything ends": _settled,
    "11  told to end, a process does, in order": _orderly_ends,
    "12  followers see every event once": _followed,
    "18  what is acknowledged can be read anywhere": _read_at_once,
    "20  what is allowed is made": _all_that_is_allowed,
    "21  only processes that were lost lose runs": _losses,
    "23  usage is what the provider counted": _usage,
    "24  what was taken over is not made": _taken_over,
}


def _about(posted: Posted, problem: str | None) -> str | None:
    if problem is None:
        return None
    return f"{posted.name} ({posted.kind}, {posted.run_id}): {problem}"
