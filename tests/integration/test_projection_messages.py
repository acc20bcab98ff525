"""The read model `messages` has the full transcript in the order of the log."""

import json
from uuid import UUID

from helpers.projection_spec import Spec, seq
from helpers.sample_events import BLOCKS, MAY_8, event, turn

from turnlog.events.contracts import Erased, Recorded, ThreadDeleted, ThreadOpened, ToolUseBlock, TurnRecorded
from turnlog.projectors.engine.writer import Connection, perform
from turnlog.projectors.models.conversation.message import message_by_event, thread_messages, threads_with
from turnlog.projectors.models.conversation.messages import MESSAGES, project
from turnlog.projectors.models.conversation.thread_activity import THREAD_ACTIVITY

CONTENTS = "SELECT thread_id, seq, role, content FROM messages ORDER BY tenant, thread_id, seq"


async def test_turns_are_in_log_order_each_once(db: Connection) -> None:
    await (
        Spec(db, MESSAGES)
        .given(turn("one"), turn("two", "assistant"), turn("other", thread="u"))
        .when(turn("three"), event(ThreadOpened()))
        .then(
            CONTENTS,
            [
                ("t", seq(1), "user", "one"),
                ("t", seq(2), "assistant", "two"),
                ("t", seq(4), "user", "three"),
                ("u", seq(3), "user", "other"),
            ],
        )
    )


async def test_a_clock_that_jumps_back_does_not_change_the_order(db: Connection) -> None:
    spec = Spec(db, MESSAGES).given(turn("first", minutes=60), turn("second", minutes=-60))
    await spec.then("SELECT content FROM messages ORDER BY seq", [("first",), ("second",)])
    assert [m.content for m in await thread_messages(db, "default", "t")] == ["first", "second"]


async def test_blocks_stay_whole_down_to_nulls_in_a_tool_call(db: Connection) -> None:
    call = ToolUseBlock(id="c", name="f", input={"nothing": None, "list": [None, 1.5, {"deep": []}]})
    made = turn([block.model_dump() for block in (*BLOCKS, call)], "assistant")
    await Spec(db, MESSAGES).given(made).then("SELECT jsonb_array_length(content) FROM messages", [(6,)])
    (message,) = await thread_messages(db, "default", "t")
    read_back = TurnRecorded.model_validate({"role": "assistant", "content": message.content})
    assert read_back.content == (*BLOCKS, call)


async def test_every_field_of_a_turn_has_its_column(db: Connection) -> None:
    calls = [{"id": "c", "name": "f", "arguments": "{}"}]
    made = turn(
        "answer", "assistant", id=UUID(int=5), user="ann", tenant="acme", name="Bob", tool_calls=calls, agent="ESSAY",
        model="gpt-4o", tokens_in=10, tokens_out=20, latency_ms=1.5, source_id="D1:3",
    )  # fmt: skip
    result = turn("8 May", "tool", tenant="acme", tool_call_id="c")
    spent = ("gpt-4o", 10, 20, 1.5)
    await (
        Spec(db, MESSAGES)
        .given(made, result)
        .then(
            "SELECT tenant, event_id, user_id, name, content, tool_calls, tool_call_id, agent, model, tokens_in, "
            "tokens_out, latency_ms, source_id, time FROM messages ORDER BY seq",
            [
                ("acme", UUID(int=5), "ann", "Bob", "answer", calls, None, "ESSAY", *spent, "D1:3", MAY_8),
                ("acme", result.id, None, None, "8 May", None, "c", None, None, None, None, None, None, MAY_8),
            ],
        )
    )  # fmt: skip


async def test_a_tool_result_without_its_call_is_stored_unchanged(db: Connection) -> None:
    spec = Spec(db, MESSAGES).given(turn("orphan", "tool", tool_call_id="nobody-called"), turn("next"))
    await spec.then(
        "SELECT content, tool_call_id FROM messages ORDER BY seq", [("orphan", "nobody-called"), ("next", None)]
    )


async def test_a_nul_in_a_text_reads_as_the_replacement_character(db: Connection) -> None:
    blocks = [{"type": "tool_use", "id": "c", "name": "f", "input": {"k\0": "v\0"}}]
    spec = Spec(db, MESSAGES).given(turn("a\0b", name="x\0y"), turn(blocks, "assistant"), turn("\\u0000 typed"))
    await spec.then(
        "SELECT content FROM messages WHERE seq IN (10, 30) ORDER BY seq", [("a\ufffdb",), ("\\u0000 typed",)]
    )
    assert "\ufffd" in json.dumps((await thread_messages(db, "default", "t"))[1].content, ensure_ascii=False)


async def test_a_deleted_thread_is_gone_and_later_turns_stay(db: Connection) -> None:
    await (
        Spec(db, MESSAGES)
        .given(turn("old"), turn("other", thread="u"), turn("namesake", tenant="acme"))
        .when(event(ThreadDeleted()), turn("new"), event(Erased(), thread="u"))
        .then("SELECT tenant, content FROM messages ORDER BY seq", [("acme", "namesake"), ("default", "new")])
    )


async def test_look_ups_bound_a_thread_on_both_sides_and_find_one_event(db: Connection) -> None:
    events = [turn(str(i)) for i in range(1, 6)]
    await Spec(db, MESSAGES).given(*events).then("SELECT count(*) FROM messages", [(5,)])
    messages = await thread_messages(db, "default", "t", after_seq=seq(1), through_seq=seq(4))
    assert [m.content for m in messages] == ["2", "3", "4"]
    message = await message_by_event(db, "default", "t", events[2].id)
    assert message is not None
    assert (message.seq, message.content, message.tool_calls) == (seq(3), "3", [])
    assert await message_by_event(db, "default", "u", events[2].id) is None


async def test_the_newest_event_of_a_long_thread_is_found_without_reading_the_others(db: Connection) -> None:
    events = [turn(f"words {number}") for number in range(1, 1_001)]
    await perform(db, project([Recorded(event, number, 0, MAY_8) for number, event in enumerate(events, 1)]))
    await db.execute("ANALYZE messages")
    async with db.transaction():
        message = await message_by_event(db, "default", "t", events[-1].id)
        rows = await db.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'messages'::regclass"
        )
        assert await rows.fetchone() == (1,)
    assert message is not None and message.content == "words 1000"


async def test_a_sent_conversation_is_recognised_by_the_first_turns_of_long_ones(db: Connection) -> None:
    events = [turn(f"words {number}", role="assistant", user="ann") for number in range(1, 1_001)]
    batch = [Recorded(event, number, 0, MAY_8) for number, event in enumerate(events, 1)]
    await perform(db, [*project(batch), *THREAD_ACTIVITY.changes(batch)])
    await db.execute("ANALYZE messages")
    async with db.transaction():
        assert await threads_with(db, "default", "ann", ["words 2"], [], 3, 8) == ["t"]
        assert await threads_with(db, "default", "ann", ["words 4"], [], 3, 8) == []
        rows = await db.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'messages'::regclass"
        )
        assert await rows.fetchone() == (6,)
