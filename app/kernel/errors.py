"""What can be wrong with a graph or with what the scheduler is told."""


class GraphError(ValueError):
    """A graph that cannot be executed; the message names the step or the edge."""


class UnexpectedFactError(RuntimeError):
    """The scheduler was told of a step that it had not ordered, or told twice."""
