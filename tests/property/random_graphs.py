"""Random graphs with any steps as entries."""

from hypothesis import strategies as st

from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph

MOST_STEPS = 60
HANDLES = ("default", "other")


@st.composite
def graphs(draw: st.DrawFn, *, circles: bool) -> StepGraph:
    """Draw a graph with its steps in any order; ``circles`` allows edges in any direction.

    Otherwise flow leads from a step ``s1`` only to steps with higher numbers.
    """
    count = draw(st.integers(1, MOST_STEPS))
    numbers = st.integers(0, count - 1)
    found = draw(
        st.lists(
            st.tuples(numbers, numbers, st.sampled_from(HANDLES), st.sampled_from(Channel)),
            max_size=2 * count,
            unique=True,
        )
    )
    edges = dict.fromkeys(
        Edge(source=f"s{low}", target=f"s{high}", source_handle=handle, channel=channel)
        for one, other, handle, channel in found
        if circles or one != other
        for low, high in [(one, other) if circles else sorted((one, other))]
    )
    names = [f"s{number}" for number in range(count)]
    draw(st.randoms(use_true_random=False)).shuffle(names)
    entry = draw(st.none() | st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return StepGraph(
        id="g",
        steps=tuple(GraphStep(id=name, type="any") for name in names),
        edges=tuple(edges),
        entry=None if entry is None else tuple(entry),
        max_parallel=draw(st.integers(1, 4)),
    )
