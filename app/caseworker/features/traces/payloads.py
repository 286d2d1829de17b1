"""The requests and replies of a run's calls, in a displayable form for traces.

Neither long prompts nor the inputs of steps are stored. Each call in a conversation stores only the
messages that it adds, and the number of messages before them. A message with the reply or result of
another call stores a reference to that call. A step with incoming flow edges received the outputs
of the preceding steps. Any other step received the inputs of its graph: those of the run, or those
of the step that executes the graph.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from caseworker.core.graph.graph import shape_of
from caseworker.core.trace.analysis import waiting_nodes
from caseworker.core.trace.execution_graph import snapshot_of
from caseworker.core.trace.node import WAITS
from caseworker.core.trace.payloads import REDACTED, Payload, Payloads
from caseworker.engine.context import Outputs
from caseworker.engine.ports import BULK, CallOutcome
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.report import Routing
from caseworker.engine.step_path import StepPath
from caseworker.models.message_log import OF_BRANCH
from caseworker.models.relay import WIRE
from caseworker.nodes.agent.references import REPLY_OF, key_in_message, whole_message
from caseworker.runs.errors import RunNotFoundError
from caseworker.runs.kinds import KINDS
from caseworker.runs.ports import Branches, RunStore
from caseworker.runs.run import CallRecord, Run, RunKey, RunRequest, RunStatus

AFTER = "after"
"""Key in a stored request that describes the preceding messages: ``call_key`` is the first call of
the conversation, ``messages`` is the number of preceding messages."""


def beginning_of(request: Any) -> str | None:
    """Return the key of the conversation's first call; None if ``request`` is complete."""
    after = request.get(AFTER) if isinstance(request, Mapping) else None
    return None if after is None else after["call_key"]


def refers_to_branch(request: Any) -> bool:
    """Return whether the stored request refers to messages of a thread instead of containing them.

    A reference is a message with the key ``OF_BRANCH``.
    """
    messages = request.get("messages") if isinstance(request, Mapping) else None
    return isinstance(messages, list) and any(
        isinstance(each, Mapping) and OF_BRANCH in each for each in messages
    )


def with_branch(request: Mapping[str, Any], branch: Sequence[Any]) -> dict[str, Any]:
    """Return a request with the messages that a thread stores.

    ``branch`` are the messages of the thread. Those that it lacks are counted in
    ``messages_left_out``.
    """
    stated = request["messages"]
    messages = [message for _, message in _numbered(stated, 0, branch)]
    count = sum(each["count"] if OF_BRANCH in each else 1 for each in stated)
    left_out = count - len(messages)
    return {**request, "messages": messages} | ({"messages_left_out": left_out} if left_out else {})


def _numbered(
    stated: Sequence[Any], start: int, branch: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    """Yield the messages of a request by their positions, from ``start``."""
    for each in stated:
        if not (isinstance(each, Mapping) and OF_BRANCH in each):
            yield start, each
            start += 1
            continue
        first, count = each[OF_BRANCH], each["count"]
        yield from enumerate(branch[first : first + count], start)
        start += count


def whole_request(
    record: CallRecord,
    stored: Sequence[CallRecord],
    display: Callable[[Any], Any],
    branch: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return the complete request of a call, including the messages before its own.

    ``stored`` holds the calls of the conversation and the calls that they reference, in order.
    Messages of missing calls are counted in ``messages_left_out``. ``display`` redacts a result for
    display. ``branch`` are the messages of the run's thread, if it has one.
    """
    request_of_call: Mapping[str, Any] = record.request or {}
    root = beginning_of(request_of_call)
    values = {each.call_key: each.value for each in stored if each.outcome == CallOutcome.RESULT}
    messages: dict[int, Any] = {}
    request: dict[str, Any] = {}
    for each in (*stored, record):
        earlier = each.request
        if earlier is None or (each.call_key != root and beginning_of(earlier) != root):
            continue
        if each is record or each.outcome == CallOutcome.RESULT:
            # unchanged parameters are stored only once: an empty request inherits them
            request = {n: earlier[n] for n in earlier if n not in (AFTER, "messages")} or request
        start = earlier.get(AFTER, {}).get("messages", 0)
        messages |= _numbered(earlier["messages"], start, branch)
    last = request_of_call[AFTER]["messages"] + len(request_of_call["messages"])
    present = [_full(messages[at], values, display) for at in range(last) if at in messages]
    left_out = last - len(present)
    return {"messages": present, **request} | ({"messages_left_out": left_out} if left_out else {})


def _full(message: Any, values: Mapping[Any, Any], display: Callable[[Any], Any]) -> Any:
    """Return a message with its referenced result inserted, if that is available."""
    key = key_in_message(message)
    if key not in values:
        return message
    value = display(values[key]) or {}
    state = value.get("provider_state") if REPLY_OF in message else None
    return whole_message(message, value) | ({"provider_state": state} if state else {})


@dataclass(frozen=True, slots=True)
class StepSources:
    """Where the inputs of one step come from."""

    step_id: str
    routing: Routing
    keys: Mapping[str, str]
    """Journal keys of the preceding steps, by step ID; empty if the inputs are those of the
    graph."""

    def inputs(self, outputs: Mapping[str, Outputs]) -> Outputs:
        """Return the inputs by handle; ``outputs`` maps journal keys to step outputs."""
        for step_id, key in self.keys.items():
            self.routing.reports[step_id].outputs = outputs.get(key, {})
        return self.routing.inputs_of(self.step_id)


def input_sources_of(request: RunRequest, path: StepPath) -> StepSources | None:
    """Return the sources of a step's inputs; None if the run's graph does not define them.

    That is the case inside a ``map`` step or a fallback.
    """
    rules = KINDS[request.kind]
    graph = rules.graph(request)
    ways: list[tuple[StepPath | None, str, PreparedGraph]] = []
    within: StepPath | None = None
    for at in path.lineage():
        prepared = PreparedGraph(shape_of(graph), {})
        step = prepared.topology.steps.get(at.attempts()[0].step_id)
        if step is None or step.id not in prepared.topology.active:
            return None
        ways.append((within, step.id, prepared))
        within, graph = at, step.data["graph"] if step.type == "subgraph" else {}
    while len(ways) > 1 and ways[-1][1] in ways[-1][2].topology.entries:
        ways.pop()  # an entry step received the inputs of the step that executes its graph
    within, step_id, prepared = ways[-1]
    routing = Routing(prepared, rules.inputs(request), within)
    edges = prepared.topology.incoming.get(step_id, ())
    keys = {edge.source: routing.path_of(edge.source).record_key for edge in edges}
    return StepSources(step_id, routing, keys)


_NODE_ID: Final = re.compile(r"n[0-9]{6,9}", re.ASCII)


class CallNotFoundError(LookupError):
    """The run has no call with this node ID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPayload:
    """One CallNode of a run, with its request and reply."""

    run: Run
    record: CallRecord
    payload: Payload
    attempts: tuple[Mapping[str, Any], ...]
    """Nodes of the attempts at the call, in order; empty if the first attempt succeeded."""
    root: Mapping[str, Any]
    """Root node of the run's ExecutionGraph."""
    waits: bool = False
    """Whether the call is waiting for an approval."""


class PayloadReader:
    """Reads requests and replies from the store, and redacts them as configured."""

    def __init__(
        self,
        store: RunStore,
        payloads: Payloads = REDACTED,
        *,
        max_shown_bytes: int,
        branches: Branches | None = None,
    ) -> None:
        """Read from ``store``; ``max_shown_bytes`` limits the total size of a trace's payloads.

        ``branches`` has the messages of threads; without it, prompts lack them.
        """
        self._store = store
        self._branches = branches
        self._payloads = payloads
        self._max_shown_bytes = max_shown_bytes

    async def call(self, key: RunKey, node_id: str) -> CallPayload:
        """Return one call of a run, with its request and reply.

        Raises:
            RunNotFoundError: the run does not exist.
            CallNotFoundError: the run has no CallNode with this ID.
        """
        run = await self._store.get(key)
        if run is None:
            raise RunNotFoundError(key.run_id)
        records = await self._store.call(key, node_id) if _NODE_ID.fullmatch(node_id) else ()
        nodes = {record.node_id: record for record in records}
        if node_id not in nodes:
            raise CallNotFoundError(node_id)
        record = nodes.pop(node_id)
        attempts = [each.node for each in nodes.values() if each.node["parent_id"] == node_id]
        root = next((each.node for each in records if each.node["parent_id"] is None), record.node)
        waits = run.status is RunStatus.WAITING and await self._waits(key, record)
        return CallPayload(
            run=run,
            record=record,
            payload=await self._complete_payload(run, record),
            attempts=tuple(attempts),
            root=root,
            waits=waits,
        )

    async def _waits(self, key: RunKey, record: CallRecord) -> bool:
        """Return whether this call is the one for which the run waits."""
        is_root = record.node["parent_id"] is None
        if is_root or record.node["stop_reason"] != WAITS:
            return is_root
        nodes = [each.node for each in await self._store.calls(key)]
        snapshot = snapshot_of(key.run_id, nodes, at_ms=0)
        return record.node_id in waiting_nodes(snapshot)

    async def of_run(
        self, key: RunKey, node_ids: Sequence[str] | None = None
    ) -> Mapping[str, Payload]:
        """Return the payloads of a run's first calls, by node ID, up to the size limit.

        ``node_ids`` selects calls; None selects all.
        The request of a call in a conversation contains only the messages that the call added, and
        the number of messages before them.
        """
        if self._payloads.mode == "none":
            return {}
        records = await self._store.payloads(
            key, max_bytes=self._max_shown_bytes, node_ids=node_ids
        )
        branch: Sequence[Any] = ()
        if any(refers_to_branch(record.request) for record in records):
            run = await self._store.get(key)
            branch = () if run is None else await self._branch_of(run)
        return await asyncio.to_thread(
            lambda: {
                record.node_id: _in_full(self._payload_of(record), branch) for record in records
            }
        )

    async def _branch_of(self, run: Run) -> Sequence[Any]:
        """Return the messages of the run's thread that the run received, as traces show them."""
        if self._branches is None or run.request.chat is None:
            return ()
        messages = [message.to_json() for message in await self._branches.shown_for(run)]
        prompt = await asyncio.to_thread(self._payloads.prompt, messages, {})
        displayed: Sequence[Any] = () if prompt is None else prompt["messages"]
        return displayed

    async def _complete_payload(self, run: Run, record: CallRecord) -> Payload:
        """Return the payload of a call or step, including data stored with other records."""
        payload = self._payload_of(record, await self._inputs_of(run, record))
        began = beginning_of(record.request) if record.node["kind"] == "llm" else None
        if payload.request is None or (began is None and not refers_to_branch(record.request)):
            return payload
        if began is None:
            return _in_full(payload, await self._branch_of(run))
        stored = await self._store.conversation(
            run.key, began, until=record, max_bytes=self._max_shown_bytes
        )
        is_chat = any(refers_to_branch(each.request) for each in stored)
        branch = await self._branch_of(run) if is_chat else ()
        request = whole_request(record, stored, self._payloads.display, branch)
        return replace(payload, request=request)

    async def _inputs_of(self, run: Run, record: CallRecord) -> Any:
        """Return the inputs of a step; None for calls, and if the inputs are unavailable."""
        path = StepPath.of_record(record.call_key or "")
        if path.record_key != record.call_key or self._payloads.mode == "none":
            return None
        sources = input_sources_of(run.request, path)
        if sources is None:
            return None
        if not sources.keys:
            return self._payloads.display(sources.inputs({}))
        # The step comes last, so if it is missing the size limit was reached before it.
        source_keys = (*sources.keys.values(), record.call_key)
        records = await self._store.payloads(
            run.key, max_bytes=self._max_shown_bytes, call_keys=source_keys
        )
        outputs = {each.call_key: _reply_of(each) or {} for each in records if each.call_key}
        if record.call_key not in outputs:
            return None
        return self._payloads.display(sources.inputs(outputs))

    def _payload_of(self, record: CallRecord, inputs: Any = None) -> Payload:
        request: Any = inputs if record.request is None else record.request
        if request is None and "args" in record.node["metadata"]:
            request = {"args": record.node["metadata"]["args"]}
        if self._payloads.mode == "none":
            request = None
        return Payload(request=request, reply=self._payloads.display(_reply_of(record)))


def _in_full(payload: Payload, branch: Sequence[Any]) -> Payload:
    if not refers_to_branch(payload.request):
        return payload
    return replace(payload, request=with_branch(payload.request, branch))


def _reply_of(record: CallRecord) -> Any:
    """Return the result of a call or the outputs of a step.

    For a failed model call, return the beginning of the raw reply, if there was one.
    """
    if record.outcome == CallOutcome.RESULT:
        if record.node["kind"] != "llm" or not isinstance(record.value, Mapping):
            return record.value
        # The packed reply cannot be redacted, and may be long.
        return {name: it for name, it in record.value.items() if name not in (WIRE, BULK)}
    failed = record.value if isinstance(record.value, Mapping) else {}
    if (raw := failed.get("raw_reply")) is not None:
        return {"raw_reply": raw}
    return failed.get("outputs") or None
