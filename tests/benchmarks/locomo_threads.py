"""LoCoMo conversations as threads of turnlog: in the read models, with what turnlog remembers of them at their end."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from tests.benchmarks.locomo_recall import evidence, turns
from tests.benchmarks.remembering import Remembered, remembered
from tests.benchmarks.stand import fill, project
from turnlog.events.log import Log
from turnlog.projectors.message import Message
from turnlog.projectors.messages import MESSAGES, thread_messages
from turnlog.projectors.vectors import VECTORS
from turnlog.projectors.writer import Connection

TENANT = "default"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the sequences of its evidence."""

    text: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Conversation:
    """messages: all of them, one speaker as the user, the other as the assistant; memory: the state at their end."""

    thread: str
    messages: list[Message]
    memory: Remembered
    questions: list[Asked]


async def conversations(path: Path, log: Log, url: str, conn: Connection, every: int) -> list[Conversation]:
    """Appended, projected and remembered; the text of the turns alone. every: of the questions one in so many."""
    samples = json.loads(path.read_text("utf-8"))
    await fill(log, (recorded.event for sample in samples for recorded in turns(sample, captions=False)))
    await project(log, url, conn, (MESSAGES, VECTORS))
    return [await _conversation(conn, sample, every) for sample in samples]


async def _conversation(conn: Connection, sample: dict[str, Any], every: int) -> Conversation:
    thread = str(sample["sample_id"])
    messages = await thread_messages(conn, TENANT, thread)
    memory = remembered(conn, thread)
    for message in messages:
        await memory.hear(message)
    seqs = {message.source_id: message.seq for message in messages if message.source_id}
    found = [(qa["question"], evidence(qa["evidence"], set(seqs))[0]) for qa in sample["qa"][::every]]
    asked = [Asked(text, frozenset(seqs[source] for source in sources)) for text, sources in found if sources]
    return Conversation(thread, messages, memory, asked)


def question_turn(text: str, after: Sequence[Message]) -> Message:
    seq = after[-1].seq + 1
    return Message(seq, uuid5(NAMESPACE_OID, f"{seq}:{text}"), "user", text, datetime.now(UTC))
