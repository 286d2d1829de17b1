"""What the calls of a run asked and what they got, read for whoever looks at a trace."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from app.engine.ports import CallOutcome
from app.runs.conversations import beginning_of, whole_request
from app.runs.errors import CallNotFoundError, RunNotFoundError
from app.runs.ports import RunStore
from app.runs.run import CallRecord, Run, RunKey
from app.trace.payloads import REDACTED, Payload, Payloads

_NODE_ID: Final = re.compile(r"n[0-9]{6,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPayload:
    """One CallNode of a run with its payload."""

    run: Run
    record: CallRecord
    payload: Payload
    attempts: tuple[Mapping[str, Any], ...]
    """The nodes of its attempts, in their order; none if the first one succeeded."""
    root: Mapping[str, Any]
    """The root of the run's ExecutionGraph."""


class PayloadReading:
    """Shows requests and replies as the configuration allows."""

    def __init__(
        self,
        store: RunStore,
        payloads: Payloads = REDACTED,
        *,
        max_shown_bytes: int,
    ) -> None:
        """Read from ``store``; no trace shows more than ``max_shown_bytes`` of them together."""
        self._store = store
        self._payloads = payloads
        self._max_shown_bytes = max_shown_bytes

    @property
    def mode(self) -> str:
        """How payloads are shown: ``redacted``, ``none`` or ``full``."""
        return self._payloads.mode

    async def call(self, key: RunKey, node_id: str) -> CallPayload:
        """Return one call of a run.

        Raises:
            RunNotFoundError: there is no such run.
            CallNotFoundError: the run has no such CallNode.
        """
        run = await self._store.get(key)
        if run is None:
            raise RunNotFoundError(key.run_id)
        found = await self._store.call(key, node_id) if _NODE_ID.fullmatch(node_id) else ()
        nodes = {record.node_id: record for record in found}
        if node_id not in nodes:
            raise CallNotFoundError(node_id)
        record = nodes.pop(node_id)
        payload = self._shown(record)
        if (began := beginning_of(payload.request)) is not None:
            stored = await self._store.conversation(
                key, began, until=record, max_bytes=self._max_shown_bytes
            )
            whole = whole_request(record, stored, self._payloads.shown)
            payload = replace(payload, request=whole)
        attempts = [each.node for each in nodes.values() if each.node["parent_id"] == node_id]
        root = next((each.node for each in found if each.node["parent_id"] is None), record.node)
        return CallPayload(
            run=run,
            record=record,
            payload=payload,
            attempts=tuple(attempts),
            root=root,
        )

    async def of_run(self, key: RunKey) -> Mapping[str, Payload]:
        """Return the payloads of a run's first calls by node, as many as may be shown together.

        A call of a conversation shows the messages that it adds, and after how many they stand.
        """
        if self._payloads.mode == "none":
            return {}
        records = await self._store.payloads(key, max_bytes=self._max_shown_bytes)
        return {record.node_id: self._shown(record) for record in records}

    def _shown(self, record: CallRecord) -> Payload:
        request: Any = record.request
        if request is None and "args" in record.node["metadata"]:
            request = {"args": record.node["metadata"]["args"]}
        if self._payloads.mode == "none":
            request = None
        return Payload(request=request, reply=self._payloads.shown(_reply_of(record)))


def _reply_of(record: CallRecord) -> Any:
    """Return what a call brought, or a step produced; a failure stands in its node."""
    if record.outcome == CallOutcome.RESULT:
        return record.value
    partial = record.value.get("outputs") if isinstance(record.value, Mapping) else None
    return partial or None
