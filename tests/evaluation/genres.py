"""Measures recall in genres other than LoCoMo: assistant chats (BEAM) and Chinese diaries (MemDaily), as imported."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from turnlog.agent.operations.importers import events
from turnlog.agent.operations.importers.imported import ImportedTurn
from turnlog.agent.recall.ranking import Weights
from turnlog.events.contracts import Event, Recorded, TurnRecorded
from turnlog.projectors.models.chunks.chunking import Chunk, chunks, fold

from .floors import floors, matches
from .locomo import Conversation, index, load, question
from .turns import Line, line, shipped
from .vectors import Vectors

LOCOMO, BEAM, POOLED, ONE_THREAD = "LoCoMo", "BEAM", "MemDaily, pooled", "MemDaily, one thread"
LOCOMO_POOLED, BEAM_POOLED = "LoCoMo, pooled", "BEAM, pooled"
NO_CATEGORY = 0
BM25 = "BM25, stopwords, Snowball"
# The values that switch off the weights that depend on the genre or on threads, to measure what each weight adds.
OFF = {"brief": float("inf"), "assistant": 0.0, "monologue": 1.0, "thread": 0.0, "session": 0.0}


@dataclass(frozen=True, slots=True)
class Genre:
    """A genre. unanswered: questions without an answer in their conversation, by the conversation's name."""

    name: str
    conversations: list[Conversation]
    unanswered: Mapping[str, list[str]] = field(default_factory=dict)


def genres(folder: Path) -> list[Genre]:
    """Returns the genres whose files are in the folder, without vectors."""
    loaded = []
    if (path := folder / "locomo-dev.json").exists():
        loaded.append(Genre(LOCOMO, load(path, None, captions=False)))
        loaded.append(Genre(LOCOMO_POOLED, _in_pools(loaded[-1])))
    if (path := folder / "beam-dev.json.gz").exists():
        chats = read_json(path)
        unanswerable = {chat["chat"]: _abstentions(chat) for chat in chats}
        loaded.append(Genre(BEAM, [_chat(chat) for chat in chats], unanswerable))
        loaded.append(Genre(BEAM_POOLED, _in_pools(loaded[-1])))
    if (path := folder / "memdaily-dev.json.gz").exists():
        diaries = read_json(path)
        by_kind: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for diary in diaries:
            by_kind[diary["kind"]].append(diary)
        loaded.append(Genre(POOLED, [_diaries(kind, pool) for kind, pool in by_kind.items()]))
        loaded.append(Genre(ONE_THREAD, [_diaries(_thread(diary), [diary]) for diary in diaries]))
    return loaded


def _in_pools(genre: Genre) -> list[Conversation]:
    """Returns two conversations, each with half of the genre's conversations as threads of one user."""
    return [_pool(f"{genre.name} {at}", genre.conversations[at::2]) for at in (0, 1)]


def _pool(name: str, conversations: Sequence[Conversation]) -> Conversation:
    all_chunks = [
        replace(chunk, thread=told.name, source_ids=tuple(f"{told.name}/{source}" for source in chunk.source_ids))
        for told in conversations
        for chunk in told.chunks
    ]
    scope = index(all_chunks, None)
    questions = [
        question(
            original.text,
            original.category,
            frozenset(f"{told.name}/{source}" for source in original.evidence),
            scope,
            None,
        )
        for told in conversations
        for original in told.questions
    ]
    return Conversation(name, all_chunks, scope, questions, repaired=0, unusable=0)


def texts_of(conversations: Sequence[Conversation]) -> tuple[list[str], list[str]]:
    """Returns all texts to embed: passages and questions."""
    passages = [chunk.index_text for told in conversations for chunk in told.chunks]
    questions = [question for told in conversations for question in told.questions]
    asked = [text for question in questions for text in (question.text, *(part.text for part in question.parts))]
    return list(dict.fromkeys(passages)), list(dict.fromkeys(asked))


def embedded(genre: Genre, vectors: Vectors) -> Genre:
    """Returns the genre with only the conversations whose vectors are all stored, and with these vectors."""
    known = [conversation for conversation in genre.conversations if vectors.knows(*texts_of([conversation]))]
    return Genre(genre.name, [_embedded(conversation, vectors) for conversation in known])


def _embedded(told: Conversation, vectors: Vectors) -> Conversation:
    scope = index(told.chunks, vectors)
    asked = [
        question(original.text, original.category, original.evidence, scope, vectors) for original in told.questions
    ]
    return replace(told, scope=scope, questions=asked)


def words_alone(genre: Genre) -> list[Line]:
    """Returns lines for the floors, for turnlog as shipped, and for turnlog without each weight of OFF."""
    told = genre.conversations
    lines = [line("BM25", told, floors(told)[BM25]), line("BM25, matches only", told, matches(told))]
    lines.append(line("turnlog", told, shipped(vectors=False)))
    return [*lines, *(line(f"without `{name}`", told, shipped(Weights(**{name: off}))) for name, off in OFF.items())]


def with_vectors(genre: Genre) -> list[Line]:
    """Returns lines for all floors and turnlog on an embedded genre."""
    told = genre.conversations
    return [*(line(name, told, ranker) for name, ranker in floors(told).items()), line("turnlog", told, shipped())]


def read_json(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(json.load(file))


def _chat(chat: dict[str, Any]) -> Conversation:
    asked = [(q["question"], frozenset(map(str, q["evidence"]))) for q in chat["questions"]]
    return _conversation(chat["chat"], chat_turns(chat), asked)


def chat_turns(chat: dict[str, Any]) -> list[ImportedTurn]:
    return [
        _turn(chat["chat"], str(said["id"]), datetime.fromisoformat(said["time"]), said["role"], said["content"])
        for said in chat["messages"]
    ]


def _abstentions(chat: dict[str, Any]) -> list[str]:
    return [question["question"] for question in chat["questions"] if question["type"] == "abstention"]


def _diaries(name: str, diaries: Sequence[dict[str, Any]]) -> Conversation:
    """Returns the diaries of one user, each as a thread. Their local times are read as UTC."""
    turns, asked = [], []
    for diary in diaries:
        turns += diary_turns(diary)
        asked.append((diary["question"], frozenset(f"{_thread(diary)}:{number}" for number in diary["evidence"])))
    return _conversation(name, turns, asked)


def diary_turns(diary: dict[str, Any]) -> list[ImportedTurn]:
    thread, turns = _thread(diary), []
    for said in diary["messages"]:
        date, _, clock = said["time"].split()
        time = datetime.strptime(f"{date} {clock} +0000", "%Y年%m月%d日 %H:%M %z")
        turns.append(_turn(thread, f"{thread}:{said['id']}", time, "user", said["text"]))
    return turns


def _thread(diary: dict[str, Any]) -> str:
    return f"{diary['kind']}-{diary['tid']}"


def _turn(thread: str, source: str, time: datetime, role: Any, text: str) -> ImportedTurn:
    data = TurnRecorded(role=role, content=text, source_id=source)
    return ImportedTurn(uuid5(NAMESPACE_URL, f"{thread}/{source}"), thread, None, None, time, data)


def _conversation(
    name: str, turns: Sequence[ImportedTurn], asked: Iterable[tuple[str, frozenset[str]]]
) -> Conversation:
    all_chunks = _chunks(turns)
    known = {source for chunk in all_chunks for source in chunk.source_ids if source}
    asked = list(asked)
    scope = index(all_chunks, None)
    questions = [
        question(text, NO_CATEGORY, evidence & known, scope, None) for text, evidence in asked if evidence & known
    ]
    unusable = sum(len(evidence - known) for _, evidence in asked)
    return Conversation(name, all_chunks, scope, questions, repaired=0, unusable=unusable)


def _chunks(turns: Sequence[ImportedTurn]) -> list[Chunk]:
    told = [event for event in events(turns, "default") if isinstance(event, Event)]
    recorded = (Recorded(event=event, seq=seq, partition=0, stored_at=event.time) for seq, event in enumerate(told, 1))
    return fold(chunk for event in recorded for chunk in chunks(event))
