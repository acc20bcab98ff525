"""The read model `memory_topics` has the topics of each thread with the sum of their mentions."""

from datetime import timedelta

from helpers.projection_spec import Spec
from helpers.sample_events import MAY_8, derivation, event

from turnlog.events.contracts import Event, ThreadDeleted, TopicsTagged
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.topics import TOPICS, tagged_through

ROWS = "SELECT thread_id, topic, mention_count FROM memory_topics ORDER BY 1, 3 DESC, 2"


def tagged(topics: dict[str, int], through: int = 40, thread: str = "t", minutes: int = 0) -> Event:
    return event(TopicsTagged(topics=topics, derivation=derivation(1, through)), thread, minutes)


async def test_mentions_add_up(db: Connection) -> None:
    await (
        Spec(db, TOPICS)
        .given(tagged({"essay": 2, "申请": 1}), tagged({"essay": 5}, thread="u"))
        .when(tagged({"essay": 3, "school": 1}))
        .then(ROWS, [("t", "essay", 5), ("t", "school", 1), ("t", "申请", 1), ("u", "essay", 5)])
    )


async def test_last_seen_and_tagged_through_only_grow(db: Connection) -> None:
    spec = Spec(db, TOPICS).given(tagged({"a": 1}, 40, minutes=5), tagged({"a": 1}, 20, minutes=-5))
    await spec.then("SELECT last_seen_at FROM memory_topics", [(MAY_8 + timedelta(minutes=5),)])
    assert await tagged_through(db, "default", "t") == 40


async def test_a_span_without_topics_is_recorded_as_tagged(db: Connection) -> None:
    await Spec(db, TOPICS).given(tagged({}, 40)).then(ROWS, [])
    assert await tagged_through(db, "default", "t") == 40
    assert await tagged_through(db, "default", "u") == 0


async def test_a_deleted_thread_counts_from_zero_again(db: Connection) -> None:
    spec = Spec(db, TOPICS).given(tagged({"a": 3, "b": 1}), event(ThreadDeleted())).when(tagged({"a": 1}, 50))
    await spec.then(ROWS, [("t", "a", 1)])
