"""LangGraph on the log: TurnlogSaver (checkpointer), TurnlogStore (store), TurnlogMiddleware (LangChain's agents)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
    from turnlog.consumers.langgraph.middleware import TurnlogMiddleware
    from turnlog.consumers.langgraph.store.store import TurnlogStore

__all__ = ["TurnlogMiddleware", "TurnlogSaver", "TurnlogStore"]


def __getattr__(name: str) -> Any:
    """Each is loaded when it is asked for: an application may need only one of them."""
    if name == "TurnlogSaver":
        from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver

        return TurnlogSaver
    if name == "TurnlogStore":
        from turnlog.consumers.langgraph.store.store import TurnlogStore

        return TurnlogStore
    if name == "TurnlogMiddleware":
        from turnlog.consumers.langgraph.middleware import TurnlogMiddleware

        return TurnlogMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
