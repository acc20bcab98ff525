"""Loads LoCoMo conversations as threads of turnlog, with the state that turnlog has derived at their end."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from tests.benchmarks.remembering import Remembered, remembered
from tests.benchmarks.stand import fill, project
from tests.evaluation.locomo import read_evidence, turn_events
from turnlog.events.contracts import Event, TurnRecorded
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.projection import VECTORS
from turnlog.projectors.models.conversation.message import Message, thread_messages
from turnlog.projectors.models.conversation.messages import MESSAGES

TENANT = "default"


@dataclass(frozen=True, slots=True)
class LocomoQuestion:
    """A question with the sequences of its evidence turns."""

    text: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A LoCoMo conversation. One speaker is the user, the other the assistant. memory: the derived state after the last
    message."""

    thread: str
    messages: list[Message]
    memory: Remembered
    questions: list[LocomoQuestion]


async def conversations(path: Path, log: Log, url: str, conn: Connection, every: int) -> list[Conversation]:
    """Appends and projects the turns of all conversations, and returns the conversations. every: keeps one question in
    `every`."""
    samples = json.loads(path.read_text("utf-8"))
    await fill(log, (event for sample in samples for event in _dialogue(sample)))
    await project(log, url, conn, (MESSAGES, VECTORS))
    return [await _conversation(conn, sample, every) for sample in samples]


def _dialogue(sample: dict[str, Any]) -> Iterator[Event]:
    """Yields the turns of a sample. The second speaker is the assistant, so that questions have answers."""
    for event in turn_events(sample, captions=False):
        if isinstance(event.data, TurnRecorded):
            second = event.data.name == sample["conversation"]["speaker_b"]
            data = event.data.model_copy(update={"role": "assistant" if second else "user"})
            yield event.model_copy(update={"data": data})


async def _conversation(conn: Connection, sample: dict[str, Any], every: int) -> Conversation:
    thread = str(sample["sample_id"])
    messages = await thread_messages(conn, TENANT, thread)
    memory = remembered(conn, thread)
    for message in messages:
        await memory.hear(message)
    seqs = {message.source_id: message.seq for message in messages if message.source_id}
    questions = [(qa["question"], read_evidence(qa["evidence"], set(seqs)).turns) for qa in sample["qa"][::every]]
    asked = [
        LocomoQuestion(text, frozenset(seqs[source] for source in sources)) for text, sources in questions if sources
    ]
    return Conversation(thread, messages, memory, asked)


def question_turn(text: str, after: Sequence[Message]) -> Message:
    seq = after[-1].seq + 1
    return Message(seq, uuid5(NAMESPACE_OID, f"{seq}:{text}"), "user", text, datetime.now(UTC))
