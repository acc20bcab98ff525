"""Cuts turns into the chunks that recall searches. Pure.

One turn is one chunk. Only a turn of more than PIECE_TOKENS is cut, at sentence ends and with overlap; a huge turn is
cut into its first MAX_PIECES pieces only. Thinking, system prompts and tool calls are left out, and a tool result is
cut to its beginning. Turns that only repeat memory (results of turnlog's own recall tool, answers that quote without a
model) make no chunks, because recall would find these copies before the original words.

A chunk's id is a hash of tenant, thread and index text ("[8 May 2023] Ann: I ran 5 km"). So a sentence that a speaker
repeats on the same day is one chunk, whose `seqs` and `source_ids` list its first MAX_TURNS turns, oldest first; on
another day the sentence is another chunk.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from itertools import chain, islice
from uuid import UUID

from turnlog.events.contracts import Event, Recorded, TurnRecorded
from turnlog.projectors.models.conversation.speech import attributed_to, clean, repeats_memory, spoken_text
from turnlog.projectors.models.terms import MONTHS, terms

PIECE_TOKENS = 400  # the smallest common embedding window is 512 tokens, and the date and speaker need room
OVERLAP_TOKENS = 60
TAG_CHARS = 100
# The limit for a turn: about 1 MB of English or 250,000 Chinese characters. While a turn is cut, all events of its
# partition wait.
MAX_PIECES = 750
# The most turns that one chunk lists; the log contains all of them. Without a limit each "ok" would lengthen the row.
MAX_TURNS = 100

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？；])|\n+")
_WIDE = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003134f]")


def estimated_tokens(text: str) -> float:
    """Estimates tokens without a tokenizer: one per wide character, and one per four other characters. The estimates of
    a text's parts add up to the estimate of the text."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return wide + (len(text) - wide) / 4


def pieces(text: str) -> list[str]:
    """Returns the text in one piece, or in up to MAX_PIECES pieces of about PIECE_TOKENS that overlap by
    OVERLAP_TOKENS."""
    if not text or (len(text) <= 4 * PIECE_TOKENS and estimated_tokens(text) <= PIECE_TOKENS):
        return [text] if text else []
    return list(islice(filter(None, _pieces(text)), MAX_PIECES))


def _pieces(text: str) -> Iterator[str]:
    current: list[str] = []
    tokens = 0.0
    for sentence in _sentences(text):
        more = estimated_tokens(sentence)
        if current and tokens + more > PIECE_TOKENS:
            yield "".join(current).strip()
            current = _overlap(current)
            tokens = sum(map(estimated_tokens, current))
        current.append(sentence)
        tokens += more
    yield "".join(current).strip()


def _sentences(text: str) -> Iterator[str]:
    """Yields sentences with the space that follows them; very long sentences are cut by length."""
    start = 0
    for end in chain((match.end() for match in _SENTENCE_END.finditer(text)), [len(text)]):
        yield from _cut_by_length(text[start:end])
        start = end


def _cut_by_length(sentence: str) -> Iterator[str]:
    room, start = PIECE_TOKENS - OVERLAP_TOKENS, 0
    while estimated_tokens(rest := sentence[start : start + 4 * room + 1]) > room:
        at = int(len(rest) * room / estimated_tokens(rest))
        while estimated_tokens(rest[:at]) > room:
            at -= max(1, at // 20)
        space = rest.rfind(" ", at // 2, at)
        at = space + 1 if space > 0 else at
        yield rest[:at]
        start += at
    if rest:
        yield rest


def _overlap(sentences: list[str]) -> list[str]:
    first, tokens = len(sentences), 0.0
    while first > 1 and (tokens := tokens + estimated_tokens(sentences[first - 1])) <= OVERLAP_TOKENS:
        first -= 1
    return sentences[first:]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A searchable piece of a turn, or of several equal turns.

    text: the text to show. index_text: the text to embed. terms: the search terms of the text. piece: its number within
    the turn, from 0. seqs, event_ids, source_ids: one entry per turn, up to MAX_TURNS.
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


def chunks(recorded: Recorded) -> list[Chunk]:
    """Returns the chunks of a turn in order; [] for other events and for turns without text."""
    event, turn = recorded.event, recorded.event.data
    if not isinstance(turn, TurnRecorded):
        return []
    speaker = _speaker(turn)
    made = []
    for piece, text in enumerate(_texts(turn)):
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
    """Returns the texts to embed for an event: the index text of each of its chunks."""
    turn = event.data
    if not isinstance(turn, TurnRecorded):
        return []
    return [_index_text(event, _speaker(turn), text) for text in _texts(turn)]


def _texts(turn: TurnRecorded) -> list[str]:
    return [] if turn.role == "system" or repeats_memory(turn) else pieces(spoken_text(turn))


def _speaker(turn: TurnRecorded) -> str:
    return clean(turn.name or "") or attributed_to(turn)


def _index_text(event: Event, speaker: str, text: str) -> str:
    return f"[{day(event.time)}] {speaker}: {text}"


def fold(all_chunks: Iterable[Chunk]) -> list[Chunk]:
    """Combines chunks with equal ids into one with up to MAX_TURNS turns, as the upsert does with stored rows."""
    by_id: dict[str, Chunk] = {}
    for chunk in all_chunks:
        first = by_id.get(chunk.id)
        if first is None:
            by_id[chunk.id] = chunk
        elif len(first.seqs) < MAX_TURNS and chunk.seqs[0] not in first.seqs:
            by_id[chunk.id] = replace(
                first,
                seqs=first.seqs + chunk.seqs,
                event_ids=first.event_ids + chunk.event_ids,
                source_ids=first.source_ids + chunk.source_ids,
            )
    return list(by_id.values())


def topic_tag(topic: str) -> str:
    """Returns the form of a topic that chunks are tagged with: lower case, single spaces, and short enough for an
    index."""
    return " ".join(clean(topic).encode(errors="replace").decode().lower().split())[:TAG_CHARS]


def day(time: datetime) -> str:
    """Returns the day in the time's own zone as `8 May 2023`, the form that people use in questions, in any locale."""
    return f"{time.day} {MONTHS[time.month - 1]} {time.year}"


def content_id(*parts: str) -> str:
    """Returns a hash of the parts (tenant, thread and chunk) as 32 hexadecimal digits."""
    return blake2b("\x00".join(parts).encode(errors="replace"), digest_size=16).hexdigest()
