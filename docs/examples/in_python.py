"""A graph in Python: two parallel steps, an error policy, and a nested graph with its own budget.

Run it with ``python docs/examples/in_python.py``; it needs no database and no model.
"""

import asyncio
from datetime import UTC, datetime

from caseworker import (
    Budget,
    ErrorPolicy,
    ExecutionContext,
    ExecutionTrace,
    FunctionNode,
    Graph,
)


async def fetch(context: ExecutionContext) -> str:
    """Return a text after a short delay."""
    await asyncio.sleep(0.01)
    return f"text of {context.input}"


def flaky(context: ExecutionContext) -> str:
    """Raise an error, which the policy of the step handles."""
    raise OSError("connection refused")


def count(context: ExecutionContext) -> int:
    """Count the letters of the upstream results and charge tokens."""
    context.check_budget()
    context.usage.tokens_used += 10
    return sum(len(text) for text in context.upstream.values())


def build() -> Graph:
    """Return the graph."""
    reading = Graph("reading", max_parallel=2)
    reading.add_step(FunctionNode("fetch", fetch), "news", input="the news")
    reading.add_step(
        FunctionNode("fetch", flaky),
        "archive",
        error_policy=ErrorPolicy(
            on_error="skip", retry_count=1, retry_delay_ms=10, fallback_value="nothing"
        ),
    )
    reading.add_step(FunctionNode("count", count), "letters", depends_on=["news", "archive"])

    report = Graph("report")
    report.add_step(reading, "read", sub_budget=Budget(max_tokens=100))
    report.add_step(
        FunctionNode("report", lambda context: f"{context.upstream['read']['letters']} letters"),
        "report",
        depends_on=["read"],
    )
    return report


async def main() -> None:
    """Execute the graph within a budget and print the trace."""
    trace = ExecutionTrace(graph_id="report", start_time=datetime.now(UTC))
    context = ExecutionContext(budget=Budget(max_time_seconds=5, max_steps=10), trace=trace)
    results = await build().execute(context)
    print(results["report"])
    print(trace.explain())


if __name__ == "__main__":
    asyncio.run(main())
