"""A catalog whose cases are worked on by a node of a test."""

from app.engine.node import Node
from app.kernel.validation import Handles
from app.nodes.case.case import CaseData
from app.nodes.catalog import NodeCatalog
from app.nodes.node_type import NodeType


def case_catalog(node: Node) -> NodeCatalog:
    """Return a catalog of one type: ``case``, which ``node`` executes."""
    kind = NodeType(name="case", description="A test.", node=node, data=CaseData, handles=Handles())
    return NodeCatalog((kind,))
