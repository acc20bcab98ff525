"""The client of fastmcp with a token: remembers a statement, recalls it, and prints the tools and what was recalled."""

import asyncio
import json
import os

from fastmcp import Client


async def main() -> None:
    async with Client(os.environ["TURNLOG_MCP"], auth=os.environ["TURNLOG_KEY"]) as client:
        tools = [tool.name for tool in await client.list_tools()]
        await client.call_tool("remember", {"text": "My dog is called Sesame."})
        recalled = await client.call_tool("recall", {"query": "What is my dog called?"})
    print(json.dumps({"tools": tools, "recalled": str(recalled.content)}))


asyncio.run(main())
