"""profile_texts: the profile that a model wrote about each user; it is deleted when one of its memories is
forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from turnlog.events.contracts import REMOVALS, MemoryForgotten, ProfileWritten, Recorded
from turnlog.projectors.engine.changes import Change, Statement
from turnlog.projectors.engine.projection import Projection
from turnlog.projectors.engine.tables import thread_table, timestamptz
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.projection import joined

profile_texts = thread_table(
    "profile_texts",
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("sentences", ARRAY(sa.Text), nullable=False),
    sa.Column("memories", JSONB, nullable=False, comment="for each sentence, the ids of the memories that it states"),
    sa.Column(
        "lines", ARRAY(UUID_TYPE(as_uuid=True)), nullable=False, comment="ids of the memories that the model read"
    ),
    sa.Column("seq", sa.BigInteger, nullable=False, comment="sequence of the event that wrote it"),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("written_at", timestamptz(), nullable=False),
)

WRITE = """
INSERT INTO profile_texts (tenant, thread_id, user_id, sentences, memories, lines, seq, model, written_at)
VALUES (%(tenant)s, %(thread)s, %(user)s, %(sentences)s, %(memories)s::jsonb, %(lines)s::uuid[],
  %(seq)s, %(model)s, %(at)s)
ON CONFLICT (tenant, thread_id) DO UPDATE SET sentences = excluded.sentences,
  memories = excluded.memories, lines = excluded.lines, seq = excluded.seq, model = excluded.model,
  written_at = excluded.written_at"""
FORGET = """
DELETE FROM profile_texts WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND %(memory)s = ANY(lines)"""


def project(batch: Sequence[Recorded]) -> list[Change]:
    return joined(map(_change, batch))


def _change(recorded: Recorded) -> Change:
    event, data = recorded.event, recorded.event.data
    key = {"tenant": event.tenant, "thread": event.thread}
    if isinstance(data, MemoryForgotten):
        return Statement(FORGET, [key | {"memory": data.memory_id}])
    assert isinstance(data, ProfileWritten)
    row = {
        "user": event.user or "",
        "sentences": list(data.sentences),
        "memories": to_json(data.memories).decode(),
        "lines": list(data.lines),
        "seq": recorded.seq,
        "model": data.derivation.model,
        "at": event.time,
    }
    return Statement(WRITE, [key | row])


PROFILE_TEXTS = Projection(
    "profile_texts",
    1,
    (profile_texts,),
    REMOVALS | {"profile_written", "memory_forgotten"},
    project,
    said=(profile_texts,),
)


@dataclass(frozen=True, slots=True)
class ProfileSentence:
    """A sentence about a user. memories: the memories that the sentence states."""

    text: str
    memories: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class ProfileText:
    """The profile that a model wrote about a user. lines: the memories that the model read."""

    sentences: tuple[ProfileSentence, ...]
    lines: tuple[UUID, ...]
    seq: int
    model: str
    written_at: datetime


async def profile_text(conn: Connection, tenant: str, thread: str) -> ProfileText | None:
    rows = await conn.execute(
        "SELECT sentences, memories, lines, seq, model, written_at FROM profile_texts "
        "WHERE tenant = %s AND thread_id = %s",
        (tenant, thread),
    )
    row = await rows.fetchone()
    if row is None:
        return None
    texts, cited, lines, *about = row
    sentences = [ProfileSentence(text, tuple(map(UUID, ids))) for text, ids in zip(texts, cited, strict=True)]
    return ProfileText(tuple(sentences), tuple(lines), *about)
