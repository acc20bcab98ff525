"""Registers caches in this process's memory that hold people's words, so that an erasure empties them."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary


class Forgetful(Protocol):
    def forget_all(self) -> None:
        """Empties the cache; entries are read again when needed."""


_HOLDERS: "WeakKeyDictionary[Forgetful, asyncio.AbstractEventLoop | None]" = WeakKeyDictionary()
_CACHES: list[Callable[[], None]] = []


def holds_words(holder: Forgetful) -> None:
    """Registers an object with a cache for its lifetime. Its forget_all() will be called in the loop that runs now."""
    _HOLDERS[holder] = _loop()


def caches_words(clear: Callable[[], None]) -> None:
    """Registers the function that empties a module's cache: `caches_words(function.cache_clear)`."""
    _CACHES.append(clear)


def forget_all() -> None:
    """Empties all registered caches after an erasure; other people's entries are soon read again."""
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
