"""Cuts turns into the chunks that recall searches (P5, seed A 1.2). Pure.

One turn is one chunk; only a turn over PIECE_TOKENS is cut, at sentence borders, with overlap. What a model
thought, system prompts and tool calls make no chunk; of a tool result only the beginning does.

Same or not the same? A chunk's id hashes tenant, thread and index text "[8 May 2023] Ann: I ran 5 km". So a
turn cut twice is one chunk, and so is a sentence that one speaker repeats on one day (its `seqs` and
`source_ids` list every turn, the first first); said again on another day it is another fact.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from uuid import UUID

from turnlog.events.contracts import Event, Recorded, TurnRecorded
from turnlog.projectors.pieces import pieces
from turnlog.projectors.speech import clean, spoken_text
from turnlog.projectors.terms import MONTHS, terms


@dataclass(frozen=True, slots=True)
class Chunk:
    """One searchable piece of a turn (or of equal turns). text: to show; index_text: to embed; terms: text's.

    piece: 0 … n-1 within its turn. seqs, event_ids, source_ids: parallel, one per turn that says it.
    """

    id: str
    tenant: str
    thread: str
    seqs: tuple[int, ...]
    event_ids: tuple[UUID, ...]
    source_ids: tuple[str | None, ...]
    piece: int
    speaker: str
    text: str
    index_text: str
    terms: tuple[str, ...]
    created_at: datetime

    @property
    def search_terms(self) -> tuple[str, ...]:
        """Distinct terms with date and speaker, sorted: what `array_to_tsvector` wants for the prefilter."""
        return tuple(sorted({*self.terms, *terms(self.speaker), *terms(day(self.created_at))}))


def chunks(recorded: Recorded) -> list[Chunk]:
    """The chunks of one event in order; none for anything but a turn with words in it."""
    event, turn = recorded.event, recorded.event.data
    if not isinstance(turn, TurnRecorded) or turn.role == "system":
        return []
    speaker = _speaker(turn)
    made = []
    for piece, text in enumerate(pieces(spoken_text(turn))):
        index_text = _index_text(event, speaker, text)
        made.append(
            Chunk(
                id=content_id(event.tenant, event.thread, index_text),
                tenant=event.tenant,
                thread=event.thread,
                seqs=(recorded.seq,),
                event_ids=(event.id,),
                source_ids=(turn.source_id,),
                piece=piece,
                speaker=speaker,
                text=text,
                index_text=index_text,
                terms=tuple(terms(text)),
                created_at=event.time,
            )
        )
    return made


def index_texts(event: Event) -> list[str]:
    """What is embedded of an event: the index text of each of its chunks."""
    turn = event.data
    if not isinstance(turn, TurnRecorded) or turn.role == "system":
        return []
    return [_index_text(event, _speaker(turn), text) for text in pieces(spoken_text(turn))]


def _speaker(turn: TurnRecorded) -> str:
    return clean(turn.name or "") or turn.role


def _index_text(event: Event, speaker: str, text: str) -> str:
    return f"[{day(event.time)}] {speaker}: {text}"


def fold(found: Iterable[Chunk]) -> list[Chunk]:
    """Equal ids become one chunk at the first place with all turns; the SQL appends to stored rows alike."""
    by_id: dict[str, Chunk] = {}
    for chunk in found:
        first = by_id.get(chunk.id)
        if first is None:
            by_id[chunk.id] = chunk
        elif chunk.seqs[0] not in first.seqs:
            by_id[chunk.id] = replace(
                first,
                seqs=first.seqs + chunk.seqs,
                event_ids=first.event_ids + chunk.event_ids,
                source_ids=first.source_ids + chunk.source_ids,
            )
    return list(by_id.values())


def day(time: datetime) -> str:
    """`8 May 2023` in UTC: no locale, and the words people ask with."""
    utc = time.astimezone(UTC)
    return f"{utc.day} {MONTHS[utc.month - 1]} {utc.year}"


def content_id(*parts: str) -> str:
    """32 hexadecimal digits of the parts (A 1.2: hash of thread and chunk; the tenant comes first here)."""
    return blake2b("\x00".join(parts).encode(errors="replace"), digest_size=16).hexdigest()
