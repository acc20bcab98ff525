"""What this process holds of people's words in memory, so that an erasure reaches it (M9)."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary


class Forgetful(Protocol):
    def forget_all(self) -> None:
        """Drops what is held; it is read again when it is needed."""


_HOLDERS: "WeakKeyDictionary[Forgetful, asyncio.AbstractEventLoop | None]" = WeakKeyDictionary()
_CACHES: list[Callable[[], None]] = []


def holds_words(holder: Forgetful) -> None:
    """For an object with a cache; it is known for as long as it lives, and called in the event loop it was made in."""
    _HOLDERS[holder] = _loop()


def caches_words(clear: Callable[[], None]) -> None:
    """For a cache of a module: `caches_words(function.cache_clear)`."""
    _CACHES.append(clear)


def forget_all() -> None:
    """Somebody was erased. Who is not told: what others said is soon there again."""
    for holder, loop in list(_HOLDERS.items()):
        if loop is None or loop is _loop():
            holder.forget_all()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(holder.forget_all)
    for clear in _CACHES:
        clear()


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
