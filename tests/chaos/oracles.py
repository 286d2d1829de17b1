"""The promises that can be checked from outside: each yields its checks and violations."""

from collections import Counter
from collections.abc import Callable, Iterator

from caseworker.runs.run import RunKey
from tests.chaos.customers import TERMINAL
from tests.chaos.evidence import Evidence, StoredRun, place_of, step_of
from tests.chaos.requests import Posted
from tests.chaos.world import Interval
from tests.support.event_log import event_problems
from tests.support.graph_invariants import violations
from tests.support.memory_rows import RUN_ENDS
from tests.support.usage_oracle import PRICES, differences

LATE_SECONDS = 0.25
"""How long a call may still start after the cancel receipt, with a nearby database."""
HOPS = 6
"""Process switches between a call's permission and its arrival: the proxy, the service for the
answer, to connect and to send, the provider to accept and to read.
"""
APART_SECONDS = 0.05
"""The maximum clock difference between a call's node and the provider's log, in seconds."""
HARD_LIMITS = ("llm_calls_small", "api_calls")

Check = Iterator[str | None]
"""One item per check: None, or the problem."""

PROMISES: dict[str, Callable[[Evidence], Check]] = {}
"""The oracles, by the rows and the text of the table of promises."""


def _promise(name: str) -> Callable[[Callable[[Evidence], Check]], None]:
    def register(check: Callable[[Evidence], Check]) -> None:
        PROMISES[name] = check

    return register


def _promise_of_runs(
    name: str,
) -> Callable[[Callable[[Evidence, Posted, StoredRun], Check]], None]:
    """Register a check that runs for each acknowledged run that exists."""

    def register(check: Callable[[Evidence, Posted, StoredRun], Check]) -> None:
        def check_all(all_: Evidence) -> Check:
            for posted in all_.acknowledged:
                run = all_.runs.get(posted.run_id)
                for problem in check(all_, posted, run) if run else ():
                    about = f"{posted.name} ({posted.kind}, {posted.run_id})"
                    yield problem and f"{about}: {problem}"

        PROMISES[name] = check_all

    return register


def _promise_seen(name: str, *looked_at: str) -> None:
    """Register the checks that were made during the storm."""

    def check(all_: Evidence) -> Check:
        for what in looked_at:
            problems = all_.world.problems[what]
            yield from problems
            yield from [None] * (all_.world.looked[what] - len(problems))

    PROMISES[name] = check


@_promise("1, 19  an acknowledged run is there")
def _survival(all_: Evidence) -> Check:
    for posted in all_.acknowledged:
        there = posted.run_id in all_.runs
        yield None if there else f"{posted.name} was acknowledged, and {posted.run_ids} not stored"


@_promise_of_runs("2  no call begins after the receipt of a cancel")
def _no_call_after_a_cancel(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    if posted.cancelled_at is None:
        return
    since, chronicle = posted.cancelled_at, all_.world.chronicle
    late, thawed = [], 0
    for arrival in all_.every[posted.name]:
        after = arrival.arrived_monotonic - since
        about = chronicle.between(since - 1, arrival.arrived_monotonic)
        slack = HOPS * chronicle.lag(since - 1, arrival.arrived_monotonic + 1)
        slack += sum(one.kind == "slow" for one in about)
        if after > LATE_SECONDS + slack:
            late.append((round(after, 3), {one.kind for one in about}))
            thawed += any(one.froze for one in about)
    wrong = len(late) > thawed or thawed > posted.lanes
    yield f"calls began so late after its cancel: {late}" if wrong else None


@_promise_of_runs("2  an accepted cancel wins")
def _stop_wins(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    if posted.cancelled_at is not None:
        well = run.status == "cancelled"
        yield None if well else f"its cancel was accepted, and it {run.status}"


@_promise_of_runs("3  cancelled before it was posted: no call")
def _cancelled_before(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    if posted.cancelled_first and posted.cancelled_at is not None:
        calls = len(all_.every[posted.name])
        well = run.status == "cancelled" and not calls
        yield None if well else f"cancelled before it was posted: {calls} calls"


_promise_seen("4  one terminal status, read again and again", "reads", "cancels")


@_promise("5  a step is started once and ends once")
def _events(all_: Evidence) -> Check:
    for key, (status, events) in all_.events.items():
        problems = event_problems(events, status)
        yield f"{key.run_id}: {problems[:3]}" if problems else None


@_promise("6  stored snapshots keep the five invariants")
def _snapshots(all_: Evidence) -> Check:
    for run in all_.runs.values():
        if run.status in TERMINAL:
            problems = (
                violations(run.snapshot) if run.snapshot else run.unsound or ["there is none"]
            )
            yield f"the snapshot of {run.run_id}: {problems[:3]}" if problems else None


@_promise_of_runs("7  no limit of calls is passed")
def _calls_within(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    asked, used = all_.asked(posted), run.usage
    logical = len({arrival.marker for arrival in asked})
    calls = used.get("llm_calls_small", 0) + used.get("llm_calls_big", 0)
    more = len(asked) > used.get("api_calls", 0) or logical > calls
    yield f"{len(asked)} attempts of {logical} calls came, used: {used}" if more else None
    for name in HARD_LIMITS:
        if (limit := posted.body.get("budget", {}).get(f"max_{name}")) is not None:
            came = len(asked) if name == "api_calls" else logical
            over = max(came, used.get(name, 0)) > limit
            yield f"max_{name} is {limit}, {came} came, used: {used}" if over else None


@_promise_of_runs("7  tokens and cost: one call in flight a lane")
def _spent_within(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    counted = [arrival.charged for arrival in all_.asked(posted) if arrival.charged]
    tokens = [one["tokens_in"] + one["tokens_out"] for one in counted]
    cost = [
        float(one["tokens_in"] * PRICES["in"] + one["tokens_out"] * PRICES["out"]) / 1e6
        for one in counted
    ]
    for name, spent in (("max_tokens", tokens), ("max_cost_usd", cost)):
        if (limit := posted.body.get("budget", {}).get(name)) is not None:
            in_flight = posted.lanes * max(1, run.fence)  # each owner may lose its calls in flight
            before = sum(sorted(spent, reverse=True)[in_flight:])
            yield f"{name} is {limit}, the provider counted {spent}" if before >= limit else None


@_promise("8  one key, one run")
def _one_run_for_a_key(all_: Evidence) -> Check:
    known = {run_id for posted in all_.acknowledged for run_id in posted.run_ids}
    keys = Counter(run.key for run in all_.runs.values() if run.key is not None)
    for posted in all_.acknowledged:
        several = len(posted.run_ids) > 1 or (posted.key is not None and keys[posted.key] > 1)
        yield f"{posted.name} has two runs: {posted.run_ids}" if several else None
    for run_id in all_.runs.keys() - known:
        yield f"{run_id} ({all_.runs[run_id].key}) was acknowledged to nobody"


@_promise_of_runs("9  a recorded call is not made again")
def _no_recorded_call_again(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    recorded: dict[str, dict[str, float]] = {}
    for node in run.calls:
        place = place_of(node)
        if place and node["status"] == "success" and "taken_over" not in node["metadata"]:
            firsts, ended = recorded.setdefault(place, {}), node["end_ts_ms"] / 1000
            firsts[node["call_key"]] = min(ended, firsts.get(node["call_key"], ended))
    again, thawed, freezes = [], 0, set[Interval]()
    for place, firsts in recorded.items():
        for arrival in all_.at[posted.name, place]:
            if arrival.arrived_wall > max(firsts.values()) + APART_SECONDS:
                again.append(place)
                at = arrival.arrived_monotonic
                frozen = {one for one in all_.world.chronicle.between(at - 1, at) if one.froze}
                thawed, freezes = thawed + bool(frozen), freezes | frozen
        yield None
    if len(again) > thawed or thawed > posted.lanes * len(freezes):
        yield f"{again} were recorded, and made again"


@_promise_of_runs("9  a tool that must not be repeated is not")
def _called_once(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    for node in run.calls:
        if node["name"] == "once" and (place := place_of(node)):
            made = len(all_.at[posted.name, place])
            yield f"{place} was made {made} times" if made > 1 else None


@_promise("10, 19  everything ends")
def _settled(all_: Evidence) -> Check:
    for run in all_.runs.values():
        yield None if run.status in TERMINAL else f"{run.run_id} is {run.status}"


@_promise("11  told to end, a process does, in order")
def _ended_in_order(all_: Evidence) -> Check:
    """Check that it exits in time, and that its runs resume without counting an attempt."""
    problems, counted = all_.world.problems["ends"], all_.watch.counted()
    yield from problems
    yield from (f"{loss.run_id}: process {loss.pid} handed it over, counted" for loss in counted)
    ended_well = all_.world.looked["ends"] - len(problems)
    yield from [None] * (ended_well + all_.watch.handed_over)


@_promise_of_runs("12  followers see every event once")
def _followed(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    if posted.followed is not None and run.status in TERMINAL:
        _, events = all_.events[RunKey("default", posted.run_id)]
        end = next((event.seq for event in events if event.type in RUN_ENDS), 0)
        well = posted.followed == list(range(1, end + 1))
        yield None if well else f"of {end} events came {posted.followed}"


_promise_seen("17  no answer is a 5xx", "answers")
_promise_seen("18  what is acknowledged can be read anywhere", "acknowledged")


@_promise_of_runs("20  what is allowed is made")
def _all_that_is_allowed(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    stop = dict(run.stop or {})
    if stop.get("dimension") in HARD_LIMITS:
        came = len(all_.asked(posted))
        well = stop["used"] == stop["limit"] == run.usage[stop["dimension"]]
        if stop["dimension"] == "api_calls" and run.fence == 1:
            well = well and came == stop["limit"]
        yield None if well else f"it was stopped at {stop}, and {came} calls came"


@_promise("21  only processes that were lost lose runs")
def _losses(all_: Evidence) -> Check:
    unexplained = all_.watch.unexplained()
    yield from (f"{run_id}: {problem}" for run_id, problem in unexplained.items())
    yield from [None] * (len(all_.watch.losses) - len(unexplained))


@_promise_of_runs("23  usage is what the provider counted")
def _usage(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    if run.status in TERMINAL and run.snapshot is not None:
        used = {"usage": run.usage}
        problems = list(differences(used, run.snapshot, all_.asked(posted), step_of=step_of))
        yield f"{problems[:3]}" if problems else None


@_promise_of_runs("24  what was taken over is not made")
def _taken_over(all_: Evidence, posted: Posted, run: StoredRun) -> Check:
    for node in run.calls:
        if "taken_over" in node["metadata"] and (place := place_of(node)):
            made = all_.at[posted.name, place]
            yield f"{place} was taken over, and made" if made else None
