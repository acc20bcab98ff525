"""TurnlogMiddleware: a LangChain agent sends its model turnlog's tiered context, while its state stays complete."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config

from turnlog.agent.answering.thread_context import context_settings
from turnlog.agent.context import Context, ContextInput, Summary, build_context
from turnlog.agent.settings import Settings, application_settings
from turnlog.consumers.langgraph.checkpoint.messages import to_messages
from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
from turnlog.projectors.models.conversation.thread_lookup import Overview

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any]
UNCHANGED = ("all", "3")  # tiers whose messages are sent unchanged


class TurnlogMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware for `create_agent(model, middleware=[TurnlogMiddleware(saver)], checkpointer=saver)`.

    If the messages fit the window, the model gets them unchanged. Otherwise it gets turnlog's summary and topics of the
    thread, condensed older messages, and the newest messages unchanged. Raises WindowTooSmall, DatabaseUnavailable.
    """

    def __init__(self, saver: TurnlogSaver, settings: Settings | None = None) -> None:
        super().__init__()
        self._saver, self._settings = saver, settings or application_settings()

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        thread = _thread()
        return handler(self._trimmed(request, thread, self._saver.overview(thread)))

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        thread = _thread()
        return await handler(self._trimmed(request, thread, await self._saver.aoverview(thread)))

    def _trimmed(self, request: Request, thread: str, now: Overview) -> Request:
        settings, model = self._settings, request.model
        tools = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
        context = build_context(
            ContextInput(
                to_messages(request.messages, thread),
                str(getattr(model, "model_name", None) or getattr(model, "model", None) or settings.model),
                request.system_prompt or "",
                tools,
                Summary(now.summary, now.summary_seq) if now.summary and settings.enable_summary else None,
                now.topics,
                now.pruned_through if self._saver.prunes else 0,
                settings.context_window,
                settings=context_settings(settings),
            )
        )
        return request.override(messages=sent(context, request.messages))


def sent(context: Context, messages: Sequence[BaseMessage]) -> list[Any]:
    """Returns the messages of a context without its system prompt; a message that is sent unchanged is the given object
    (pure).

    messages: those of which the context was made; its sequences are indexes into them, from 1.
    """
    items = [(tier.tier, item) for tier in context.tiers for item in tier.items]
    wires = context.messages[len(context.messages) - len(items) :]
    made = {remark.seq for remark in context.altered}
    seqs = [item.seq for _, item in items]
    return [
        messages[item.seq - 1]
        if tier in UNCHANGED and item.seq not in made and seqs.count(item.seq) == 1
        else convert_to_messages([wire])[0]
        for wire, (tier, item) in zip(wires, items, strict=True)
    ]


def _thread() -> str:
    return str(get_config()["configurable"].get("thread_id", ""))
