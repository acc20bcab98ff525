"""Tools that accept common mistakes of models in arguments, and explain arguments they cannot use."""

from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import ValidationError


class ForgivingTool(Tool):
    """A tool that treats an empty optional argument as absent. Its errors name the arguments that are unknown, missing
    or wrong.
    """

    async def run(self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False) -> Any:
        known, required = self.parameters["properties"], self.parameters.get("required", ())
        if unknown := sorted(arguments.keys() - known.keys()):
            raise ToolError(self._refusal(f"there is no argument {', '.join(repr(name[:80]) for name in unknown)}"))
        sent = {name: value for name, value in arguments.items() if name in required or not _is_empty(value)}
        try:
            return await super().run(sent, context, convert_result)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.__cause__.errors())
            raise ToolError(self._refusal("; ".join(wrong))) from error.__cause__

    def _refusal(self, reason: str) -> str:
        required = self.parameters.get("required", ())
        takes = (name if name in required else f"{name} (optional)" for name in self.parameters["properties"])
        return f"{self.name} was not run: {reason}. It takes {', '.join(takes)} [invalid-request]"


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
