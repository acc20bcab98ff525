"""The read model `thread_activity` has one row per thread."""

from datetime import timedelta

from helpers.projection_spec import Spec, seq
from helpers.sample_events import MAY_8, event, turn

from turnlog.events.contracts import ParticipantSet, Recorded, ThreadDeleted, ThreadOpened, ThreadRenamed
from turnlog.projectors.engine.writer import Connection, perform
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY
from turnlog.projectors.models.conversation.thread_lookup import list_threads, numbered_labels


async def test_messages_are_counted_by_role(db: Connection) -> None:
    await (
        Spec(db, THREAD_ACTIVITY)
        .given(turn(role="system"), turn(), turn(role="assistant"), turn(role="tool"), turn(role="assistant"))
        .when(turn(thread="u"))
        .then(
            "SELECT thread_id, message_count, user_message_count, assistant_message_count, last_seq "
            "FROM thread_activity ORDER BY 1",
            [("t", 5, 1, 2, seq(5)), ("u", 1, 1, 0, seq(6))],
        )
    )


async def test_the_newest_label_counts_and_an_empty_one_removes_none(db: Connection) -> None:
    await (
        Spec(db, THREAD_ACTIVITY)
        .given(event(ThreadOpened(label="first")), event(ThreadOpened(label="other"), thread="u"), turn(thread="v"))
        .when(
            event(ThreadRenamed(label="second")),
            turn(),
            event(ThreadOpened(label=None)),
            event(ThreadRenamed(label="")),
        )
        .then("SELECT thread_id, label FROM thread_activity ORDER BY 1", [("t", "second"), ("u", "other"), ("v", None)])
    )


async def test_the_first_known_user_owns_the_thread(db: Connection) -> None:
    spec = Spec(db, THREAD_ACTIVITY).given(turn(), turn(user="ann"), turn(user="bob"))
    await spec.then("SELECT user_id FROM thread_activity", [("ann",)])


async def test_times_are_the_minimum_and_the_maximum_even_if_the_clock_jumps_back(db: Connection) -> None:
    spec = Spec(db, THREAD_ACTIVITY).given(turn(minutes=5), turn(minutes=-90), turn(minutes=1))
    await spec.then(
        "SELECT created_at, last_active_at, last_seq FROM thread_activity",
        [(MAY_8 - timedelta(minutes=90), MAY_8 + timedelta(minutes=5), seq(3))],
    )


async def test_a_deleted_thread_starts_from_nothing_when_it_goes_on(db: Connection) -> None:
    await (
        Spec(db, THREAD_ACTIVITY)
        .given(event(ThreadOpened(label="old")), turn(user="ann"), turn(), turn(thread="u"))
        .when(event(ThreadDeleted()), turn(user="bob"))
        .then(
            "SELECT thread_id, label, user_id, message_count FROM thread_activity ORDER BY 1",
            [("t", None, "bob", 1), ("u", None, None, 1)],
        )
    )


async def test_threads_are_listed_newest_first_within_tenant_and_user(db: Connection) -> None:
    await (
        Spec(db, THREAD_ACTIVITY)
        .given(turn(thread="old", user="ann"), turn(thread="new", user="ann", minutes=9), turn(thread="x", user="bob"))
        .when(turn(thread="secret", tenant="acme", user="ann"))
        .then("SELECT count(*) FROM thread_activity", [(4,)])
    )
    assert [row["thread_id"] for row in await list_threads(db, "default")] == ["new", "old", "x"]
    assert [row["thread_id"] for row in await list_threads(db, "default", user="ann", limit=1)] == ["new"]
    assert [row["thread_id"] for row in await list_threads(db, "acme")] == ["secret"]


async def test_conversations_of_a_user_are_listed_without_reading_those_of_others(db: Connection) -> None:
    others = [turn(thread=f"other {number}", user="bob") for number in range(1_000)]
    own = [turn(thread=f"own {number}", user="ann") for number in range(3)]
    batch = [Recorded(event, number, 0, MAY_8) for number, event in enumerate([*own, *others], 1)]
    await perform(db, THREAD_ACTIVITY.changes(batch))
    await db.execute("ANALYZE thread_activity")
    async with db.transaction():
        assert len(await list_threads(db, "default", "ann")) == 3
        assert await numbered_labels(db, "default", "ann") == 0
        rows = await db.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'thread_activity'"
        )
        assert await rows.fetchone() == (6,)


async def test_the_latest_role_of_a_participant_counts_and_leaves_the_thread_unchanged(db: Connection) -> None:
    bob = {"user": "bob", "minutes": 60}
    spec = (
        Spec(db, THREAD_ACTIVITY)
        .given(turn(user="ann"), event(ParticipantSet(name="Bob", role="reader"), user="bob"))
        .when(
            event(ParticipantSet(name="Bobby", role="member", agreed=True), **bob),
            event(ParticipantSet(name="Cy", role="reader", agreed=True), user="cy"),
            event(ParticipantSet(), user="cy"),
            event(ParticipantSet(name="nobody", role="reader", agreed=True)),
        )
    )
    await spec.then("SELECT user_id, name, role, agreed FROM thread_participants", [("bob", "Bobby", "member", True)])
    await spec.then("SELECT user_id, last_seq, last_active_at FROM thread_activity", [("ann", seq(1), MAY_8)])


async def test_an_erased_participant_no_longer_takes_part(db: Connection) -> None:
    events = (turn(user="ann"), event(ParticipantSet(name="Bob", role="reader", agreed=True), user="bob"))
    erased = event(ParticipantSet(name=None, role="reader", agreed=True), user="bob")
    await Spec(db, THREAD_ACTIVITY).given(*events).when(erased).then("SELECT user_id FROM thread_participants", [])
