"""Tests turnlog's own jsonl format; an exported transcript imports to equal turns."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

from helpers.nightly import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnlog.agent.operations.importers import Defaults, ImportedTurn, Repeated, export_jsonl, export_openai, read
from turnlog.agent.operations.importers.jsonl import read_jsonl
from turnlog.agent.operations.importing import ImportRequest, prepare_import
from turnlog.events.contracts import (
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TurnOrigin,
    TurnRecorded,
)
from turnlog.projectors.models.conversation.message import Cost, Message

TIME = datetime(2026, 5, 8, 13, 56, tzinfo=UTC)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
word = st.text("abc_1文", min_size=1, max_size=8)
json_value = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | text, st.lists, max_leaves=4)
texts = st.builds(TextBlock, text=text)
images = st.builds(ImageBlock, url=text, media_type=st.none() | text)
results = st.builds(
    ToolResultBlock,
    tool_use_id=word,
    content=text | st.lists(texts | images, max_size=3).map(tuple),
    is_error=st.booleans(),
)
blocks = (
    texts
    | images
    | results
    | st.builds(ThinkingBlock, thinking=text, signature=st.none() | text)
    | st.builds(ToolUseBlock, id=word, name=word, input=st.dictionaries(word, json_value, max_size=3))
)
maybe = st.none() | word
turn_data = st.builds(
    TurnRecorded,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=text | st.lists(blocks, max_size=4).map(tuple),
    name=maybe,
    tool_calls=st.lists(st.builds(ToolCall, id=word, name=word, arguments=text), max_size=2).map(tuple),
    tool_call_id=maybe,
    agent=maybe,
    model=maybe,
    tokens_in=st.none() | st.integers(0, 2**31),
    tokens_out=st.none() | st.integers(0, 2**31),
    latency_ms=st.none() | st.floats(0, 1e9),
    source_id=maybe,
    origin=st.sampled_from(get_args(TurnOrigin)),
)
stored_turns = st.builds(
    ImportedTurn,
    id=st.uuids(version=4),
    thread=st.just("t"),
    label=st.just("A label"),
    user=maybe,
    time=st.datetimes(
        datetime(1970, 1, 2), datetime(9998, 12, 31), timezones=st.sampled_from([UTC, timezone(timedelta(hours=8))])
    ),
    data=turn_data,
    is_dated=st.just(True),
)


def row(turn: ImportedTurn, seq: int) -> Message:
    """Returns the transcript row of a turn as the read model returns it."""
    plain = turn.data.model_dump(mode="json")
    plain["origin"] = turn.data.of(turn.user).origin
    kept = ("role", "content", "name", "tool_calls", "tool_call_id", "source_id", "agent", "model", "origin")
    return Message(seq=seq, event_id=turn.id, time=turn.time, user=turn.user, **{key: plain[key] for key in kept})


def cost(turn: ImportedTurn) -> Cost:
    return Cost(turn.data.tokens_in, turn.data.tokens_out, turn.data.latency_ms)


def lines(*objects: dict[str, Any]) -> list[bytes]:
    return [json.dumps(line).encode() for line in objects]


def one(line: dict[str, Any], defaults: Defaults | None = None) -> ImportedTurn:
    (item,) = read_jsonl(lines(line), defaults or Defaults(), "stem")
    assert isinstance(item, ImportedTurn), item
    return item


@given(st.lists(stored_turns, max_size=5))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=examples(60))
def test_an_exported_transcript_imports_to_equal_turns_with_their_event_ids(
    stored: list[ImportedTurn],
) -> None:
    rows = [row(turn, seq) for seq, turn in enumerate(stored, 1)]
    costs = {seq: cost(turn) for seq, turn in enumerate(stored, 1)}
    exported = export_jsonl(rows, tenant="default", thread="t", label="A label", costs=costs)
    assert list(read_jsonl([line.encode() for line in exported], Defaults(), "stem")) == stored


def test_an_export_imported_into_another_thread_or_tenant_gets_new_event_ids() -> None:
    turn = one({"thread": "t", "text": "hi"})
    (line,) = export_jsonl([row(turn, 1)], tenant="default", thread="t")
    assert one(json.loads(line)).id == turn.id
    assert one(json.loads(line), Defaults(thread="copy")).id != turn.id
    assert one(json.loads(line), Defaults(tenant="other")).id != turn.id


def test_the_lines_user_is_the_speaker_and_the_owner_unless_an_owner_is_named() -> None:
    turn = one({"thread": "t", "user": "ann", "text": "hi"})
    assert (turn.user, turn.data.name) == ("ann", "ann")
    turn = one({"thread": "t", "user": "ann", "text": "hi"}, Defaults(user="owner"))
    assert (turn.user, turn.data.name) == ("owner", "ann")
    turn = one({"thread": "t", "user": "ann", "role": "assistant", "text": "hi"})
    assert (turn.user, turn.data.name) == ("ann", None)
    turn = one({"thread": "t", "user": "ann", "name": "Ann Lee", "text": "hi"})
    assert (turn.user, turn.data.name) == ("ann", "Ann Lee")


def test_an_origin_that_depends_on_the_owner_is_decided_again_for_another_owner() -> None:
    line = {"thread": "t", "user": "ann", "text": "hi"}
    for name, origin, owner, decided in (
        ("ann", "person", "ann", "person"),
        ("ann", "person", "bob", "participant"),
        ("bob", "participant", "bob", "person"),
        ("bob", "quoted", "bob", "quoted"),
    ):
        turn = one({**line, "name": name, "origin": origin}, Defaults(user=owner))
        assert turn.data.of(turn.user).origin == decided


def test_a_line_without_thread_or_source_id_gets_the_files_name_and_its_line_number() -> None:
    items = list(read_jsonl([b"\n", *lines({"text": "hi"})], Defaults(), "stem"))
    assert isinstance(items[0], ImportedTurn)
    assert (items[0].thread, items[0].data.source_id, items[0].data.role) == ("stem", "L2", "user")
    assert one({"thread": 12, "text": "hi"}).thread == "12"


def test_a_turn_that_is_repeated_under_its_source_id_is_stored_once() -> None:
    said = {"thread": "t", "source_id": "m1", "text": "hello"}
    other_words, other_thread = {**said, "text": "bye"}, {**said, "thread": "u"}
    items = list(
        read_jsonl(lines(said, said, other_words, other_thread, {**said, "role": "assistant"}), Defaults(), "s")
    )
    assert [type(item) for item in items] == [ImportedTurn, Repeated, ImportedTurn, ImportedTurn, ImportedTurn]
    assert items[1] == Repeated("line 2", "m1")
    unnamed = {"thread": "t", "text": "ok"}
    assert all(isinstance(item, ImportedTurn) for item in read_jsonl(lines(unnamed, unnamed), Defaults(), "s"))


def test_times_may_be_iso_or_seconds_or_milliseconds_and_missing_ones_follow_the_turn_before() -> None:
    seconds = TIME.timestamp()
    written = [
        "2026-05-08T13:56:00Z",
        "2026-05-08T21:56:00+08:00",
        "2026-05-08 13:56",
        seconds,
        seconds * 1000,
    ]
    assert {one({"text": "hi", "time": time}).time for time in written} == {TIME}
    items = list(read_jsonl(lines({"text": "a", "time": written[0]}, {"text": "b"}), Defaults(), "s"))
    assert [item.time for item in items if isinstance(item, ImportedTurn)] == [
        TIME,
        TIME + timedelta(seconds=1),
    ]
    items = list(read_jsonl(lines({"text": "a"}, {"text": "b"}), Defaults(base_time=TIME), "s"))
    assert [item.time for item in items if isinstance(item, ImportedTurn)] == [
        TIME,
        TIME + timedelta(seconds=1),
    ]


def test_export_to_openai_gives_valid_messages_and_leaves_thinking_out(tmp_path: Path) -> None:
    data = [
        TurnRecorded(role="user", name="Lin Wei", content=(TextBlock(text="look"), ImageBlock(url="http://x/y"))),
        TurnRecorded(
            role="assistant",
            content=(ThinkingBlock(thinking="hm"), ToolUseBlock(id="c1", name="search", input={"q": "x"})),
        ),
        TurnRecorded(role="tool", content=(ToolResultBlock(tool_use_id="c1", content="found"),)),
        TurnRecorded(role="assistant", content="", tool_calls=(ToolCall(id="c2", name="search"),)),
        TurnRecorded(role="tool", content="more", tool_call_id="c2"),
        TurnRecorded(role="assistant", content="done"),
    ]
    stored = [ImportedTurn(UUID(int=n), "t", None, None, TIME, turn) for n, turn in enumerate(data)]
    exported = export_openai(row(turn, n) for n, turn in enumerate(stored))
    call = {"type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}, "id": "c1"}
    assert exported["messages"][:3] == [
        {
            "role": "user",
            "name": "Lin_Wei",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "http://x/y"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(exported))
    again = [item.data for item in read(path) if isinstance(item, ImportedTurn)]
    assert [turn.role for turn in again] == [turn.role for turn in data]
    assert again[3].tool_calls == data[3].tool_calls


def test_the_report_of_an_import_says_what_was_repeated_and_names_the_first_rejected_lines(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    said = json.dumps({"thread": "t", "source_id": "m1", "text": "hello"})
    file.write_text("\n".join([said, said, *["{"] * 300]))
    report = prepare_import(ImportRequest(file, None, Defaults())).report
    assert report.sentence().endswith("1 repeated under the same source_id, stored once; 300 rejected.")
    assert [rejected.where for rejected in report.rejected] == [f"line {n}" for n in range(3, 103)]
    assert (report.document()["repeated"], report.document()["rejected_count"]) == (1, 300)
