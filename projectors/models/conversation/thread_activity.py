"""thread_activity: one row per thread, for the list of conversations; thread_participants: the users who take part in
each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import JSONB

from turnlog.events.contracts import (
    REMOVALS,
    Event,
    ParticipantSet,
    Recorded,
    ThreadForked,
    ThreadOpened,
    ThreadRenamed,
    TurnRecorded,
)
from turnlog.projectors.engine.changes import Change, Row, Statement, Upsert
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz

thread_activity = thread_table(
    "thread_activity",
    sa.Column("label", sa.Text),
    sa.Column("user_id", sa.Text),
    sa.Column("message_count", sa.Integer, nullable=False),
    sa.Column("user_message_count", sa.Integer, nullable=False),
    sa.Column("assistant_message_count", sa.Integer, nullable=False),
    sa.Column("created_at", timestamptz(), nullable=False),
    sa.Column("last_active_at", timestamptz(), nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("metadata", JSONB, comment="a JSON object that the application chose"),
)
sa.Index("thread_activity_recent", thread_activity.c.tenant, thread_activity.c.last_active_at.desc())
sa.Index(
    "thread_activity_user",
    thread_activity.c.tenant,
    thread_activity.c.user_id,
    thread_activity.c.last_active_at.desc(),
)
thread_participants = thread_table(
    "thread_participants",
    sa.Column("user_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, comment="turns of the thread with this name are the user's"),
    sa.Column("role", sa.Text, nullable=False, comment="reader, member or owner"),
    sa.Column("agreed", sa.Boolean, nullable=False, comment="false: an invitation that the user has not accepted"),
)
sa.Index("thread_participants_user", *(thread_participants.c[name] for name in ("tenant", "user_id")))
COLUMNS = tuple(column.name for column in thread_activity.columns)
PARTICIPANT_COLUMNS = tuple(column.name for column in thread_participants.columns)
_PARTICIPANT = tuple((name, f"excluded.{name}") for name in ("name", "role", "agreed"))
_LEFT = """
DELETE FROM thread_participants WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND user_id = %(user)s"""
_UPDATE = (
    ("label", "coalesce(excluded.label, t.label)"),
    ("user_id", "coalesce(t.user_id, excluded.user_id)"),
    ("message_count", "t.message_count + excluded.message_count"),
    ("user_message_count", "t.user_message_count + excluded.user_message_count"),
    ("assistant_message_count", "t.assistant_message_count + excluded.assistant_message_count"),
    ("created_at", "least(t.created_at, excluded.created_at)"),
    ("last_active_at", "greatest(t.last_active_at, excluded.last_active_at)"),
    ("last_seq", "excluded.last_seq"),
    ("metadata", "coalesce(excluded.metadata, t.metadata)"),
)


@dataclass(slots=True)
class _Activity:
    """The changes that a batch makes to one thread."""

    first: datetime
    last: datetime
    label: str | None = None
    user: str | None = None
    messages: int = 0
    user_messages: int = 0
    assistant_messages: int = 0
    seq: int = 0
    metadata: str | None = None

    def add(self, event: Event, seq: int) -> None:
        self.first, self.last = min(self.first, event.time), max(self.last, event.time)
        self.user, self.seq = self.user or event.user, seq
        match event.data:
            case ThreadOpened() as opened:
                self.label = opened.label or self.label
                if opened.metadata is not None:
                    self.metadata = to_json(opened.metadata).decode()
            case ThreadRenamed(label=label):
                self.label = label or self.label
            case ThreadForked() as fork:
                self.label = fork.label or self.label
                self.messages += fork.message_count
                self.user_messages += fork.user_message_count
                self.assistant_messages += fork.assistant_message_count
            case TurnRecorded(role=role):
                self.messages += 1
                self.user_messages += role == "user"
                self.assistant_messages += role == "assistant"


def project(batch: Sequence[Recorded]) -> list[Change]:
    threads: dict[tuple[str, str], _Activity] = {}
    participants: dict[Row, ParticipantSet] = {}
    for recorded in batch:
        event = recorded.event
        key = (event.tenant, event.thread)
        if isinstance(event.data, ParticipantSet):
            if event.user is not None:
                participants[*key, event.user] = event.data
            continue
        if key not in threads:
            threads[key] = _Activity(event.time, event.time)
        threads[key].add(event, recorded.seq)
    rows = [
        (*key, a.label, a.user, a.messages, a.user_messages, a.assistant_messages, a.first, a.last, a.seq, a.metadata)
        for key, a in threads.items()
    ]
    changes: list[Change] = [Upsert(thread_activity, COLUMNS, rows, _UPDATE)]
    return [*changes, *_participants(participants)] if participants else changes


def _participants(latest: Mapping[Row, ParticipantSet]) -> list[Change]:
    """Returns the changes to thread_participants. A participant whose name was erased no longer takes part."""
    here = {
        key: participant
        for key, participant in latest.items()
        if participant.role is not None and participant.name is not None
    }
    rows = [(*key, participant.name, participant.role, participant.agreed) for key, participant in here.items()]
    left = [dict(zip(("tenant", "thread", "user"), key, strict=True)) for key in latest if key not in here]
    changes: list[Change] = [Upsert(thread_participants, PARTICIPANT_COLUMNS, rows, _PARTICIPANT)]
    return [*changes, Statement(_LEFT, left)] if left else changes


THREAD_ACTIVITY = Projection(
    "thread_activity",
    1,
    (thread_activity, thread_participants),
    REMOVALS | {"participant_set", "thread_opened", "thread_renamed", "thread_forked", "turn_recorded"},
    project,
)
