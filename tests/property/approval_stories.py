"""Stories of runs whose calls wait for approvers and for clients, drawn from a seed."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.engine.waiting_calls import ERROR, OUTPUT, Author, Verdict
from caseworker.features.waiting_calls.waiting_calls import (
    Approval,
    ApprovalDecidedError,
    CallAnsweredError,
    Deciding,
    RunWaitingCalls,
)
from caseworker.platform.caller import Caller, KeyScope
from caseworker.runs.run import RunKey, RunSource, RunStatus
from tests.support.event_log import event_problems
from tests.support.memory_rows import Row
from tests.support.seeded_loop import run as run_seeded
from tests.support.virtual_cluster import Cluster, ExternalCall, Work

KEY, FORK = RunKey("t", "r0"), RunKey("t", "r1")
APPROVE, REFUSE = Verdict.APPROVED, Verdict.REFUSED
CLIENT = Caller(tenant="t", name="client", scopes=frozenset({KeyScope.RUN}))
FAILED = {"class": "KeyError", "message": "There is none."}
ANSWERS: tuple[tuple[Verdict, dict[str, Any]], ...] = (
    (APPROVE, {OUTPUT: "one"}),
    (APPROVE, {OUTPUT: "two"}),
    (REFUSE, {ERROR: FAILED}),
)
"""The answers of clients."""
DAY_SECONDS = 86_400.0
"""A time limit that no story reaches: a lost answer would end in no other way."""


@dataclass(frozen=True, slots=True)
class Response:
    """The reply of the service to an answer."""

    key: RunKey
    deciding: Deciding
    status: int
    open_before: bool
    """Whether the call was open when the answer was sent."""
    after: Approval
    """The call after the reply."""


class Story:
    """One run on a cluster whose processes may be lost, its approvers, its client and its fork."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"approvals {seed}")
        self.of_clients = random.Random(f"clients {seed}")
        self.accepted: list[tuple[str, Verdict]] = []
        """The decisions that the service accepted."""
        self.responses: list[Response] = []
        self.limit = Budget()
        self.eagerness = self.of_clients.choice([0.05, 0.4])
        """The probability that clients answer an open call when they look at it."""

    async def __call__(self, cluster: Cluster) -> None:
        chance, of_clients = self.chance, self.of_clients
        work = Work(
            calls=chance.choice([1, 2]),
            lanes=chance.choice([1, 2, 3]),
            trouble=0.0,
            patience=of_clients.choice([2.0, 30.0, DAY_SECONDS]),
            clients=of_clients.choice([0.0, 0.5, 1.0]),
        )
        to = chance.choice([*(each.service for each in cluster.processes), cluster.replica])
        self.limit = Budget(
            max_api_calls=chance.choice([None, None, 1]),
            max_tool_calls=of_clients.choice([None, None, 1, 2, 3]),
        )
        await cluster.post("r0", work, self.limit, to=to)
        await self._play(cluster, KEY)
        if of_clients.random() < 0.5 and await _ended(cluster, KEY):
            source = RunSource("r0")
            await cluster.post("r1", work, self.limit, to=cluster.replica, source=source)
            await self._play(cluster, FORK)

    async def _play(self, cluster: Cluster, key: RunKey) -> None:
        others = [self._lose(cluster), self._cancel(cluster, key)]
        tasks = [asyncio.create_task(each) for each in (*others, self._decide(cluster, key))]
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _lose(self, cluster: Cluster) -> None:
        for process in cluster.processes:
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.choice([0.05, 0.5, self.chance.uniform(0, 6)]))
                for key in cluster.database.lose(process.name):
                    cluster.diary.note("lost", key)

    async def _cancel(self, cluster: Cluster, key: RunKey) -> None:
        if self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.uniform(0, 8))
            heard = self.chance.random() < 0.5
            await cluster.delete(key.run_id, to=cluster.replica, heard=heard)

    async def _decide(self, cluster: Cluster, key: RunKey) -> None:
        desk = RunWaitingCalls(cluster.approvals)
        for _ in range(400):
            run = cluster.database.rows[key].run
            if run is not None and run.finished:
                return
            await asyncio.sleep(self.chance.choice([0.0, 0.02, 0.5]))
            for call in await desk.of_run(key):
                is_client = call.question.author is Author.CLIENT
                if is_client and (call.open or self.of_clients.random() < 0.1):
                    if self.of_clients.random() < self.eagerness:
                        await self._answer(cluster, desk, call)
                elif call.open and self.chance.random() < 0.3:
                    async with asyncio.TaskGroup() as people:
                        for _ in range(2):
                            people.create_task(self._say(desk, call))

    async def _say(self, desk: RunWaitingCalls, approval: Approval) -> None:
        verdict = self.chance.choice([APPROVE, APPROVE, REFUSE])
        await asyncio.sleep(self.chance.choice([0.0, 0.01]))
        deciding = Deciding(approval_id=approval.approval_id, verdict=verdict, by="somebody")
        try:
            await desk.decide(approval.key, deciding)
        except ApprovalDecidedError:
            return
        self.accepted.append((approval.approval_id, verdict))

    async def _answer(self, cluster: Cluster, desk: RunWaitingCalls, call: Approval) -> None:
        """Let two clients answer a call at the same time."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(2):
                verdict, answer = self.of_clients.choice(ANSWERS)
                deciding = Deciding(
                    approval_id=call.approval_id, verdict=verdict, by="client", arguments=answer
                )
                clients.create_task(self.respond(cluster, desk, call.key, deciding))

    async def respond(
        self, cluster: Cluster, desk: RunWaitingCalls, key: RunKey, deciding: Deciding
    ) -> None:
        """Answer a call, and record the reply."""
        await asyncio.sleep(self.of_clients.choice([0.0, 0.01]))
        was_open = _is_open(cluster.database.rows[key], deciding.approval_id, cluster)
        try:
            answered = await desk.answer(key, deciding, CLIENT)
        except CallAnsweredError:
            status = 409
        else:
            status = 202 if answered.is_new else 200
        after = await desk.store.get(key, deciding.approval_id)
        assert after is not None
        self.responses.append(Response(key, deciding, status, was_open, after))


def _is_open(row: Row, call_id: str, cluster: Cluster) -> bool:
    """Return whether a call has no answer, has not expired, and its run is not stopped."""
    call, run = row.approvals[call_id], row.run
    in_time = call.expires_at > cluster.database.now()
    goes_on = run is not None and not run.finished and run.cancel_request is None
    return call.decision is None and in_time and goes_on


async def _ended(cluster: Cluster, key: RunKey) -> bool:
    """Wait for the end of a run; return False if none comes."""
    for _ in range(400):
        run = cluster.database.rows[key].run
        if run is not None and run.finished:
            return True
        await asyncio.sleep(0.5)
    return False


def played(seed: int, **variant: Any) -> tuple[Cluster, Story]:
    """Play the story of a seed, and require that no task is left over."""
    story = Story(seed)

    async def main() -> Cluster:
        cluster = await Cluster(seed, **variant).play(story)
        desk = RunWaitingCalls(cluster.approvals)
        for key, row in cluster.database.rows.items():
            for call in row.approvals.values():
                if call.question.author is Author.CLIENT:  # its run has ended
                    verdict, answer = story.of_clients.choice(ANSWERS)
                    late = Deciding(
                        approval_id=call.approval_id, verdict=verdict, by="late", arguments=answer
                    )
                    await story.respond(cluster, desk, key, late)
        return cluster

    told = run_seeded(main, seed)
    assert told.leftover == (), f"seed {seed}: {told.leftover}"
    return told.result, story


def problems(cluster: Cluster, story: Story) -> Iterator[str]:
    """Yield each violated promise."""
    for key in cluster.database.rows:
        yield from _of_run(cluster, story, key)
        yield from _of_client_calls(cluster, story, key)
    yield from _of_responses(story)
    yield from _of_fork(cluster)
    for call_key in cluster.approvals.unjournaled:
        yield f"{call_key} was asked before the journal had it"


def _of_run(cluster: Cluster, story: Story, key: RunKey) -> Iterator[str]:
    row = cluster.database.rows[key]
    approvals: dict[str, Approval] = row.approvals
    made = [event.detail for event in cluster.diary.of(key, "call")]
    of_call = {each.call_key.removesuffix("/approval"): each for each in approvals.values()}
    for call in made:
        assert isinstance(call, ExternalCall)
        approval = of_call.get(call.call.key.text)
        imported = key == FORK and approval is None  # its decision was made in the source
        if not imported and not (approval and approval.decision and approval.decision.approved):
            yield f"{call.call.key} was called without an approval"
        times = sum(other.call.key == call.call.key for other in made)
        if times > 1 and not call.call.repeatable:
            yield f"{call.call.key} was called {times} times"
    if len(of_call) != len(approvals):
        yield "a call was asked for more than once"
    for approval_id, verdict in story.accepted:
        decision = approvals[approval_id].decision if approval_id in approvals else None
        if approval_id in approvals and (decision is None or decision.verdict is not verdict):
            yield f"somebody was told that {approval_id} is {verdict}"
    told = Counter(
        (event.type, event.data.get("approval_id") or event.data.get("call_id"))
        for event in row.events.values()
        if event.type in ("approval.requested", "required_action")
    )
    if any(times > 1 for times in told.values()):
        yield "a question was told twice"
    if row.run is not None:
        log = [row.events[seq] for seq in sorted(row.events)]
        yield from event_problems(log, row.run.status)
    if row.run is not None and row.run.status is RunStatus.COMPLETED:
        reached = {call.call.key.text for call in made}
        for path, approval in of_call.items():
            if approval.decision is None:
                yield f"{path} was passed without a decision"
            elif approval.question.author is Author.CLIENT:
                continue
            elif approval.decision.approved and path not in reached:
                yield f"{path} was approved and never called"


def _of_client_calls(cluster: Cluster, story: Story, key: RunKey) -> Iterator[str]:
    """Check the charges of the calls of clients, and the results that the run used."""
    row = cluster.database.rows[key]
    charged = _charged(row)
    used = (row.run.usage or {}).get("tool_calls", 0) if row.run is not None else 0
    calls = {
        each.call_key: each
        for each in row.approvals.values()
        if each.question.author is Author.CLIENT
    }
    for path, amount in charged.items():
        if amount > 1:
            yield f"{path} is charged {amount} times"
    if used != sum(charged.values()):
        yield f"{key.run_id} uses {used} tool calls, and its journal has {dict(charged)}"
    if any(charged[path] != 1 for path in calls):
        yield f"{key.run_id} has asked {sorted(calls)} and charged {dict(charged)}"
    limit = story.limit.max_tool_calls
    if limit is not None and used > limit:
        yield f"{key.run_id} uses {used} tool calls of {limit}"
    for event in cluster.diary.of(key, "client result"):
        path, result = event.detail
        call = calls.get(path)
        if call is None:
            if key == KEY:
                yield f"{path} has a result and was never asked"
        elif result != _result_of(call):
            yield f"{path} was answered by {call.decision} and used as {result}"


def _charged(row: Row) -> Counter[str]:
    """Return how often each call of a tool is charged as one."""
    charged = Counter[str]()
    for record in row.calls.values():
        if (amount := record.charge.get("tool_calls", 0)) and record.call_key:
            charged[record.call_key] += int(amount)
    return charged


def _result_of(call: Approval) -> Any:
    """Return the result that the model reads of a call with this answer."""
    decision = call.decision
    if decision is None:
        return "no answer"
    if decision.verdict is Verdict.TIMED_OUT:
        seconds = f"{call.question.timeout_seconds:g}"
        message = f"The client did not answer within {seconds} seconds."
        return {"error": message, "code": "not_answered"}
    if decision.verdict is APPROVE:
        return decision.arguments
    return {"error": FAILED["message"], "code": FAILED["class"]}


def _of_responses(story: Story) -> Iterator[str]:
    """Check that one answer of each call is accepted, and only its repetitions are confirmed."""
    responses = defaultdict[str, list[Response]](list)
    for each in story.responses:
        responses[each.deciding.approval_id].append(each)
    for call_id, of_call in responses.items():
        accepted = [each.deciding for each in of_call if each.status == 202]
        if len(accepted) > 1:
            yield f"{len(accepted)} answers of {call_id} were accepted"
        final = of_call[-1].after.decision
        for each in of_call:
            is_final = each.deciding.is_same_as(final)
            if each.status != 409 and not is_final:
                yield f"{each.deciding} was confirmed, and {call_id} has {final}"
            if each.status == 409 and (is_final or each.after.open):
                yield f"{each.deciding} was refused, and {call_id} has {final}"
            if each.status == 202 and not each.open_before:
                yield f"{call_id} was answered when it was not open"


def _of_fork(cluster: Cluster) -> Iterator[str]:
    """Check that a fork asks nothing that its source knows, and uses other IDs."""
    source, fork = cluster.database.rows.get(KEY), cluster.database.rows.get(FORK)
    if source is None or fork is None:
        return
    results = {each.call_key for each in source.calls.values() if each.outcome == "result"}
    for call in fork.approvals.values():
        if call.call_key in results:
            yield f"the fork has asked {call.call_key} again"
    if source.approvals.keys() & fork.approvals.keys():
        yield "the fork uses an ID of its source"
