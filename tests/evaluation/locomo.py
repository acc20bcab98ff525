"""Loads the LoCoMo conversations as recall reads them: imported, cut into chunks and embedded by turnlog's own code."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnlog.agent.operations.importers import events
from turnlog.agent.recall.questions import read_question
from turnlog.agent.recall.ranking import Query
from turnlog.agent.recall.scope import Chunks, ScopeIndex
from turnlog.events.contracts import Event, Recorded
from turnlog.projectors.models.chunks.chunking import Chunk, chunks, fold

from .datasets import locomo_turns
from .vectors import Vectors

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
Array = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Question:
    """A question. parts: the question as recall splits it. vector: the vector of the entire text."""

    text: str
    category: int
    evidence: frozenset[str]
    vector: Array | None
    parts: tuple[Query, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation. repaired, unusable: the numbers of references to evidence that were corrected, and that name no
    turn."""

    name: str
    chunks: list[Chunk]
    scope: ScopeIndex
    questions: list[Question]
    repaired: int
    unusable: int


@dataclass(frozen=True, slots=True)
class Evidence:
    turns: frozenset[str]
    repaired: int
    unusable: int


def read_evidence(raw: Iterable[Any], known: set[str]) -> Evidence:
    """Returns the turns that references mean. `D8:6; D9:17`, `D:11:26` and `D30:05` are corrected; `D` cannot be
    interpreted."""
    turns: set[str] = set()
    repaired = unusable = 0
    for item in map(str, raw):
        if item in known:
            turns.add(item)
            continue
        for part in re.split(r"[;,\s]+", item.strip()):
            match = re.fullmatch(r"D:?(\d+):0*(\d+)", part)
            name = f"D{match[1]}:{match[2]}" if match else part
            turns |= {name} & known
            repaired += name in known
            unusable += name not in known
    return Evidence(frozenset(turns), repaired, unusable)


def turn_events(sample: dict[str, Any], captions: bool) -> list[Event]:
    """Returns the events that an import appends. captions: True includes the text that describes each shared image."""
    turns = locomo_turns(sample if captions else _without_captions(sample))
    return [event for event in events(turns, "default") if isinstance(event, Event)]


def load(path: Path, vectors: Vectors | None, captions: bool) -> list[Conversation]:
    """Returns the conversations with the questions that have evidence. vectors: None for keyword search."""
    return [_conversation(sample, vectors, captions) for sample in json.loads(path.read_text("utf-8"))]


def texts(path: Path, captions: Sequence[bool]) -> tuple[list[str], list[str]]:
    """Returns all texts to embed: passages and questions."""
    samples = json.loads(path.read_text("utf-8"))
    passages = [chunk.index_text for with_ in captions for sample in samples for chunk in _chunks(sample, with_)]
    return list(dict.fromkeys(passages)), [qa["question"] for sample in samples for qa in sample["qa"]]


def _conversation(sample: dict[str, Any], vectors: Vectors | None, captions: bool) -> Conversation:
    all_chunks = _chunks(sample, captions)
    known = {source for chunk in all_chunks for source in chunk.source_ids if source}
    asked = [(qa, read_evidence(qa["evidence"], known)) for qa in sample["qa"]]
    usable = [(qa, evidence) for qa, evidence in asked if evidence.turns]
    scope = index(all_chunks, vectors)
    return Conversation(
        name=sample["sample_id"],
        chunks=all_chunks,
        scope=scope,
        questions=[question(qa["question"], qa["category"], evidence.turns, scope, vectors) for qa, evidence in usable],
        repaired=sum(evidence.repaired for _, evidence in asked),
        unusable=sum(evidence.unusable for _, evidence in asked),
    )


def question(
    text: str, category: int, evidence: frozenset[str], scope: ScopeIndex, vectors: Vectors | None
) -> Question:
    """Returns the question as asked a day after the last turn."""
    now = datetime.fromtimestamp(float(scope.times.max()), UTC) + timedelta(days=1)
    read = read_question(text, now, names=scope.names)
    whole, *embedded = vectors.of([text, *(part.text for part in read.parts)], "query") if vectors else [None]
    parts = zip_longest(read.parts, embedded)
    queries = tuple(Query(part.text, vector, part.spans, read.words_of) for part, vector in parts)
    return Question(text, category, evidence, whole, queries)


def index(all_chunks: Sequence[Chunk], vectors: Vectors | None) -> ScopeIndex:
    return ScopeIndex.of_chunks(
        Chunks.of(
            texts=[chunk.text for chunk in all_chunks],
            terms=[chunk.terms for chunk in all_chunks],
            speakers=[chunk.speaker for chunk in all_chunks],
            times=[chunk.created_at for chunk in all_chunks],
            vectors=vectors.of([chunk.index_text for chunk in all_chunks], "passage") if vectors else None,
        ),
        threads=[chunk.thread for chunk in all_chunks],
    )


def _chunks(sample: dict[str, Any], captions: bool) -> list[Chunk]:
    numbered = enumerate(turn_events(sample, captions), 1)
    told = (Recorded(event=event, seq=seq, partition=0, stored_at=event.time) for seq, event in numbered)
    return fold(chunk for recorded in told for chunk in chunks(recorded))


def _without_captions(sample: dict[str, Any]) -> dict[str, Any]:
    plain = {
        name: [{k: v for k, v in turn.items() if k != "blip_caption"} for turn in value]
        if isinstance(value, list)
        else value
        for name, value in sample["conversation"].items()
    }
    return {**sample, "conversation": plain}
