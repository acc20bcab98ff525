"""A batch of events as steps of sessions: what one statement can apply to a row without having read it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from pydantic_core import to_json

from turnlog.events.contracts import (
    Recorded,
    SegmentCheckpointed,
    SegmentCheckpointFailed,
    SessionCreated,
    SessionUpdated,
    TurnRecorded,
)
from turnlog.projectors.models.sessions.state import covered_by, is_answer
from turnlog.projectors.models.speech import spoken_text


@dataclass(slots=True)
class Step:
    """What some consecutive events do to one session. None: the row keeps what it has.

    created: the step is a session that begins, and nothing else. A checkpoint or its failure ends a step.
    """

    tenant: str
    thread: str
    updated_at: datetime
    seq: int
    user: str | None = None
    agent: str | None = None
    answers: int = 0
    last_bot_message: str | None = None
    global_state: dict[str, Any] | None = None
    user_snapshot: dict[str, Any] | None = None
    failed: bool = False
    checkpoint: SegmentCheckpointed | None = None
    checkpoint_id: UUID | None = None
    covered_seq: int | None = None
    created: Recorded | None = field(default=None, repr=False)

    @property
    def ended(self) -> bool:
        return self.failed or self.checkpoint is not None or self.created is not None

    def add(self, recorded: Recorded) -> None:
        event = recorded.event
        self.user, self.updated_at, self.seq = self.user or event.user, event.time, recorded.seq
        match event.data:
            case TurnRecorded() as turn:
                self._add_turn(turn)
            case SessionUpdated() as update:
                self._update(update)
            case SegmentCheckpointed() as checkpoint:
                self.checkpoint, self.checkpoint_id = checkpoint, event.id
                self.covered_seq = covered_by(recorded, checkpoint)
            case SegmentCheckpointFailed():
                self.failed = True
            case SessionCreated():
                self.created = recorded

    def _add_turn(self, turn: TurnRecorded) -> None:
        self.agent = self.agent if turn.agent is None else turn.agent
        if is_answer(turn):
            self.answers += 1
            self.last_bot_message = spoken_text(turn)

    def _update(self, data: SessionUpdated) -> None:
        self.agent = self.agent if data.current_agent_key is None else data.current_agent_key
        self.global_state = self.global_state if data.global_state is None else data.global_state
        self.user_snapshot = self.user_snapshot if data.user_snapshot is None else data.user_snapshot

    @classmethod
    def columns(cls, steps: Sequence[Self]) -> dict[str, list[Any]]:
        """The steps as one list a column, as the statements of the projection name them."""
        ends = [step.checkpoint for step in steps]
        return {
            "tenant": [step.tenant for step in steps],
            "thread": [step.thread for step in steps],
            "user": [step.user for step in steps],
            "agent": [step.agent for step in steps],
            "answers": [step.answers for step in steps],
            "last_bot_message": [step.last_bot_message for step in steps],
            "global_state": [_json(step.global_state) for step in steps],
            "user_snapshot": [_json(step.user_snapshot) for step in steps],
            "updated_at": [step.updated_at for step in steps],
            "seq": [step.seq for step in steps],
            "failed": [step.failed for step in steps],
            "checkpoint_id": [step.checkpoint_id for step in steps],
            "summary": [end and end.summary for end in ends],
            "covered_seq": [step.covered_seq for step in steps],
            "turns_covered": [end and end.turns_covered for end in ends],
            "recent_turns": [end and end.recent_turns for end in ends],
            "trigger": [end and end.trigger for end in ends],
            "model": [end.derivation.model if end and end.derivation else None for end in ends],
        }


def rounds(batch: Sequence[Recorded]) -> list[list[Step]]:
    """The steps of every thread in order: the first ones, the second ones … A round has one of a thread at most."""
    steps: dict[tuple[str, str], list[Step]] = {}
    for recorded in batch:
        event = recorded.event
        mine = steps.setdefault((event.tenant, event.thread), [])
        if not mine or mine[-1].ended or isinstance(event.data, SessionCreated):
            mine.append(Step(event.tenant, event.thread, event.time, recorded.seq))
        mine[-1].add(recorded)
    return [[mine[at] for mine in steps.values() if at < len(mine)] for at in range(max(map(len, steps.values())))]


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else to_json(value).decode()
