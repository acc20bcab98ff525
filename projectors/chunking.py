"""Cuts turns into the chunks that recall searches (P5, seed A 1.2) and into episodes (D 2.2). Pure.

One turn is one chunk; only a turn over PIECE_TOKENS is cut, at sentence borders, with overlap. What a model
thought, system prompts and tool calls make no chunk; of a tool result only the beginning does.

Same or not the same? A chunk's id hashes tenant, thread and index text "[8 May 2023] Ann: I ran 5 km". So a
turn cut twice is one chunk, and so is a sentence that one speaker repeats on one day (its `seqs` and
`source_ids` list every turn, the first first); said again on another day it is another fact.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from uuid import UUID

from turnlog.events.contracts import Content, Recorded, TextBlock, ToolResultBlock, TurnRecorded
from turnlog.projectors.terms import MONTHS, terms

PIECE_TOKENS = 400  # the smallest common embedding window is 512, and the date and speaker need room
OVERLAP_TOKENS = 60
TOOL_RESULT_CHARS = 800

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？；])|\n+")
_WIDE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]")


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


def chunks(recorded: Recorded) -> list[Chunk]:
    """The chunks of one event in order; none for anything but a turn with words in it."""
    event, turn = recorded.event, recorded.event.data
    if not isinstance(turn, TurnRecorded) or turn.role == "system":
        return []
    speaker = _clean(turn.name or "") or turn.role
    made = []
    for piece, text in enumerate(_pieces(spoken_text(turn))):
        index_text = f"[{day(event.time)}] {speaker}: {text}"
        made.append(
            Chunk(
                id=_hash(event.tenant, event.thread, index_text),
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
        if turn.role == "user" and text and not _only_tool_results(turn.content):
            pending = Question(seq=recorded.seq, event_id=event.id, text=text, created_at=event.time)
        elif turn.role == "assistant" and text and pending is not None:
            found.append(_episode(pending, recorded, text))
            pending = None
    return found, pending


def spoken_text(turn: TurnRecorded) -> str:
    """What was said, as plain text: no thinking, images or tool calls; the beginning of tool results."""
    if isinstance(turn.content, str):
        text = _clean(turn.content)
        return _clean(text[:TOOL_RESULT_CHARS]) if turn.role == "tool" else text
    parts = list(_block_texts(turn.content))
    text = _clean("\n".join(part for part in parts if part))
    return _clean(text[:TOOL_RESULT_CHARS]) if turn.role == "tool" else text


def day(time: datetime) -> str:
    """`8 May 2023` in UTC: no locale, and the words people ask with."""
    utc = time.astimezone(UTC)
    return f"{utc.day} {MONTHS[utc.month - 1]} {utc.year}"


def estimated_tokens(text: str) -> float:
    """Tokens without a tokenizer, the same on every machine: a wide character is one, four others are one."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide + (len(text) - wide) / 4


def _block_texts(content: Content) -> Iterator[str]:
    for block in content:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolResultBlock):
            inner = block.content
            joined = inner if isinstance(inner, str) else "\n".join(_block_texts(inner))
            yield joined[:TOOL_RESULT_CHARS]


def _only_tool_results(content: Content) -> bool:
    """Anthropic-style histories carry tool results in user turns; those ask nothing."""
    return not isinstance(content, str) and not any(isinstance(block, TextBlock) for block in content)


def _pieces(text: str) -> list[str]:
    """The text whole, or in pieces of about PIECE_TOKENS that repeat the last OVERLAP_TOKENS."""
    if not text or estimated_tokens(text) <= PIECE_TOKENS:
        return [text] if text else []
    pieces: list[str] = []
    current: list[str] = []
    for sentence in _sentences(text):
        if current and estimated_tokens("".join(current) + sentence) > PIECE_TOKENS:
            pieces.append("".join(current).strip())
            current = _overlap(current)
        current.append(sentence)
    pieces.append("".join(current).strip())
    return [piece for piece in pieces if piece]


def _sentences(text: str) -> Iterator[str]:
    """Sentences with the space that follows them; one without an end is cut by length."""
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        yield from _cut_by_length(text[start:end])
        start = end


def _cut_by_length(sentence: str) -> Iterator[str]:
    room = PIECE_TOKENS - OVERLAP_TOKENS
    while estimated_tokens(sentence) > room:
        at = int(len(sentence) * room / estimated_tokens(sentence))
        while estimated_tokens(sentence[:at]) > room:
            at -= max(1, at // 20)
        space = sentence.rfind(" ", at // 2, at)
        at = space + 1 if space > 0 else at
        yield sentence[:at]
        sentence = sentence[at:]
    if sentence:
        yield sentence


def _overlap(sentences: list[str]) -> list[str]:
    kept: list[str] = []
    for sentence in reversed(sentences[1:]):
        if estimated_tokens(sentence + "".join(kept)) > OVERLAP_TOKENS:
            break
        kept.insert(0, sentence)
    return kept


def _episode(question: Question, answered: Recorded, answer: str) -> Episode:
    event = answered.event
    asked = _head(question.text, PIECE_TOKENS // 3)
    index_text = f"User: {asked}\nAssistant: {_head(answer, PIECE_TOKENS - estimated_tokens(asked))}"
    return Episode(
        id=_hash(event.tenant, event.thread, str(question.seq), index_text),
        tenant=event.tenant,
        thread=event.thread,
        question_seq=question.seq,
        answer_seq=answered.seq,
        question=question.text,
        answer=answer,
        index_text=index_text,
        created_at=question.created_at,
    )


def _head(text: str, limit: float) -> str:
    return text if estimated_tokens(text) <= limit else text[: max(1, int(len(text) * limit / estimated_tokens(text)))]


def _clean(text: str) -> str:
    """Postgres text holds no NUL."""
    return text.replace("\x00", "").strip()


def _hash(*parts: str) -> str:
    return blake2b("\x00".join(parts).encode(errors="replace"), digest_size=16).hexdigest()
