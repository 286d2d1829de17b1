"""A small MCP server for the stock and the prices of a workshop."""

from mcp.server.mcpserver import MCPServer

PRICES = {"bolt": 0.35, "nut": 0.12, "washer": 0.05}
SHELVES = {"bolt": 480, "nut": 1200, "washer": 64}

server = MCPServer("inventory")


@server.tool(structured_output=False)
def price(item: str) -> str:
    """Return the price of one piece of an item (bolt, nut or washer) in dollars."""
    return f"One {item} costs {PRICES[item]} dollars."


@server.tool(structured_output=False)
def stock(item: str) -> str:
    """Return how many pieces of an item (bolt, nut or washer) are in stock."""
    return f"{SHELVES[item]} pieces of {item} are in stock."


if __name__ == "__main__":
    server.run()
