"""Describes a read model to the engine: its tables, the events it handles and a pure project()."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from turnlog.events.contracts import ARCHIVING, REMOVALS, Recorded
from turnlog.projectors.engine.changes import Change, DeleteThread

_ALONE = REMOVALS | ARCHIVING


@dataclass(frozen=True, slots=True)
class Projection:
    """Describes one read model.

    project takes a batch in log order and returns changes in the order in which to perform them; an event that archives
    or restores a thread is a batch of its own. project is pure: it uses no clock, network, model or randomness.
    keys_last: tables whose rows are only inserted or deleted, so that a rebuild can create their keys last.
    per_thread: True if every row belongs to one thread, so that a thread can be rebuilt alone and a removal deletes its
    rows without project(). last_sql: statements for the end of a rebuild, such as indexes that depend on the rows.
    version: must be raised when the meaning of project() or of the tables changes; the live rows must then be rebuilt.

    The search after an erasure looks only for strings that no other person's rows contain. said: tables with people's
    own words; in a shared thread only the rows of the erased person belong to that person, in other threads all rows
    do. copied: tables whose texts are also in another table, so that the search need not read them.
    """

    name: str
    version: int
    tables: tuple[sa.Table, ...]
    handles: frozenset[str]
    project: Callable[[Sequence[Recorded]], list[Change]]
    keys_last: tuple[sa.Table, ...] = ()
    per_thread: bool = True
    last_sql: tuple[str, ...] = ()
    said: tuple[sa.Table, ...] = ()
    copied: tuple[sa.Table, ...] = ()

    def changes(self, batch: Sequence[Recorded]) -> list[Change]:
        """Returns the changes of a batch. Each removal or archiving event is projected alone; the events between two of
        them are projected together."""
        done: list[Change] = []
        for run in _runs(batch):
            first = run[0].event
            if self.per_thread and first.type in REMOVALS:
                done.append(DeleteThread(self.tables, first.tenant, first.thread))
            else:
                done.extend(self.project(run))
        return done


def _runs(batch: Sequence[Recorded]) -> list[Sequence[Recorded]]:
    runs: list[Sequence[Recorded]] = []
    start = 0
    for at, recorded in enumerate(batch):
        if recorded.event.type in _ALONE:
            runs += [batch[start:at], batch[at : at + 1]]
            start = at + 1
    return [run for run in (*runs, batch[start:]) if run]
