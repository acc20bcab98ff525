"""Thread ids for files with several conversations, and one open conversation while it is read."""

from datetime import datetime
from typing import Any

from turnlog.agent.importers.imported import ONE_SECOND, Defaults, ImportedTurn, import_id
from turnlog.agent.importers.times import parse_time
from turnlog.events.contracts import TurnRecorded


class ThreadNames:
    """--thread for the first conversation, then `thread-2` …; else the file's own id, else its stem."""

    def __init__(self, defaults: Defaults, stem: str) -> None:
        self._asked = defaults.thread
        self._stem = stem
        self._count = 0

    def next(self, own: Any = None) -> str:
        self._count += 1
        if self._asked is None and isinstance(own, str) and own:
            return own
        base = self._asked or self._stem
        return base if self._count == 1 else f"{base}-{self._count}"


class Conversation:
    """Makes the turns of one conversation: running number, time and event id."""

    def __init__(self, defaults: Defaults, thread: str, label: str | None, user: str | None, start: Any = None) -> None:
        self._tenant = defaults.tenant
        self.thread = thread
        self.label = label
        self.user = defaults.user or user
        self.number = 0
        self._next_time = _start(start, defaults)
        self._is_dated = start is not None

    def turn(self, data: TurnRecorded, time: Any = None, key: str | None = None) -> ImportedTurn:
        """`key` tells the turn apart from others of the thread; without one its place and content do.

        A turn without a time comes one second after the turn before it. Raises ValueError (the time).
        """
        when = self._next_time if time is None else parse_time(time)
        self._next_time = when + ONE_SECOND
        self._is_dated = self._is_dated or time is not None
        key = key or f"M{self.number}\n{data.model_dump_json(exclude={'source_id'})}"
        event_id = import_id(self._tenant, self.thread, key, when)
        return ImportedTurn(event_id, self.thread, self.label, self.user, when, data, self._is_dated)


def _start(start: Any, defaults: Defaults) -> datetime:
    return parse_time(defaults.base_time.isoformat() if start is None else start)
