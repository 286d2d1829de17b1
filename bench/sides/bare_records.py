"""The floor for every call graph: plain dicts in a list, without a lock, rules or totals."""

import gc
from time import process_time
from typing import Any

from bench.answering import answer


def life(nodes: int) -> float:
    """Return the seconds to append one record, set it running and end it."""
    gc.collect()
    began = process_time()
    _grow(nodes)
    return (process_time() - began) / nodes


def snapshot(nodes: int) -> float:
    """Return the seconds to copy every record and its metadata."""
    records = _grow(nodes)
    began = process_time()
    _ = [{**record, "metadata": {**record["metadata"]}} for record in records]
    return process_time() - began


def _grow(nodes: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number in range(nodes):
        record: dict[str, Any] = {
            "node_id": number,
            "parent_id": 0,
            "kind": "llm",
            "name": "plan_step",
            "start_ts_ms": number,
            "end_ts_ms": None,
            "status": "created",
            "model": "claude-sonnet-4-6",
            "retries_used": 0,
            "cost_usd": 0.0,
            "tokens_in": None,
            "tokens_out": None,
            "stop_reason": None,
            "error_class": None,
            "metadata": {},
        }
        records.append(record)
        record["status"] = "running"
        record["status"] = "success"
        record["end_ts_ms"] = number
        record["cost_usd"] = 0.0042
        record["tokens_in"] = 120
        record["tokens_out"] = 80
    return records


if __name__ == "__main__":
    answer({"life": life, "snapshot": snapshot})
