"""Each start of a step, a turn, a tool call or a call has one end, whatever interrupts it."""

from typing import Any

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.engine.events import Event
from tests.support.runs import run_story
from tests.unit.runs.opened import Open

MODEL = {"kind": "llm", "name": "turn", "model": "m"}


def call(node: str, step_id: str = "a/b", kind: str = "call.started", **data: Any) -> Event:
    return Event(type=kind, step_id=step_id, node_id=node, data={**MODEL, **data})


def step(step_id: str, kind: str = "step.started", **data: Any) -> Event:
    return Event(type=kind, step_id=step_id, node_id=f"n-{step_id}", data=data)


def turn(step_id: str, kind: str = "turn_start", number: int = 3) -> Event:
    once = f"{step_id}|{kind}|{number}"
    return Event(type=kind, step_id=step_id, data={"turn_number": number}, once_key=once)


def tool_call(step_id: str, index: int) -> Event:
    about = {"id": f"c{index}", "name": "pays", "arguments": "{}"}
    return Event(
        type="tool_call_start",
        step_id=step_id,
        data={"turn_number": 3, "tool_call": about},
        once_key=f"{step_id}|tool_call_start|3|{index}",
    )


STARTED = (step("a"), step("a/b"), turn("a/b"), tool_call("a/b", 1))


def emitted(opened: Open) -> list[tuple[str, str | None]]:
    return [(each.type, each.step_id) for each in opened.journal.unstored_events()]


def lost_graph() -> tuple[ExecutionGraph, str]:
    """Return a graph in which a call was lost in its third attempt."""
    graph = ExecutionGraph("r0")
    lost = graph.begin_node(graph.create_root("run"), "llm", "turn", "m")
    for _ in range(2):
        graph.increment_retries(lost)
    graph.mark_halt(lost, "worker_lost", tokens_in=7, tokens_out=9)
    return graph, lost


def test_the_next_owner_ends_the_calls_of_a_lost_process_and_nothing_else() -> None:
    """A lost call ends with its attempts and its estimated tokens; steps and turns continue."""

    async def story() -> None:
        graph, lost = lost_graph()
        opened = Open(graph=graph, open_starts=(*STARTED, call(lost)))
        [event] = opened.journal.unstored_events()
        assert (event.type, event.step_id, event.node_id) == ("call.cancelled", "a/b", lost)
        usage = {"attempts": 3, "tokens_in": 7, "tokens_out": 9}
        assert event.data == {**MODEL, **usage, "reason": "worker_lost"}
        opened.journal.emit(turn("a/b", "turn_end"))
        assert emitted(opened)[1:] == [("turn_end", "a/b")]

    run_story(story, after_seconds=10)


def test_the_end_of_a_run_ends_all_that_is_still_open_from_the_inside() -> None:
    """Nothing that an earlier process started stays open, even if this one executed nothing."""

    async def story() -> None:
        opened = Open(open_starts=STARTED)
        opened.journal.emit(step("c"))
        opened.journal.emit(call("unknown node", "c"))
        opened.journal.end_open("enough")
        assert emitted(opened)[2:] == [
            ("call.cancelled", "c"),
            ("step.cancelled", "c"),
            ("tool_call_end", "a/b"),
            ("turn_end", "a/b"),
            ("step.cancelled", "a/b"),
            ("step.cancelled", "a"),
        ]
        ended = {each.type: each for each in opened.journal.unstored_events()}
        assert ended["tool_call_end"].data["tool_call_id"] == "c1"
        assert ended["tool_call_end"].data["error"] == "enough"
        assert ended["tool_call_end"].once_key == "a/b|tool_call_end|3|1"
        assert ended["call.cancelled"].data == {**MODEL, "reason": "enough"}
        opened.journal.end_open("again")
        assert len(opened.journal.unstored_events()) == 8

    run_story(story, after_seconds=10)


def test_the_end_of_a_step_ends_all_that_is_open_in_it() -> None:
    """Work of an earlier process in a step whose later attempt succeeded ends with the step."""

    async def story() -> None:
        opened = Open(open_starts=(*STARTED, step("ab"), turn("a~2"), turn("b")))
        opened.journal.emit(step("a", "step.completed"))
        assert emitted(opened) == [
            ("turn_end", "a~2"),
            ("tool_call_end", "a/b"),
            ("turn_end", "a/b"),
            ("step.cancelled", "a/b"),
            ("step.completed", "a"),
        ]

    run_story(story, after_seconds=10)


def test_a_released_run_ends_its_calls_only() -> None:
    """The next owner resumes the steps and turns, and repeats the calls as new nodes."""

    async def story() -> None:
        opened = Open()
        for event in (*STARTED, call("n1")):
            opened.journal.emit(event)
        opened.journal.end_calls("The process shuts down.")
        assert emitted(opened)[5:] == [("call.cancelled", "a/b")]

    run_story(story, after_seconds=10)


def test_an_end_without_an_open_start_is_dropped() -> None:
    """Work that was abandoned may end late; its call has an end already."""

    async def story() -> None:
        opened = Open()
        opened.journal.emit(call("n1"))
        opened.journal.end_calls("abandoned")
        opened.journal.emit(call("n1", kind="call.completed"))
        assert emitted(opened) == [("call.started", "a/b"), ("call.cancelled", "a/b")]

    run_story(story, after_seconds=10)


def test_events_of_custom_nodes_need_no_partner() -> None:
    """A node may emit types that agents also use; the journal does not add or drop any."""

    async def story() -> None:
        opened = Open()
        for kind in ("turn_start", "tool_call_end", "tool_call_start"):
            opened.journal.emit(Event(type=kind, step_id="a", data={"mine": 1}))
        opened.journal.end_open("enough")
        assert [kind for kind, _ in emitted(opened)] == [
            "turn_start",
            "tool_call_end",
            "tool_call_start",
        ]

    run_story(story, after_seconds=10)
