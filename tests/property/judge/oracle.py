"""Compares the counts of the provider with the limits of the story, and with the charges."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from caseworker.core.trace.node import OVERRUN_TOKENS, OVERRUN_USD
from tests.property.judge.provider import Generation
from tests.property.judge.stories import Story, descendants
from tests.property.judge.world import JudgedService

CENT = Decimal("1e-9")


@dataclass
class Verdict:
    """Result of a story."""

    seed: int
    violations: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    """How often each kind of call, ending and answer occurred."""


def judged(story: Story, world: JudgedService) -> Verdict:
    """Judge a story that has ended; the provider forgets its calls."""
    verdict, tenant = Verdict(story.seed), story.tenant
    generations = [g for g in world.provider.generations if g.marker.startswith(f"<{story.seed}/")]
    nodes = world.nodes(tenant)
    verdict.reached = _reached(story, generations, nodes)
    unlimited = set() if story.quota else _unlimited(story)
    verdict.violations += _wrong_charges(
        [made for made in generations if not (_run_of(made) in unlimited and made.bill.is_hidden)],
        nodes,
    )
    verdict.violations += _exceeded_limits(story, generations, nodes)
    verdict.violations += _unexplained_overruns(generations, nodes)
    verdict.violations += _superseded(story, generations)
    return verdict


def _run_of(made: Generation) -> str:
    assert made.call is not None
    return made.call[1]


def _unlimited(story: Story) -> set[str]:
    """Return the runs without a limit on cost or tokens, in which unknown fields pass."""
    limited = {
        number for run in story.runs if run.budget for number in descendants(story.runs, run.number)
    }
    return {f"r{run.number}" for run in story.runs if run.number not in limited}


def overrun_of(node: Mapping[str, Any]) -> bool:
    """Return whether a call is marked as an overrun of its reservation."""
    return not {OVERRUN_TOKENS, OVERRUN_USD}.isdisjoint(node.get("metadata") or {})


def _is_unseen(made: Generation) -> bool:
    """Return whether nothing shows that a text has more tokens than its near bound.

    Without counts, an input is charged with that bound.
    """
    return made.lost and made.bill.is_unusual


def _by_call(
    generations: Sequence[Generation], nodes: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], tuple[list[Generation], list[Mapping[str, Any]]]]:
    calls: dict[tuple[str, str], tuple[list[Generation], list[Mapping[str, Any]]]]
    calls = defaultdict(lambda: ([], []))
    for made in generations:
        assert made.call is not None
        calls[made.call[1:]][0].append(made)
    for node in nodes:
        calls[node["run_id"], node["metadata"].get("call_key", "")][1].append(node)
    return calls


def _wrong_charges(
    generations: Sequence[Generation], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the calls that are charged less than the provider counted."""
    for (run, _), (made, charged) in _by_call(generations, nodes).items():
        if not made or any(map(overrun_of, charged)):
            continue
        counted = sum((each.cost_usd for each in made), Decimal(0))
        cost = sum((Decimal(str(node["cost_usd"] or 0)) for node in charged), Decimal(0))
        if any(map(_is_unseen, made)):
            continue
        if cost < counted - CENT:
            yield f"{run} {described(made)}: charged ${cost:.6f} of ${counted:.6f}"
        exact = [each for each in made if not each.lost]
        if len(exact) == len(made) and len(made) == 1 and abs(cost - counted) > CENT:
            yield f"{run} {described(made)}: charged ${cost:.6f}, counted ${counted:.6f} exactly"


def _unexplained_overruns(
    generations: Sequence[Generation], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the overruns of complete replies to ordinary text, for which both bounds hold."""
    for (run, _), (made, charged) in _by_call(generations, nodes).items():
        if not any(map(overrun_of, charged)):
            continue
        if all(each.is_complete and each.behaviour.counts == "right" for each in made) and not any(
            each.bill.is_unusual or each.bill.is_hidden for each in made
        ):
            yield f"{run} {described(made)}: an overrun that nothing explains"


@dataclass(frozen=True, slots=True)
class _Cost:
    """What one call cost the provider."""

    run: str
    cost_usd: Decimal
    tokens: int
    made: Sequence[Generation]


def _costs(
    generations: Sequence[Generation], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[_Cost]:
    """Yield the costs of the calls; a marked overrun excludes a call from that limit only."""
    for (run, _), (made, charged) in _by_call(generations, nodes).items():
        marks = {mark for node in charged for mark in node.get("metadata") or {}}
        cost, tokens = Decimal(0), 0
        if OVERRUN_USD not in marks:
            cost = sum((each.cost_usd for each in made), cost)
        if OVERRUN_TOKENS not in marks:
            tokens = sum(each.counted for each in made)
        if any(map(_is_unseen, made)):
            cost = min(cost, sum((Decimal(str(n["cost_usd"] or 0)) for n in charged), Decimal(0)))
            tokens = min(
                tokens, sum((n["tokens_in"] or 0) + (n["tokens_out"] or 0) for n in charged)
            )
        yield _Cost(run, cost, tokens, made)


def _exceeded_limits(
    story: Story, generations: Sequence[Generation], nodes: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    costs = list(_costs(generations, nodes))
    for run in story.runs:
        names = {f"r{number}" for number in descendants(story.runs, run.number)}
        own = [each for each in costs if each.run in names]
        cost, limit = _sum(own), run.budget.get("max_cost_usd")
        if limit is not None and cost > Decimal(str(limit)) + CENT:
            yield f"run r{run.number}: ${cost:.6f} of ${limit}: {_all(own)}"
        tokens, most = sum(each.tokens for each in own), run.budget.get("max_tokens")
        if most is not None and tokens > most:
            yield f"run r{run.number}: {tokens} tokens of {most}: {_all(own)}"
    for name, quota in story.quota.items():
        if (cost := _sum(costs)) > quota + CENT:
            yield f"{name}: ${cost:.6f} of ${quota}: {_all(costs)}"


def _sum(costs: Sequence[_Cost]) -> Decimal:
    return sum((each.cost_usd for each in costs), Decimal(0))


def _all(costs: Sequence[_Cost]) -> str:
    return described([made for each in costs for made in each.made])


def _superseded(story: Story, generations: Sequence[Generation]) -> Iterator[str]:
    """Yield the calls of a key that reached the provider after the next attempt was opened."""
    for call in story.calls:
        opened = story.runs[call.run].opened_at if call.run >= 0 else []
        if call.sent_attempt and call.sent_attempt < len(opened):
            for made in generations:
                if made.marker == call.marker and made.asked_at > opened[call.sent_attempt]:
                    yield f"{call.marker}: a superseded key made a call"


def described(generations: Sequence[Generation]) -> str:
    """Return the features that distinguish some requests."""
    return "; ".join(
        f"{made.marker} {made.family.alias} in {made.bill.tokens_in} out {made.counted_out}"
        f" ({ending_of(made)}, counts {made.behaviour.counts}{', unusual' * made.bill.is_unusual}"
        f"{''.join(f', {reason}' for reason in dict.fromkeys(made.bill.reasons))})"
        for made in generations[:6]
    )


def ending_of(made: Generation) -> str:
    """Return how a generation ended."""
    kind = "stream" if made.is_streamed else "reply"
    if made.is_complete:
        return f"complete {kind}"
    cut = made.behaviour.cut_at is not None
    return f"cut {kind}" if cut else f"closed {kind}"


def _reached(
    story: Story, generations: Sequence[Generation], nodes: Sequence[Mapping[str, Any]]
) -> Counter[str]:
    seen = Counter[str]()
    for made in generations:
        seen[ending_of(made)] += 1
        seen[f"counts {made.behaviour.counts}"] += 1
        seen[f"model {made.family.alias}"] += 1
        seen.update(f"accepted {reason}" for reason in set(made.bill.reasons))
        if made.thinking and made.is_streamed:
            seen["thinking shown" if made.behaviour.shows_thinking else "thinking hidden"] += 1
        if made.written:
            seen["cache written"] += 1
        if made.cached:
            seen["cache read"] += 1
    for call in story.calls:
        if call.drawn is None:
            continue
        answer = "accepted" if call.answer.status == 200 else f"answer {call.answer.status}"
        seen[answer] += 1
        said = call.answer.json() if call.answer.status >= 400 else None
        if isinstance(said, dict) and said.get("error", {}).get("code") == "budget":
            seen["refused by a limit"] += 1
        seen["adversarial text" if call.drawn.is_adversarial else "ordinary text"] += 1
        seen.update(f"drawn {name}" for name in call.drawn.fields)
        if call.answer.error is not None:
            seen[f"raised {type(call.answer.error).__name__}"] += 1
        if call.gone_at is not None:
            seen["client gone"] += 1
        if call.pause_seconds:
            seen["body with a pause"] += 1
    for run in story.runs:
        if run.run_id:
            seen["child run" if run.parent is not None else "run"] += 1
            seen["agent run"] += bool(run.agents)
            seen["later attempt"] += len(run.opened_at) > 1
    seen["quota"] += bool(story.quota)
    seen["estimated"] += sum("estimated" in (node["metadata"] or {}) for node in nodes)
    seen["overrun"] += sum(map(overrun_of, nodes))
    seen.update(f"event {event.kind}" for event in story.events)
    return seen
