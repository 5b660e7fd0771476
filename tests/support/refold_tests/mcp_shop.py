"""A small MCP server with the official SDK, as a program: `mcp_shop.py FILE`. Each purchase appends a line to the
file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("shop", version="1")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(item: str) -> int:
    """The price of an item, in cents."""
    return {"kettle": 1999, "cup": 350}[item]


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def buy(item: str, count: int) -> str:
    """Buy some."""
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        file.write(f"{count} {item}\n")
    return f"order {count} {item}"


if __name__ == "__main__":
    server.run()
