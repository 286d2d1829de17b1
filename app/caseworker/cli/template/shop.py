"""The tools of this project. A model selects a tool by its name and its docstring."""

from caseworker import ToolRefusedError, tool

ORDERS = {1042: "shipped", 1043: "in production"}


@tool(deterministic=True)
def order_status(order_id: int) -> dict[str, object]:
    """Returns the status of an order."""
    if order_id not in ORDERS:
        raise ToolRefusedError(f"There is no order {order_id}.")
    return {"order_id": order_id, "status": ORDERS[order_id]}
