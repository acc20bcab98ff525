"""LangGraph on the log: TurnlogSaver (checkpointer), TurnlogStore (store), TurnlogMiddleware (LangChain's agents)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.consumers.langgraph.checkpoint.saver import TurnlogSaver
    from turnlog.consumers.langgraph.middleware import TurnlogMiddleware
    from turnlog.consumers.langgraph.store.store import TurnlogStore

__all__ = ["TurnlogMiddleware", "TurnlogSaver", "TurnlogStore"]


_PLACES = {"TurnlogMiddleware": "middleware", "TurnlogSaver": "checkpoint.saver", "TurnlogStore": "store.store"}


def __getattr__(name: str) -> Any:
    """Loads a name when it is first used, because an application may need only one of them."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
