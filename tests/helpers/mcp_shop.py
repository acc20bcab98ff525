"""The MCP server of a bicycle shop: `python -m helpers.mcp_shop LEDGER` over stdio, or `shop(ledger)` in a test.

Tools write each change to a file, the ledger, with the idempotency key of the call.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

WHO = ("turnlog/user", "turnlog/tenant")
READS = ToolAnnotations(read_only_hint=True)


class Line(BaseModel):
    """A line of an order."""

    part: str
    count: Annotated[int, Field(ge=1)] = 1


def shop(ledger: Path) -> MCPServer:
    server = MCPServer("shop")

    def note(key: str, line: Any) -> None:
        with ledger.open("a") as file:
            file.write(json.dumps([key, line]) + "\n")

    @server.tool(annotations=READS)
    def find_parts(words: Annotated[str, Field(description="what it is for")]) -> list[str]:
        """Finds parts by words."""
        return [part for part in ("front tyre", "rear tyre", "bell") if set(words.split()) & set(part.split())]

    @server.tool(annotations=READS)
    def opening_hours(day: str) -> str:
        """Returns when the shop is open on a day."""
        if day == "sunday":
            raise ToolError("the shop is closed on sunday")
        return "9 to 18"

    @server.tool(annotations=READS)
    def every_part() -> list[str]:
        """Returns the whole catalogue."""
        return [f"part {number}" for number in range(10_000)]

    @server.tool()
    def order_parts(lines: list[Line], ctx: Context) -> dict[str, Any]:
        """Orders parts."""
        key = str((ctx.request_context.meta or {}).get("turnlog/idempotency-key"))
        note(key, [line.model_dump() for line in lines])
        told = {name: value for name, value in (ctx.request_context.meta or {}).items() if name in WHO}
        answer = {"ordered": sum(line.count for line in lines), "city": os.environ.get("SHOP_CITY")}
        return {**answer, "told": told} if told else answer

    @server.tool(annotations=READS)
    def stop_working() -> None:
        """Ends the server's process."""
        note("", "stopped")
        os._exit(1)

    return server


if __name__ == "__main__":
    shop(Path(sys.argv[1])).run("stdio")
