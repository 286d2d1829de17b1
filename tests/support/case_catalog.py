"""A catalog whose cases are executed by a node of the test."""

from caseworker.core.graph.validation import Handles
from caseworker.engine.context import Node
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.node_type import NodeType
from caseworker_cases.agent.case import CaseData


def case_catalog(node: Node) -> NodeCatalog:
    """Return a catalog of one type, ``case``, which ``node`` executes."""
    kind = NodeType(name="case", description="A test.", node=node, data=CaseData, handles=Handles())
    return NodeCatalog((kind,))
