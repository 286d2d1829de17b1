"""Requests that the OpenAPI document shows."""

from fastapi.openapi.models import Example

CASES: dict[str, Example] = {
    "arithmetic": Example(
        summary="A calculation", value={"input": "What is 12.5 % of 1840, plus 7?"}
    ),
    "checked": Example(
        summary="A case whose answer is known, under an id of the caller's, within limits",
        value={
            "run_id": "case-2025-09-08.1",
            "input": "Which day comes 45 days after 2025-09-08?",
            "expected_tools": ["calendar"],
            "gold_answer": "Thursday, October 23, 2025",
            "mode": "fallback_only",
            "budget": {"max_seconds": 30, "max_tool_calls": 4, "max_cost_usd": 0.05},
            "deadline": "2030-01-01T12:00:00Z",
            "timezone": "Europe/Paris",
            "seed": 7,
            "metadata": {"ticket": "A-1024"},
        },
    ),
}
