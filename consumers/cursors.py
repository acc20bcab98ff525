"""Makes the cursors of lists. A cursor encodes the position of an item in its list.

HTTP clients send back the cursors that they get; turnlog's Python client makes a cursor from its caller's last page.
"""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from turnlog.agent.conversations.threads import ThreadInfo
from turnlog.agent.memory.memories import MemoryView, last_said


def cursor_of(*position: str | int) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def moment(at: datetime) -> str:
    """Returns the time as text of fixed length, so that the texts sort in the order of the times."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def threads_cursor(page: Sequence[ThreadInfo]) -> str:
    return cursor_of(moment(page[-1].last_active_at), page[-1].thread)


def memories_cursor(page: Sequence[MemoryView]) -> str:
    at, seq, id_ = last_said(page)
    return cursor_of(moment(at), seq, str(id_))
