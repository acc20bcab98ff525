"""Look-ups of memories on real rows, and values that represent rows before they are stored."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import numpy as np
from helpers.nightly import examples
from helpers.projection_spec import stored
from helpers.random_events import INTERVALS, MANY_IDS, MEMORIES_SAID, MEMORY_IDS, SHARES, SOURCES
from helpers.sample_events import GPA, MAY_8, SOURCE, event
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnlog.agent.memory.deciding.memory_state import MemoryState
from turnlog.agent.memory.deciding.writing import Place
from turnlog.agent.memory.memories import last_said
from turnlog.events.contracts import (
    EndReason,
    EventData,
    Interval,
    MemoriesCompacted,
    MemoriesRevised,
    Memory,
    MemoryCompared,
    MemoryConfirmed,
    MemoryConflictAnswered,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRecorded,
)
from turnlog.events.stored import recorded
from turnlog.projectors.engine.writer import Connection, perform
from turnlog.projectors.models.memories.history_lookup import family, history
from turnlog.projectors.models.memories.lookup import (
    SAME_KEY_UP_TO,
    conflicts,
    memories_as_of,
    memories_by_id,
    memories_with_keys,
    valid_memories,
)
from turnlog.projectors.models.memories.projection import MEMORIES, NEIGHBOUR_INDEXES
from turnlog.projectors.models.memories.sql import LAST_EXPIRY, MAX_SOURCES
from turnlog.projectors.models.memories.tables import memories
from turnlog.projectors.models.memories.text import content_key
from turnlog.projectors.models.memories.vectors import cached_vectors, nearest
from turnlog.projectors.models.neighbours import ensure_neighbour_index

ANN = Place("default", "ann")
HERE = (ANN.tenant, ANN.thread)
FAR = MAY_8 + timedelta(days=999)


async def apply(db: Connection, *data: EventData) -> None:
    events = [recorded(stored(event(change, ANN.thread, user="ann"), seq)) for seq, change in enumerate(data, 1)]
    async with db.transaction():
        await perform(db, MEMORIES.changes(events))


def memory(number: int, content: str = "", **fields: object) -> Memory:
    return GPA.model_copy(
        update={"id": UUID(int=number), "content": content or f"{number}", "expires_at": None, **fields}
    )


def said(number: int, content: str = "", **fields: object) -> MemoryRecorded:
    return MemoryRecorded(memory=memory(number, content, **fields))


def ended(number: int, by: int, reason: EndReason) -> Interval:
    return Interval(memory_id=UUID(int=number), valid_to=MAY_8, replaced_by=UUID(int=by), reason=reason)


DECISIONS = st.one_of(
    st.builds(MemoryRecorded, memory=MEMORIES_SAID, intervals=INTERVALS),
    st.builds(
        MemoryConfirmed,
        memory_id=MEMORY_IDS,
        source=SOURCES,
        importance=SHARES,
        confidence=SHARES,
        intervals=INTERVALS,
    ),
    st.builds(
        MemoryConflictRaised, conflict_id=MEMORY_IDS, memory=MEMORIES_SAID, against=MANY_IDS, question=st.just("?")
    ),
    st.builds(MemoryConflictAnswered, conflict_id=MEMORY_IDS, answer=st.just("new"), intervals=INTERVALS),
    st.builds(MemoriesRevised, intervals=INTERVALS),
    st.builds(MemoryCompared, memory_id=MEMORY_IDS, intervals=INTERVALS),
    st.builds(
        MemoriesCompacted,
        method=st.just("merge"),
        members=MANY_IDS,
        memory=st.none() | MEMORIES_SAID,
        intervals=INTERVALS,
    ),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DECISIONS, min_size=1, max_size=12))
async def test_values_of_unprojected_events_equal_their_later_rows(db: Connection, data: list[EventData]) -> None:
    await db.execute("TRUNCATE memories, memory_conflicts, memory_compactions")
    await apply(db, *data)
    known = MemoryState(ANN, [], MAY_8)
    known.apply(data)
    rows = await memories_by_id(db, *HERE, [UUID(int=n) for n in range(1, 5)])
    assert known.rows == {id_: replace(row, seq=known.rows[id_].seq) for id_, row in rows.items()}


async def test_a_repetition_gives_no_time_to_live_and_extends_one_up_to_the_last_that_can_be_stored(
    db: Connection,
) -> None:
    soon, late = LAST_EXPIRY - timedelta(days=1), LAST_EXPIRY + timedelta(hours=1)
    source = SOURCE.model_copy(update={"said_at": FAR})
    again = [MemoryConfirmed(memory_id=UUID(int=n), source=source, importance=1, confidence=1) for n in range(1, 5)]
    expiries = (None, MAY_8, soon, late)
    data = [*(said(n, expires_at=at) for n, at in enumerate(expiries, 1)), *again]
    await apply(db, *data)
    known = MemoryState(ANN, [], MAY_8)
    known.apply(data)
    rows = await memories_by_id(db, *HERE, [UUID(int=n) for n in range(1, 5)])
    expected = [None, MAY_8 + (FAR - MAY_8), LAST_EXPIRY, LAST_EXPIRY]
    assert [rows[UUID(int=n)].expires_at for n in range(1, 5)] == expected
    assert [known.rows[UUID(int=n)].expires_at for n in range(1, 5)] == expected


async def test_rivals_are_found_by_key_words_or_id_in_any_status(db: Connection) -> None:
    await apply(
        db,
        said(1, "GPA is 3.6"),
        said(2, "I like tea", dedupe_key=None),
        said(3, "i like  tea", dedupe_key="drink"),
        said(4, "other", dedupe_key=None),
        MemoriesRevised(intervals=(ended(1, 2, "superseded"),)),
        MemoryForgotten(memory_id=UUID(int=2)),
    )
    key = content_key("FACT", "I LIKE TEA")
    assert [memory.id.int for memory in await memories_with_keys(db, *HERE, ["gpa"], [])] == [1]
    assert [memory.id.int for memory in await memories_with_keys(db, *HERE, ["gpa", "none"], [key], [UUID(int=3)])] == [
        1,
        2,
        3,
    ]
    assert await memories_with_keys(db, "acme", ANN.thread, ["gpa"], [key], [UUID(int=3)]) == []


async def test_a_memory_that_is_said_every_day_keeps_its_first_sources_up_to_a_bound(db: Connection) -> None:
    said_again = [
        MemoryConfirmed(
            memory_id=UUID(int=1), source=SOURCE.model_copy(update={"seq": seq}), importance=0.5, confidence=0.5
        )
        for seq in range(1_000, 1_000 + MAX_SOURCES)
    ]
    await apply(db, MemoryRecorded(memory=memory(1, sources=(SOURCE,))), *said_again)
    row = (await memories_by_id(db, *HERE, [UUID(int=1)]))[UUID(int=1)]
    assert (len(row.sources), row.sources[0], row.sources[-1]) == (MAX_SOURCES, SOURCE, said_again[-2].source)


async def test_a_valid_memory_is_found_by_key_however_many_ended_after_it(db: Connection) -> None:
    first = memory(1, "salary 9000", value="9000", strategy="KEEP_HIGHEST")
    others = [
        MemoryRecorded(
            memory=memory(n, f"salary {n}"),
            intervals=(Interval(memory_id=UUID(int=n), valid_to=MAY_8, reason="rejected"),),
        )
        for n in range(2, SAME_KEY_UP_TO + 3)
    ]
    await apply(db, MemoryRecorded(memory=first), *others)
    matches = await memories_with_keys(db, *HERE, ["gpa"], [])
    assert len(matches) == SAME_KEY_UP_TO + 1
    assert [memory.id.int for memory in matches if memory.status == "valid"] == [1]


async def test_a_history_is_the_whole_chain_and_a_family_all_equivalent_memories(db: Connection) -> None:
    links: list[tuple[int, int, EndReason]] = [(1, 2, "superseded"), (2, 4, "edited"), (3, 4, "merged")]
    await apply(
        db,
        *(said(n) for n in range(1, 6)),
        MemoriesRevised(intervals=tuple(ended(*link) for link in links)),
    )
    for number in (1, 3, 4):
        assert [memory.id.int for memory in await history(db, *HERE, UUID(int=number))] == [1, 2, 3, 4]
    assert [memory.id.int for memory in await family(db, *HERE, UUID(int=4))] == [2, 3, 4]
    assert [memory.id.int for memory in await family(db, *HERE, UUID(int=1))] == [1]
    assert await history(db, *HERE, UUID(int=404)) == []


async def test_valid_memories_can_be_read_by_kind_and_in_pages(db: Connection) -> None:
    later = GPA.sources[0].model_copy(update={"said_at": MAY_8 + timedelta(days=1)})
    await apply(db, said(1, kind="PREFERENCE"), said(2, sources=(later,)), said(3, valid_from=FAR))
    now = MAY_8 + timedelta(days=2)
    assert [memory.id.int for memory in await valid_memories(db, *HERE, now)] == [2, 1]
    assert [memory.id.int for memory in await valid_memories(db, *HERE, now, ["PREFERENCE"])] == [1]
    [first] = await valid_memories(db, *HERE, now, limit=1)
    behind = last_said([first])
    assert [memory.id.int for memory in await valid_memories(db, *HERE, now, limit=1, after=behind)] == [1]
    assert [memory.id.int for memory in await memories_as_of(db, *HERE, FAR)] == [2, 3, 1]


async def test_pending_rejected_and_forgotten_memories_were_never_valid(db: Connection) -> None:
    raised = MemoryConflictRaised(conflict_id=UUID(int=9), memory=memory(4), against=(UUID(int=1),), question="?")
    await apply(db, said(1), said(2), said(3), raised, MemoryForgotten(memory_id=UUID(int=2)))
    await apply(db, MemoriesRevised(intervals=(ended(3, 1, "rejected"),)))
    assert [memory.id.int for memory in await memories_as_of(db, *HERE, MAY_8)] == [1]
    assert [conflict.conflict_id.int for conflict in await conflicts(db, *HERE)] == [9]


async def test_the_nearest_memories_are_valid_and_of_one_kind_and_user(db: Connection) -> None:
    await db.execute(
        "INSERT INTO embedding_cache (model, text_hash, embedding) SELECT 'm', sha256(n::text::bytea), "
        "format('[1,0,%s]', n / 10.0)::halfvec FROM generate_series(1, 6) n"
    )
    await apply(
        db,
        *(said(n) for n in range(1, 6)),
        said(6, kind="DECISION"),
        MemoriesRevised(intervals=(ended(2, 1, "superseded"),)),
    )
    ids = [UUID(int=n) for n in range(1, 7)]
    vectors = await cached_vectors(db, *HERE, [*ids, UUID(int=404)], "m")
    assert sorted(id_.int for id_ in vectors) == [1, 2, 3, 4, 5, 6]
    assert np.allclose(vectors[ids[0]], [1, 0, 0.1], atol=1e-3)
    await db.execute(
        "UPDATE memories m SET embedding = c.embedding, embedding_model = 'm' FROM embedding_cache c "
        "WHERE c.text_hash = sha256(m.content::bytea) AND m.content <> '5'"
    )
    await ensure_neighbour_index(db, memories, "m", 3)
    await ensure_neighbour_index(db, memories, "m", 3)
    neighbours = await nearest(db, *HERE, ["FACT"], vectors[ids[0]], "m")
    assert [memory.id.int for memory, _ in neighbours] == [1, 3, 4]
    assert [cosine for _, cosine in neighbours] == sorted((cosine for _, cosine in neighbours), reverse=True)
    assert await nearest(db, "default", "memories/bob", ["FACT"], vectors[ids[0]], "m") == []


async def test_an_index_that_was_made_early_is_the_one_that_a_rebuild_makes(db: Connection) -> None:
    await ensure_neighbour_index(db, memories, "m", 3)
    await apply(db, said(1))
    await db.execute("UPDATE memories SET embedding = '[1,2,3]', embedding_model = 'm'")
    await db.execute(NEIGHBOUR_INDEXES.encode())
    rows = await db.execute("SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'memories_hnsw_%'")
    assert await rows.fetchone() == (1,)
