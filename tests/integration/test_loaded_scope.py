"""The index of a scope is extended by new chunks and then equals an index that was just loaded."""

import asyncio
from dataclasses import fields, replace
from hashlib import sha256
from random import Random

import numpy as np
import pytest
from conftest import Settled
from helpers.nightly import examples
from helpers.sample_events import event, turn
from pgvector import HalfVector

from turnlog.agent.recall import Query, rank
from turnlog.agent.recall.loaded_scope import LoadedScope, load_scope
from turnlog.agent.recall.scope import Chunks, Postings, ScopeIndex
from turnlog.events.contracts import ChunksEmbedded, Erased, HistoryPruned, ThreadArchived, ThreadDeleted, ThreadForked
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import AT_ONCE, Scope, with_parents
from turnlog.projectors.models.terms import terms

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("running_projectors")]
MODEL, THREADS = "m", ("a", "b", "c", "d", "e")
ARCHIVED = ThreadArchived(path="a.jsonl", sha256="0" * 64, events=1, from_seq=1, through_seq=9)
SCOPES = (Scope("default", "a"), Scope("default", "fork"), Scope("default", user="ann"))
WORDS = ["boat", "harbour", "storm", "captain", "letter", "lamp", "island", "Ann", "assistant", "8", "May"]


@pytest.mark.parametrize("model", [None, MODEL])
@pytest.mark.parametrize("seed", range(max(examples(100) // 50, 2)))
async def test_an_extended_scope_equals_a_freshly_loaded_one(
    log: Log, db: Connection, settled: Settled, model: str | None, seed: int
) -> None:
    random, loaded, windowed = Random(seed), dict[Scope, LoadedScope | None](), dict[Scope, LoadedScope | None]()
    await log.append_many([said(random, "a") for _ in range(4)])
    await log.append(event(ThreadForked(parent="a", at_seq=3), "fork"))
    for _ in range(12):
        for _ in range(random.randrange(1, 4)):
            await happen(random, log, db)
        await settled()
        for named in SCOPES:
            scope = await with_parents(db, named)
            loaded[scope] = await load_scope(db, scope, model, loaded.get(scope))
            fresh = await load_scope(db, scope, model, None)
            alike(loaded[scope], fresh)
            before = max(await log.partition_head(0) - 4, 1)
            windowed[scope] = await load_scope(db, scope, model, windowed.get(scope), before)
            assert earlier(windowed[scope], before) == earlier(fresh, before)


async def happen(random: Random, log: Log, db: Connection) -> None:
    thread = random.choice([*THREADS, "fork"])
    match random.choices(["said", "embedded", "pruned", "removed"], [12, 5, 1, 1])[0]:
        case "said":
            await log.append(said(random, thread))
        case "embedded":
            await embed(random, log, db, thread)
        case "pruned":
            await log.append(event(HistoryPruned(through_seq=2, removed=1, remaining=1), thread))
        case "removed":
            await log.append(event(random.choice([ThreadDeleted(), Erased(), ARCHIVED]), thread))


def said(random: Random, thread: str):
    """Returns a turn; one in three repeats words that its thread may already contain."""
    words = random.sample(WORDS, 2) if random.random() < 0.3 else random.choices(WORDS, k=random.randrange(1, 9))
    role = random.choice(["user", "assistant"])
    return turn(f"{' '.join(words)}{random.choice('.?')}", role, thread, random.choice([0, 1, 90, 3000]), user="ann")


async def embed(random: Random | None, log: Log, db: Connection, thread: str) -> None:
    rows = await (
        await db.execute(
            "SELECT id, index_text FROM memory_vectors WHERE thread_id = %s AND embedding IS NULL ORDER BY id",
            (thread,),
        )
    ).fetchall()
    some = rows if random is None else random.sample(rows, random.randint(0, len(rows)))
    for number, (_, text) in enumerate(some):
        vector = HalfVector([(random or Random(number)).gauss(0, 1) for _ in range(8)]).to_text()
        values = (MODEL, sha256(text.encode()).digest(), vector)
        await db.execute("INSERT INTO embedding_cache VALUES (%s, %s, %s::halfvec) ON CONFLICT DO NOTHING", values)
    if some:
        ids = tuple(chunk_id for chunk_id, _ in some)
        await log.append(event(ChunksEmbedded(model=MODEL, dimensions=8, chunk_ids=ids), thread))


def alike(grown: LoadedScope | None, fresh: LoadedScope | None) -> None:
    assert grown is not None and fresh is not None
    assert (grown.keys, grown.chunks, grown.known(MODEL)) == (fresh.keys, fresh.chunks, fresh.known(MODEL))
    for field in fields(ScopeIndex):
        mine, other = getattr(grown.index, field.name), getattr(fresh.index, field.name)
        if isinstance(mine, Postings):
            for word in set(terms(" ".join(WORDS))):
                assert sorted(mine.with_term(word)) == sorted(other.with_term(word))
        elif field.name == "distance":
            assert all(map(np.array_equal, mine, other)) and len(mine) == len(other)
        elif field.name not in ("statistics", "speaker"):  # the vector space and its numbers may be older
            assert str(mine) == str(other) if mine is None or other is None else np.array_equal(mine, other)
    assert replace(grown.index.statistics, space=None) == replace(fresh.index.statistics, space=None)
    if (space := grown.index.statistics.space) is not None:
        assert space.fits(int(grown.index.embedded.sum()))
    same = replace(fresh.index, statistics=replace(fresh.index.statistics, space=space))
    query = Query("Which boat of Ann was in the storm?", np.arange(8) if space else None)
    assert rank(query, grown.index, 50) == rank(query, same, 50)


def earlier(loaded: LoadedScope | None, before: int) -> list[tuple[object, ...]]:
    """Returns the chunks before a sequence, as a search among earlier turns sees them."""
    assert loaded is not None and loaded.chunks is not None
    index, columns = loaded.index, ("lengths", "asks", "details", "assistant", "times", "embedded", "opens")
    return [
        (key, [seq for seq in chunk.seqs if seq < before], *(getattr(index, name)[number] for name in columns))
        for number, (key, chunk) in enumerate(zip(loaded.keys, loaded.chunks, strict=True))
        if key[1] < before
    ]


async def test_an_index_of_a_thread_is_reused_while_new_turns_are_in_the_window(
    log: Log, db: Connection, settled: Settled
) -> None:
    scope = Scope("default", "a")
    appended = await log.append_many([turn(f"boat {n}", minutes=n, thread="a", user="ann") for n in range(12)])
    await settled()
    window = appended[6].seq
    loaded = await load_scope(db, scope, MODEL, None)
    await log.append_many([turn("boat 12", thread="a"), turn("boat 2", thread="a")])
    await settled()
    assert await load_scope(db, scope, MODEL, loaded, window) is loaded
    assert await load_scope(db, scope, MODEL, loaded, appended[10].seq) is not loaded
    assert await load_scope(db, Scope("default", user="ann"), MODEL, loaded, window) is not loaded
    await embed(None, log, db, "a")
    await settled()
    embedded = await load_scope(db, scope, MODEL, loaded, window)
    assert embedded is not None and embedded.index.embedded.all()
    await log.append(event(ThreadDeleted(), "a"))
    await settled()
    left = await load_scope(db, scope, MODEL, embedded, window)
    assert left is not None and not left.keys


@pytest.mark.parametrize("scope", [Scope("default", "a"), Scope("default", user="ann")])
async def test_only_new_chunks_are_read_and_other_tasks_run_meanwhile(
    log: Log, db: Connection, settled: Settled, monkeypatch: pytest.MonkeyPatch, scope: Scope
) -> None:
    read, random = [0], Random(1)
    facts = Chunks.of

    def counting(**columns: object) -> Chunks:
        read.append(len(columns["texts"]))  # type: ignore[arg-type]
        return facts(**columns)  # type: ignore[arg-type]

    monkeypatch.setattr(Chunks, "of", counting)
    count = 2 * AT_ONCE + 50
    await log.append_many([turn(f"boat {n}", minutes=n, thread="a", user="ann") for n in range(count)])
    await settled()
    turns_of_others, loading = 0, asyncio.create_task(load_scope(db, scope, MODEL, None))
    while not loading.done():
        await asyncio.sleep(0)
        turns_of_others += 1
    loaded = await loading
    assert (sum(read), max(read)) == (count, AT_ONCE) and turns_of_others > count // AT_ONCE

    assert await load_scope(db, scope, MODEL, loaded) is loaded
    await log.append_many([turn("boat 3", minutes=3, thread="a", user="ann"), said(random, "a"), said(random, "b")])
    await embed(random, log, db, "a")
    await settled()
    new = 2 + (scope.user is not None)
    embedded = await (await db.execute("SELECT count(*) FROM memory_vectors WHERE embedding IS NOT NULL")).fetchone()
    assert embedded is not None
    read.clear()
    loaded = await load_scope(db, scope, MODEL, loaded)
    assert new <= sum(read) <= new + embedded[0]
    await log.append(event(ThreadDeleted(), "a"))
    await settled()
    left = await load_scope(db, scope, MODEL, loaded)
    assert left is not None and {key[0] for key in left.keys} == {"a", "b"}.difference("a", "b" if scope.thread else "")
