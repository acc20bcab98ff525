"""Episodes: a question with its answer, searched as one (P5, D 2.2). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from turnlog.events.contracts import Recorded, TurnRecorded
from turnlog.projectors.chunking import content_id
from turnlog.projectors.pieces import PIECE_TOKENS, estimated_tokens, head
from turnlog.projectors.speech import only_tool_results, spoken_text


@dataclass(frozen=True, slots=True)
class Question:
    """A user turn that waits for its answer: what `episodes` hands from one batch to the next."""

    seq: int
    event_id: UUID
    text: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Episode:
    """A question with its answer, found as one (D 2.2.4)."""

    id: str
    tenant: str
    thread: str
    question_seq: int
    answer_seq: int
    question: str
    answer: str
    index_text: str
    created_at: datetime


def episodes(pending: Question | None, turns: Sequence[Recorded]) -> tuple[list[Episode], Question | None]:
    """Pairs of user turn and next assistant turn with text, of one thread in order, and the open question.

    Tool calls and results in between do not end the wait. Of two user turns in a row the later asks.
    """
    found: list[Episode] = []
    for recorded in turns:
        event, turn = recorded.event, recorded.event.data
        if not isinstance(turn, TurnRecorded) or turn.role not in ("user", "assistant"):
            continue
        text = spoken_text(turn)
        if turn.role == "user" and text and not only_tool_results(turn.content):
            pending = Question(seq=recorded.seq, event_id=event.id, text=text, created_at=event.time)
        elif turn.role == "assistant" and text and pending is not None:
            found.append(_episode(pending, recorded, text))
            pending = None
    return found, pending


def _episode(question: Question, answered: Recorded, answer: str) -> Episode:
    event = answered.event
    asked = head(question.text, PIECE_TOKENS // 3)
    index_text = f"User: {asked}\nAssistant: {head(answer, PIECE_TOKENS - estimated_tokens(asked))}"
    return Episode(
        id=content_id(event.tenant, event.thread, str(question.seq), index_text),
        tenant=event.tenant,
        thread=event.thread,
        question_seq=question.seq,
        answer_seq=answered.seq,
        question=question.text,
        answer=answer,
        index_text=index_text,
        created_at=question.created_at,
    )
