"""Recall on the database returns turns instead of chunks, only from the requested scope, and always current ones."""

from datetime import UTC, datetime

import pytest
from conftest import Settled
from helpers.sample_events import turn
from helpers.servers import rows

from turnlog.agent.recall.best_turns import Recalled
from turnlog.agent.recall.search import Recall
from turnlog.events.contracts import Event, ThreadDeleted
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope

pytestmark = pytest.mark.usefixtures("running_projectors")
T = Scope("default", "t")


async def search(
    db: Connection, query: str, k: int = 5, scope: Scope = T, before: int | None = None, now: datetime | None = None
) -> list[Recalled]:
    return await Recall(None).search(db, scope, query, k, before, now)


async def test_a_long_turn_of_many_pieces_is_found_once(log: Log, db: Connection, settled: Settled) -> None:
    long = turn(" ".join(f"The lighthouse keeper wrote letter {n} to his daughter." for n in range(200)))
    await log.append_many([long, turn("Nothing about it.", minutes=1)])
    await settled()
    [(pieces,)] = await (await db.execute("SELECT count(*) FROM memory_vectors WHERE seq = 1")).fetchall()
    assert pieces > 1
    assert [match.seq for match in await search(db, "lighthouse keeper letter")].count(1) == 1


async def test_japanese_and_both_kinds_of_chinese_characters_are_found(
    log: Log, db: Connection, settled: Settled
) -> None:
    said = ["東京都庁の近くで働いています", "她在電商公司工作", "我喜欢喝绿茶"]
    await log.append_many([turn(text, minutes=n) for n, text in enumerate(said)])
    await settled()
    for query, text in (("東京", said[0]), ("电商", said[1]), ("綠茶", said[2])):
        assert (await search(db, query, 1))[0].text == text
    assert await search(db, "京都", 1) == []


async def test_k_bounds_the_turns_and_the_best_comes_first(log: Log, db: Connection, settled: Settled) -> None:
    said = ["The cat sleeps.", "A cat and a dog play.", "Only the dog barks.", "It rains."]
    await log.append_many([turn(text, minutes=n) for n, text in enumerate(said)])
    await settled()
    turns = await search(db, "cat dog", 2)
    assert turns[0].text == "A cat and a dog play."
    assert len(turns) == 2
    assert turns[0].score >= turns[1].score
    assert await search(db, "cat dog", 0) == []


async def test_turns_of_the_named_day_come_first(log: Log, db: Connection, settled: Settled) -> None:
    days = 24 * 60
    for number in range(6):
        await log.append(turn("We watered the plants.", minutes=number * days, thread=f"day-{number}", user="ann"))
    await settled()
    ann, now = Scope("default", None, "ann"), datetime(2023, 5, 12, 9, tzinfo=UTC)
    [first, *_] = await search(db, "Did we water the plants yesterday?", scope=ann, now=now)
    assert first.thread == "day-3"
    assert first.parts["time"] > 0


async def test_each_part_of_a_question_has_its_share_of_the_turns(log: Log, db: Connection, settled: Settled) -> None:
    flats = [f"My flat is in street {n}, the flat with a balcony." for n in range(6)]
    said = [*flats, "The landlord is Mr Chen."]
    await log.append_many([turn(text, minutes=n) for n, text in enumerate(said)])
    await settled()
    turns = await search(db, "In which street is my flat with the balcony? Also, who is the landlord?", 4)
    assert turns[1].text == "The landlord is Mr Chen."
    assert [turn.asked for turn in turns[:3]] == [1, 2, 1]
    assert len({turn.seq for turn in turns}) == 4


async def test_a_month_in_a_speakers_name_is_not_a_time(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many([turn("I called the plumber.", name="April"), turn("I called the plumber too.", minutes=1)])
    await settled()
    recall, now = Recall(None), datetime(2023, 6, 1, tzinfo=UTC)
    for asked, dates in (("Who called the plumber after April?", 0), ("Who called the plumber after March?", 1)):
        await recall.search(db, T, asked, 2, now=now)
        assert recall.question is not None
        assert len(recall.question.parts[0].dates) == dates


async def test_a_sentence_said_twice_names_both_turns(log: Log, db: Connection, settled: Settled) -> None:
    first, second = turn("I run every day.", source_id="a"), turn("I run every day.", source_id="b", minutes=1)
    await log.append_many([first, turn("Really?", "assistant", minutes=1), second])
    await settled()
    turns = await search(db, "run every day", 3)
    assert [turn.source_id for turn in turns][:2] == ["a", "b"]
    assert [turn.event_id for turn in turns][:2] == [first.id, second.id]


async def test_turns_in_the_window_are_left_out(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many([turn(f"The boat number {n} sails.", minutes=n) for n in range(6)])
    await settled()
    assert {turn.seq for turn in await search(db, "boat sails", 10, before=4)} == {1, 2, 3}
    assert await search(db, "boat sails", 10, before=1) == []


async def test_a_scope_holds_one_thread_or_all_of_a_user_and_never_another_tenant(
    log: Log, db: Connection, settled: Settled
) -> None:
    await log.append_many(
        [
            turn("The key is under the mat.", user="ann"),
            turn("The key is at Bo's.", thread="other", user="ann"),
            turn("The key is lost.", thread="third", user="bo"),
            turn("The key is secret.", tenant="acme", user="ann"),
        ]
    )
    await settled()
    assert {turn.thread for turn in await search(db, "key")} == {"t"}
    assert {turn.thread for turn in await search(db, "key", scope=Scope("default", user="ann"))} == {"t", "other"}
    assert await search(db, "key", scope=Scope("default", "nowhere")) == []


async def test_turns_appended_after_a_search_are_found_by_the_next(log: Log, db: Connection, settled: Settled) -> None:
    recall = Recall(None)
    await log.append(turn("The parrot is green."))
    await settled()
    assert len(await recall.search(db, T, "parrot", 5)) == 1
    await log.append(turn("The parrot is loud, too.", minutes=1))
    await settled()
    assert len(await recall.search(db, T, "parrot", 5)) == 2


async def test_chinese_and_english_are_found_by_their_words(log: Log, db: Connection, settled: Settled) -> None:
    await log.append_many([turn("我们讨论了数据库设计。"), turn("We talked about the weather.", minutes=1)])
    await settled()
    assert (await search(db, "数据库怎么设计的？", 1))[0].seq == 1
    assert (await search(db, "what about weather", 1))[0].seq == 2


async def test_turns_of_one_topic_are_found_by_their_index_among_many_others(db: Connection) -> None:
    await db.execute(
        "INSERT INTO memory_vectors (tenant, thread_id, id, user_id, seq, seqs, event_ids, source_ids, piece, role, "
        "speaker, chunk, index_text, terms, topics, created_at) SELECT 'default', 't', n::text, 'ann', n, ARRAY[n], "
        "ARRAY[gen_random_uuid()], '{NULL}', 0, 'user', 'user', 'boat ' || n, 'boat ' || n, '{boat}', "
        "CASE WHEN n % 1000 = 0 THEN '{essay}'::text[] ELSE ARRAY['other ' || n % 50] END, now() "
        "FROM generate_series(1, 20000) n"
    )
    await db.execute("ANALYZE memory_vectors")
    essay, of_ann = Scope("default", "t", topic="Essay"), Scope("default", user="ann", topic="essay")
    for scope in (essay, of_ann):
        plan = await db.execute(f"EXPLAIN {scope.searched.rows('v.id')}".encode(), scope.params)
        assert "memory_vectors_topics" in str(await plan.fetchall())
        assert {turn.seq % 1000 for turn in await search(db, "boat", 50, scope)} == {0}
    assert len(await search(db, "boat", 50, essay)) == 20


async def test_an_unchanged_scope_reads_its_chunks_once_to_count_them(
    log: Log, db: Connection, settled: Settled
) -> None:
    await log.append_many([turn(f"The boat number {n} sails.", minutes=n) for n in range(12)])
    await settled()
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'memory_vectors'"
    kept = Recall(None)
    async with db.transaction():
        await kept.search(db, T, "boat sails", 5)
        [[before]] = await rows(db, read)
        assert len(await kept.search(db, T, "boat sails", 5)) == 5
        assert await rows(db, read) == [(before + 12,)]


@pytest.mark.parametrize("change", ["deleted", "written again"])
async def test_a_search_before_a_sequence_sees_changes_of_earlier_turns(
    log: Log, db: Connection, settled: Settled, change: str
) -> None:
    said = [f"The boat number {n} sails." for n in range(12)]
    await log.append_many([turn(text, minutes=n) for n, text in enumerate(said)])
    await settled()
    kept = Recall(None)
    assert len(await kept.search(db, T, "boat sails", 20, 9)) == 8
    await log.append(turn("").model_copy(update={"data": ThreadDeleted()}))
    if change == "written again":
        await log.append_many([turn(text, minutes=n) for n, text in enumerate(said, 30)])
    await settled()
    turns = await kept.search(db, T, "boat sails", 20, 9)
    assert [turn.seq for turn in turns] == [turn.seq for turn in await search(db, "boat sails", 20, before=9)]
    assert not turns


async def test_a_search_before_a_sequence_does_not_find_later_repetitions(
    log: Log, db: Connection, settled: Settled
) -> None:
    said = [f"The boat number {n} sails." for n in range(12)]
    await log.append_many([turn(text, minutes=n) for n, text in enumerate(said)])
    await settled()
    kept = Recall(None)
    first = await kept.search(db, T, "boat sails", 20, 9)
    await log.append(turn(said[0], minutes=20))
    await settled()
    assert await kept.search(db, T, "boat sails", 20, 9) == first == await search(db, "boat sails", 20, before=9)
    assert {turn.seq for turn in first} == set(range(1, 9))


async def test_turns_of_an_excluded_thread_are_not_found_but_those_of_others(
    log: Log, db: Connection, settled: Settled
) -> None:
    ann, recall = Scope("default", None, "ann"), Recall(None)

    async def say(text: str, thread: str, minutes: int) -> None:
        await log.append(turn(text, minutes=minutes, thread=thread, user="ann"))
        await settled()

    async def search_without_new() -> list[Recalled]:
        return await recall.search(db, ann, "Which boat is moored?", 9, without={"new"})

    for number in range(4):
        await say(f"The boat number {number} is moored.", f"old{number}", number)
    first = await search_without_new()
    await say("Which boat is moored?", "new", 10)
    assert {turn.thread for turn in await search_without_new()} == {turn.thread for turn in first}

    await say("A red boat is moored too.", "old2", 12)
    await say("One more boat is moored.", "other", 13)
    again = await search_without_new()
    assert {turn.text for turn in again} == {turn.text for turn in first} | {
        "A red boat is moored too.",
        "One more boat is moored.",
    }
    await log.append(Event(tenant="default", thread="old3", user="ann", data=ThreadDeleted()))
    await settled()
    assert await search_without_new() == await Recall(None).search(db, ann, "Which boat is moored?", 9, without={"new"})
    assert "old3" not in {turn.thread for turn in await search_without_new()}
