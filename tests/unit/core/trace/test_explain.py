"""The explanation of a run for people."""

import re

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.explain import WIDTH, explain
from caseworker.core.trace.payloads import Payload
from tests.support.manual_clock import ManualClock

WHOLE = """\
Run chain-1 was halted after 1.61 s.
$0.9542 · 2 LLM calls · 2 tool calls · 1 retry · 5,120 tokens in, 3,080 out · depth 2
Started 2025-02-19 21:20:00 UTC.

Stopped at llm step_2 (n000007) after 1.61 s: cost ceiling exceeded
Failed, but plan continued: tool divide (n000005): ZeroDivisionError: division by zero

n000001 agent_run                                  halted      1.61 s
        │  budget
n000002 ├─ llm plan (nano) +1 retry                completed   700 ms       120 → 80 tok   $0.0042
n000003 │  ├─ attempt                              failed      200 ms
        │  │     RateLimitError: 429
n000004 │  ├─ tool web_search                      completed   100 ms
n000005 │  └─ tool divide                          failed        0 ms
n000006 ├─ llm compose (big-1)                     completed   800 ms  5,000 → 3,000 tok   $0.9500
n000007 └─ llm step_2 (big-1)                      halted        0 ms

Where the time went
  llm compose (big-1)                              1x   800 ms  50% ██████████
  llm plan (nano)                                  1x   700 ms  43% █████████
  tool web_search                                  1x   100 ms   6% █
  agent_run                                        1x    10 ms   1% █

Critical path
  agent_run (n000001) 10 ms > llm plan (n000002) 700 ms > tool web_search (n000004) 100 ms > llm
  compose (n000006) 800 ms

Cost by model
  big-1, big tier                            2x           5,000 tokens in, 3,000 out   $0.9500
  nano                                       1x                120 tokens in, 80 out   $0.0042
"""


@pytest.fixture
def halted(graph: ExecutionGraph, root: str, clock: ManualClock) -> ExecutionGraph:
    """A run with a retry, a failed tool and a limit."""
    clock.advance(10)
    plan = graph.begin_node(root, "llm", "plan", "nano")
    start = clock.now
    graph.increment_retries(plan)
    graph.add_ended(
        plan,
        "system",
        "attempt",
        status="fail",
        start_ts_ms=start,
        end_ts_ms=start + 200,
        error_class="RateLimitError",
        stop_reason="429",
    )
    clock.advance(700)
    graph.mark_success(plan, 0.0042, 120, 80)
    search = graph.begin_node(plan, "tool", "web_search")
    divide = graph.begin_node(plan, "tool", "divide")
    graph.mark_failure(divide, "ZeroDivisionError", "division by zero")
    clock.advance(100)
    graph.mark_success(search, 0)
    compose = graph.begin_node(root, "llm", "compose", "big-1", {"tier": "big"})
    clock.advance(800)
    graph.mark_success(compose, 0.95, 5000, 3000)
    refused = graph.begin_node(root, "llm", "step_2", "big-1", {"tier": "big"})
    graph.mark_halt(refused, "cost ceiling exceeded")
    graph.mark_halt(root, "budget")
    return graph


def test_a_run_is_told_at_a_glance(halted: ExecutionGraph) -> None:
    """The explanation shows outcome, totals, failures, tree, times, critical path and costs."""
    assert explain(halted.snapshot()) == WHOLE


def test_tiers_of_several_models_are_summed(graph: ExecutionGraph, root: str) -> None:
    """Costs per tier are listed if a tier has several models."""
    for model, tier in (("nano", "small"), ("mini", "small"), ("gpt", "big")):
        node_id = graph.begin_node(root, "llm", "plan", model, {"tier": tier})
        graph.mark_success(node_id, 0.1, 10, 5)
    untiered = graph.begin_node(root, "llm", "plan", "old")
    graph.mark_success(untiered, 0.05)

    told = [" ".join(line.split()) for line in explain(graph.snapshot()).splitlines()[-4:]]

    assert told == [
        "Cost by tier",
        "small 2x 20 tokens in, 10 out $0.2000",
        "big 1x 10 tokens in, 5 out $0.1000",
        "no tier 1x 0 tokens in, 0 out $0.0500",
    ]


def test_every_line_fits_a_terminal(graph: ExecutionGraph, root: str) -> None:
    """Long names and reasons are shortened to the line width; numbers stay complete."""
    node_id = graph.begin_node(root, "llm", "n" * 200, "m" * 200)
    graph.mark_failure(
        node_id, "E" * 50, "r" * 500, cost_usd=123.45, tokens_in=10**6, tokens_out=10**6
    )
    text = explain(graph.snapshot())

    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert "1,000,000 → 1,000,000 tok" in text
    assert "$123.4500" in text


@pytest.mark.parametrize(
    ("status", "headline"),
    [
        ("created", "Run chain-1 has not started yet after 2.50 s."),
        ("running", "Run chain-1 has been running for 2.50 s."),
        ("success", "Run chain-1 completed in 2.50 s."),
        ("fail", "Run chain-1 failed after 2.50 s."),
        ("halt", "Run chain-1 was halted after 2.50 s."),
    ],
)
def test_the_first_line_tells_the_outcome(
    graph: ExecutionGraph, root: str, clock: ManualClock, status: str, headline: str
) -> None:
    """The first line states the outcome for every status of the root."""
    clock.advance(2500)
    marks = {
        "running": lambda: graph.mark_running(root),
        "success": lambda: graph.mark_success(root, 0),
        "fail": lambda: graph.mark_failure(root, "E"),
        "halt": lambda: graph.mark_halt(root),
    }
    if status in marks:
        marks[status]()

    assert explain(graph.snapshot()).splitlines()[0] == headline


def test_what_a_cancel_ended_is_called_cancelled(graph: ExecutionGraph, root: str) -> None:
    """Nodes that a cancel ended are shown as cancelled; a call halted earlier stays halted."""
    graph.mark_halt(graph.begin_node(root, "llm", "refused"), "cost ceiling exceeded")
    graph.begin_node(root, "llm", "plan")
    graph.close_open("Cancelled by alice.")
    graph.mark_halt(root, "Cancelled by alice.")

    lines = explain(graph.snapshot(), cancelled=True).splitlines()
    words = {line.split()[0]: line.split()[-3] for line in lines if line.startswith("n0000")}

    assert lines[0] == "Run chain-1 was cancelled after 0 ms."
    assert words == {"n000001": "cancelled", "n000002": "halted", "n000003": "cancelled"}


def test_a_run_without_calls_is_told_too(graph: ExecutionGraph) -> None:
    """A run without calls is explained before and after its root exists."""
    assert explain(graph.snapshot()) == "Run chain-1 has not started yet.\n"
    graph.mark_halt(graph.create_root("run"), "cancelled")

    assert "Stopped at run (n000001) after 0 ms: cancelled" in explain(graph.snapshot())


def test_a_large_tree_is_cut_and_says_so(graph: ExecutionGraph, root: str) -> None:
    """A large tree is cut, and the number of omitted calls is shown."""
    for _ in range(30):
        graph.mark_success(graph.begin_node(root, "tool", "search"), 0)

    text = explain(graph.snapshot(), max_nodes=10)

    assert text.count("tool search") == 9
    assert "… and 21 more calls; the snapshot contains all calls" in text


@pytest.mark.parametrize(("failures", "counted"), [(5, []), (6, ["… and 1 more failure"])])
def test_failures_after_the_fifth_are_only_counted(
    graph: ExecutionGraph, root: str, failures: int, counted: list[str]
) -> None:
    """An explanation lists five failures, and the number of further ones if there are any."""
    for number in range(failures):
        graph.mark_failure(graph.begin_node(root, "tool", f"t{number}"), "E", f"no {number}")

    lines = explain(graph.snapshot()).splitlines()

    assert sum(line.startswith("Failed: tool t") for line in lines) == 5
    assert [line for line in lines if "more" in line] == counted


def test_a_chain_of_thousands_is_no_problem_to_explain(graph: ExecutionGraph, root: str) -> None:
    """A chain of 3000 nodes is explained without recursion."""
    node_id = root
    for _ in range(3000):
        node_id = graph.begin_node(node_id, "system", "deeper")

    assert "depth 3000" in explain(graph.snapshot())


def test_control_characters_cannot_reach_a_terminal(graph: ExecutionGraph, root: str) -> None:
    """Control characters in tool names and error texts are replaced."""
    node_id = graph.begin_node(root, "tool", "a\x1b[31mb", "m\r\n")
    graph.mark_failure(node_id, "E\x00", "line\nline\u202e")

    text = explain(graph.snapshot())

    assert not {character for character in text if not character.isprintable()} - {"\n"}
    assert "tool a?[31mb (m??)" in text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(999, "999 ms"), (1000, "1.00 s"), (59_990, "59.99 s"), (65_000, "1 m 05 s"),
     (3_725_000, "1 h 02 m")],
)  # fmt: skip
def test_durations_have_a_unit_that_fits(
    graph: ExecutionGraph, root: str, clock: ManualClock, milliseconds: int, text: str
) -> None:
    """Durations are shown in units from milliseconds to hours."""
    clock.advance(milliseconds)

    assert explain(graph.snapshot()).startswith(f"Run chain-1 has not started yet after {text}.")


def test_an_error_is_told_once_where_it_began(graph: ExecutionGraph, root: str) -> None:
    """An error that propagates is shown once, at the call where it began."""
    step = graph.begin_node(root, "system", "fetch", metadata={"step_type": "tool"})
    call = graph.begin_node(step, "tool", "search")
    for number in (1, 2, 3):
        attempt = graph.begin_node(call, "system", "attempt", metadata={"attempt": number})
        graph.mark_failure(attempt, "RuntimeError", "The disk is full of holes.")
    for node in (call, step, root):
        graph.mark_failure(node, "RuntimeError", "The disk is full of holes.")

    text = explain(graph.snapshot())

    assert text.count("full of holes") == 1
    assert "Failed: tool search (n000003): RuntimeError: The disk is full of holes." in text
    assert "fetch (tool)" in text


def test_a_long_error_is_told_whole(graph: ExecutionGraph, root: str) -> None:
    """A long error is shown completely, wrapped to the line width."""
    reason = " ".join(f"word{number}" for number in range(60))
    graph.mark_failure(graph.begin_node(root, "tool", "search"), "E", reason)

    text = explain(graph.snapshot())

    assert reason in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= WIDTH


def test_equal_failures_are_told_together(graph: ExecutionGraph, root: str) -> None:
    """Five calls that failed for the same reason are shown in one line."""
    for _ in range(5):
        graph.mark_failure(graph.begin_node(root, "tool", "search"), "busy", "Try again later.")

    text = explain(graph.snapshot())

    assert "Failed: tool search (n000002) and 4 more calls: busy: Try again later." in text
    assert text.count("Try again later.") == 1


def test_what_calls_asked_and_got_is_quoted(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """The explanation quotes the last prompt message, tool arguments and results."""
    ask = graph.begin_node(root, "llm", "ask", "nano")
    use = graph.begin_node(root, "tool", "calculator")
    messages = [{"content": "Be brief."}, {"content": "Why is\nthat?"}]
    payloads = {
        ask: Payload(request={"messages": messages}, reply={"text": "So.", "model": "nano"}),
        use: Payload(request={"args": {"expression": "6*7"}}, reply={"value": "42"}),
    }

    text = explain(graph.snapshot(), payloads=payloads)

    assert "asked: Why is that?" in text
    assert "got: So." in text
    assert 'asked: {"expression": "6*7"}' in text
    assert 'got: {"value": "42"}' in text


def test_waits_and_skipped_steps_are_told(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """The explanation shows queue time, retry delays and skipped steps."""
    call = graph.begin_node(root, "llm", "ask", "nano")
    for number in (1, 2):
        attempt = graph.begin_node(call, "system", "attempt", metadata={"attempt": number})
        clock.advance(100)
        graph.mark_failure(attempt, "busy", "Later.")
        clock.advance(400)
    text = explain(graph.snapshot(), skipped=["b", "c"], queued_ms=1500)

    assert "UTC, after 1.50 s in the queue." in text
    assert "waited 400 ms between its attempts" in text
    assert "Skipped, because no path to them was taken: b, c" in text


def test_a_turn_that_only_calls_tools_shows_the_calls(graph: ExecutionGraph, root: str) -> None:
    """A reply with tool calls is explained by the calls and by its text, if any."""
    calls = [{"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}]
    silent, talking = (graph.begin_node(root, "llm", "turn", "nano") for _ in range(2))
    replies = {silent: "", talking: "Let me see."}

    text = explain(
        graph.snapshot(),
        payloads={
            node: Payload(reply={"text": said, "model": "nano", "tool_calls": calls})
            for node, said in replies.items()
        },
    )

    assert 'got: calls calculator {"expression": "6 * 7"}' in text
    assert 'got: Let me see.; calls calculator {"expression": "6 * 7"}' in text


def test_the_critical_path_shows_its_ten_longest_calls(
    graph: ExecutionGraph, root: str, clock: ManualClock
) -> None:
    """They are shown in the order of time."""
    for number in (5, 12, 3, 9, 1, 7, 11, 4, 2, 10, 8, 6):
        node_id = graph.begin_node(root, "tool", f"t{number}")
        clock.advance(100 * number)
        graph.mark_success(node_id, 0)
    graph.mark_success(root)
    text = explain(graph.snapshot())
    path = text.partition("Critical path")[2].partition("\n\n")[0]

    assert re.findall(r"tool t(\d+)", path) == ["5", "12", "3", "9", "7", "11", "4", "10", "8", "6"]
