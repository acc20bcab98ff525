"""Recall in a large scope, by samples and indexes, returns the same results as ranking every chunk."""

import asyncio
from datetime import timedelta

import pytest
from conftest import Settled
from helpers.sample_events import turn

from turnlog.agent.recall import Query, rank
from turnlog.agent.recall.large import candidate_chunks, sample_scope
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import Event, ThreadDeleted
from turnlog.events.log import Log
from turnlog.projectors.engine.database import connect
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.candidates import around, by_terms, probe
from turnlog.projectors.models.chunks.lookup import Scope

pytestmark = pytest.mark.usefixtures("running_projectors")
T = Scope("default", "t")
PETS = ("llama", "parrot", "tortoise", "hamster", "ferret")


def chat(count: int = 120) -> list[Event]:
    said = [f"Day {n}: nothing much happened at home." for n in range(count)]
    for number, pet in enumerate(PETS[: (count + 13) // 20]):
        said[20 * number + 5] = f"Where does your {pet} sleep?"
        said[20 * number + 6] = f"In the old shed, in box {number}."
    return [turn(text, minutes=n) for n, text in enumerate(said)]


async def likely(db: Connection, scope: Scope, query: str, k: int = 5) -> list[tuple[int, float]]:
    keys, index = await candidate_chunks(db, scope, [Query(query)], None, await sample_scope(db, scope, None, None))
    return [(keys[scored.chunk][1], round(scored.score, 4)) for scored in rank(Query(query), index, k)]


async def whole(db: Connection, scope: Scope, query: str, k: int = 5) -> list[tuple[int, float]]:
    return [(turn.seq, round(turn.score, 4)) for turn in await Recall(None).search(db, scope, query, k)]


async def test_candidates_rank_as_the_whole_scope_does(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many(chat())
    await settled()
    for pet in PETS:
        scored = await likely(db, T, f"the place where the {pet} sleeps", 2)
        assert scored == await whole(db, T, f"the place where the {pet} sleeps", 2)
        assert [seq % 20 for seq, _ in sorted(scored)] == [6, 7]


async def test_a_common_word_alone_still_finds_turns_that_say_it(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many(chat())
    await settled()
    assert len(await likely(db, T, "what happened at home", 5)) == 5
    assert await likely(db, T, "zebra") == []


async def test_neighbours_come_with_a_hit_and_end_at_the_thread(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many([*chat(8), turn("elsewhere", thread="other")])
    await settled()
    [(first, _), *_] = await by_terms(db, T, [(["llama"], 10)])
    part = await around(db, T, [first], None)
    assert [key[1] for key in part.keys] == [3, 4, 5, 6, 7, 8]
    assert part.places([first]) == [1, 2, 3, 4, 5, 6]
    assert {key[0] for key in part.keys} == {"t"}


async def test_turns_between_two_neighbourhoods_are_known_to_be_missing(
    log: Log, db: Connection, settled: Settled
) -> None:
    await log.append_many(chat())
    await settled()
    hits = sorted(key for key, _ in await by_terms(db, T, [(["llama"], 10), (["parrot"], 10)]))
    part = await around(db, T, hits, None)
    gaps = [after - before for before, after in zip(part.places(hits), part.places(hits)[1:], strict=False)]
    assert sorted(gaps) == [1] * 12 + [6]


async def test_a_sample_is_taken_again_when_the_scope_has_grown(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many(chat(60))
    await settled()
    before = await sample_scope(db, T, None, None)
    assert await sample_scope(db, T, None, before) is before
    assert before.chunks == 60 and before.statistics.frequency["llama"] == 1
    await log.append_many([turn(f"the llama number {n}", thread="t", minutes=200 + n) for n in range(2_000)])
    await settled()
    after = await sample_scope(db, T, None, before)
    assert 1_800 <= after.chunks <= 2_300 and after.statistics.frequency["llama"] > 1_000


async def test_a_scope_of_a_user_never_reads_what_another_said(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many(
        [
            turn("The llama of Ann.", user="ann"),
            turn("The llama of Bo.", user="bo", thread="bo's"),
            turn("The llama of nobody known.", tenant="acme", user="ann"),
        ]
    )
    await settled()
    ann = Scope("default", None, "ann")
    assert [seq for seq, _ in await likely(db, ann, "llama")] == [seq for seq, _ in await whole(db, ann, "llama")]
    assert (await probe(db, Scope("default", None, "cid"), None)).chunks == 0


async def test_a_large_scope_answers_through_the_same_search(
    log: Log, db: Connection, database_url: str, settled: Settled
) -> None:
    many = [*chat(), *(turn(f"filler {n} of the rest", minutes=300 + n) for n in range(2_000))]
    await log.append_many(many)
    await settled()
    recall = Recall(None)
    turns = await recall.search(db, T, "where does the parrot sleep", 2)
    assert sorted(turn.seq for turn in turns) == [26, 27]
    assert turns[0].time - turns[1].time in (timedelta(minutes=1), timedelta(minutes=-1))
    assert sum(turns[0].parts.values()) == pytest.approx(turns[0].score, abs=1e-4)
    assert {turn.seq for turn in await recall.search(db, T, "where does the parrot sleep", 2, before_seq=27)} >= {26}
    await log.append(turn("My parrot sleeps in the kitchen now.", minutes=9_000))
    await settled()
    assert 2_121 in [turn.seq for turn in await recall.search(db, T, "where does the parrot sleep", 3)]
    await log.append(Event(time=turns[0].time, thread="t", data=ThreadDeleted()))
    await settled()
    async with await connect(database_url) as other:
        asked = [recall.search(conn, T, "where does the parrot sleep", 3) for conn in (db, other)]
        assert await asyncio.gather(*asked) == [[], []]
