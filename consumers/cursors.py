"""Cursors of lists: where an item is in the order of its list.

Clients of the server pass them on as they are; turnlog's own client makes them from the page that its caller has.
"""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.memory.memories import MemoryView, last_said


def cursor_of(*place: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def moment(at: datetime) -> str:
    """Returns the time as text of one length, so that texts compare as times do."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def threads_cursor(page: Sequence[ThreadInfo]) -> str:
    return cursor_of(moment(page[-1].last_active_at), page[-1].thread)


def memories_cursor(page: Sequence[MemoryView]) -> str:
    at, seq, id_ = last_said(page)
    return cursor_of(moment(at), seq, str(id_))
