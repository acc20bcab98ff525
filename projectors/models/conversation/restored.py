"""Reads the archived events that a thread_restored event contains, to be applied as if they came now."""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from turnlog.events.codec import decode
from turnlog.events.contracts import ArchivedEvent, Event, Recorded, ThreadRestored
from turnlog.events.errors import InvalidEvent, KeyUnavailable
from turnlog.projectors.engine.changes import Change, DeleteThread
from turnlog.projectors.engine.incoming import without_nul


def restored_events(recorded: Recorded, types: frozenset[str]) -> list[Recorded]:
    """Returns the contained events of these types, each with its original sequence.

    Raises InvalidEvent, also for an event of another thread, which a foreign producer may have inserted.
    """
    data = recorded.event.data
    assert isinstance(data, ThreadRestored)
    return [restored for archived in data.events if (restored := _recorded(archived, recorded)).event.type in types]


def cleared_before(event: Event, tables: Sequence[sa.Table]) -> list[Change]:
    """Returns a change that deletes the thread's rows if the event is the first part of a restore; [] for other
    parts."""
    data = event.data
    assert isinstance(data, ThreadRestored)
    return [DeleteThread(tuple(tables), event.tenant, event.thread)] if data.part == 1 else []


def _recorded(archived: ArchivedEvent, carrier: Recorded) -> Recorded:
    try:
        event = without_nul(decode(archived.envelope.encode()))
    except KeyUnavailable as error:  # not from turnlog, which seals the carrying event as a whole
        raise InvalidEvent(f"the restored event at sequence {archived.seq} is sealed: {error}") from None
    if (event.tenant, event.thread) != (carrier.event.tenant, carrier.event.thread):
        raise InvalidEvent(f"the restored event at sequence {archived.seq} is of another thread")
    return replace(carrier, event=event, seq=archived.seq, stored_at=archived.stored_at)
