"""Converts imported turns to events for batches: a thread_opened before the first turn of a thread."""

from collections.abc import Iterable, Iterator

from turnlog.agent.importers.imported import ImportedTurn, Item, Rejected, Repeated, Skipped, import_id
from turnlog.events.contracts import Event, ThreadOpened

SOURCE = "turnlog/import"


def events(items: Iterable[Item], tenant: str) -> Iterator[Event | Rejected | Skipped | Repeated]:
    """Yields the items, each turn as its event with the turn's id. The id of thread_opened depends only on tenant,
    thread and the first turn's time, so a changed title does not open the thread twice.
    """
    opened: set[str] = set()
    for item in items:
        if isinstance(item, ImportedTurn):
            if item.thread not in opened:
                opened.add(item.thread)
                yield _opening(item, tenant)
            yield _event(item, tenant)
        else:
            yield item


def _opening(turn: ImportedTurn, tenant: str) -> Event:
    return Event(
        id=import_id(tenant, turn.thread, "thread_opened", turn.time),
        source=SOURCE,
        time=turn.time,
        tenant=tenant,
        thread=turn.thread,
        user=turn.user,
        data=ThreadOpened(label=turn.label),
    )


def _event(turn: ImportedTurn, tenant: str) -> Event:
    """`data` is an instance already, so building the event does not validate it again."""
    return Event(
        id=turn.id,
        source=SOURCE,
        time=turn.time,
        tenant=tenant,
        thread=turn.thread,
        user=turn.user,
        data=turn.data,
    )
