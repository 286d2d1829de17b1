"""The requests and replies of a run's calls, in a displayable form for traces."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from caseworker.core.trace.analysis import waiting_nodes
from caseworker.core.trace.execution_graph import snapshot_of
from caseworker.core.trace.node import WAITS
from caseworker.core.trace.payloads import REDACTED, Payload, Payloads
from caseworker.engine.ports import CallOutcome
from caseworker.engine.step_path import StepPath
from caseworker.runs.errors import CallNotFoundError, RunNotFoundError
from caseworker.runs.ports import Branches, RunStore
from caseworker.runs.read.conversations import (
    beginning_of,
    names_branch,
    whole_request,
    with_branch,
)
from caseworker.runs.read.step_inputs import input_sources_of
from caseworker.runs.run import CallRecord, Run, RunKey, RunStatus

_NODE_ID: Final = re.compile(r"n[0-9]{6,9}", re.ASCII)


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


class PayloadReading:
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
        if any(names_branch(record.request) for record in records):
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
        if payload.request is None or (began is None and not names_branch(record.request)):
            return payload
        if began is None:
            return _in_full(payload, await self._branch_of(run))
        stored = await self._store.conversation(
            run.key, began, until=record, max_bytes=self._max_shown_bytes
        )
        is_chat = any(names_branch(each.request) for each in stored)
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
        call_keys_ = (*sources.keys.values(), record.call_key)
        records = await self._store.payloads(
            run.key, max_bytes=self._max_shown_bytes, call_keys=call_keys_
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
    if not names_branch(payload.request):
        return payload
    return replace(payload, request=with_branch(payload.request, branch))


def _reply_of(record: CallRecord) -> Any:
    """Return the result of a call or the outputs of a step.

    For a failed model call, return the beginning of the raw reply, if there was one.
    """
    if record.outcome == CallOutcome.RESULT:
        return record.value
    failed = record.value if isinstance(record.value, Mapping) else {}
    if (raw := failed.get("raw_reply")) is not None:
        return {"raw_reply": raw}
    return failed.get("outputs") or None
