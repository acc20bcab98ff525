"""The read model `conversation_summaries` has one rolling summary per thread."""

from helpers.projection_spec import Spec, seq
from helpers.sample_events import DERIVED, MAY_8, event

from turnlog.events.contracts import Erased, Event, SummaryWritten
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.summaries import SUMMARIES, Summary, thread_summary


def summary(text: str, covered: int, thread: str = "t") -> Event:
    data = SummaryWritten(summary=text, message_count=covered, covered_seq=covered, derivation=DERIVED)
    return event(data, thread)


async def test_a_new_summary_replaces_the_old_one(db: Connection) -> None:
    await (
        Spec(db, SUMMARIES)
        .given(summary("first", 30), summary("other", 30, "u"))
        .when(summary("second", 40))
        .then(
            "SELECT thread_id, summary, message_count, covered_seq, seq FROM conversation_summaries ORDER BY 1",
            [("t", "second", 40, 40, seq(3)), ("u", "other", 30, 30, seq(2))],
        )
    )
    assert await thread_summary(db, "default", "t") == Summary("second", 40, 40, seq(3), "gpt-4o-mini", MAY_8)
    assert await thread_summary(db, "acme", "t") is None


async def test_an_erased_thread_has_no_summary_until_a_new_one_is_written(db: Connection) -> None:
    spec = Spec(db, SUMMARIES).given(summary("secret", 30), summary("other", 30, "u")).when(event(Erased()))
    await spec.then("SELECT thread_id FROM conversation_summaries", [("u",)])
    await spec.when(summary("new", 3)).then(
        "SELECT summary FROM conversation_summaries ORDER BY 1", [("new",), ("other",)]
    )
