"""turnlog: event-sourced memory for chat agents.

    async with turnlog.open() as memory:
        thread = memory.thread("t42", user="ann")
        await thread.add("user", "My corgi is called Sesame.")
        context = await thread.context("What is my dog called?", tokens=4_000)

`with turnlog.open() as memory:` gives the same methods without asyncio, and `turnlog.connect(url, key=…)` those of a
server. docs/python.md has every method.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from turnlog._memory import Memory
    from turnlog._opening import connect, open
    from turnlog._thread import Context, Thread
    from turnlog._wrapping import wrap
    from turnlog.agent.memory.memories import MemoryView
    from turnlog.agent.team.tools import tool
    from turnlog.events.errors import TurnlogError
    from turnlog.projectors.models.conversation.message import Message

__all__ = [
    "Context",
    "Memory",
    "MemoryView",
    "Message",
    "Thread",
    "TurnlogError",
    "connect",
    "open",
    "tool",
    "wrap",
]

# Loaded at first use, because importing any subpackage of turnlog imports this module first.
_WHERE = {
    "Context": "turnlog._thread",
    "Memory": "turnlog._memory",
    "MemoryView": "turnlog.agent.memory.memories",
    "Message": "turnlog.projectors.models.conversation.message",
    "Thread": "turnlog._thread",
    "TurnlogError": "turnlog.events.errors",
    "connect": "turnlog._opening",
    "open": "turnlog._opening",
    "tool": "turnlog.agent.team.tools",
    "wrap": "turnlog._wrapping",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'turnlog' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
