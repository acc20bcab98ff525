"""Remembers and recalls a statement with fastmcp's client; prints the tools and the recalled text.

The client signs in with a token or by OAuth.
"""

import asyncio
import json
import os

from fastmcp import Client


async def main() -> None:
    async with Client(os.environ["TURNLOG_MCP"], auth=os.environ["TURNLOG_AUTH"]) as client:
        tools = [tool.name for tool in await client.list_tools()]
        await client.call_tool("remember", {"text": "My dog is called Sesame."})
        recalled = await client.call_tool("recall", {"query": "What is my dog called?"})
    print(json.dumps({"tools": tools, "recalled": str(recalled.content)}))


asyncio.run(main())
