"""Words are struck wherever they stand, and nothing else is."""

from base64 import b64decode, b64encode
from typing import Any

from helpers.sample_events import event, turn

from turnlog.agent.privacy.redaction.striking import strike_of, struck
from turnlog.events.contracts import Blob, CheckpointSaved, Event, EventData, ToolCall, ToolUseBlock, TurnRecorded


def without(words: str, data: EventData) -> Any:
    """The event's data without words that a turn says."""
    found: Event | None = struck(event(data), strike_of(turn(f"I say {words}."), 5, words), 9)
    return None if found is None else found.data


def test_arguments_of_a_tool_stay_json_without_a_number() -> None:
    call = ToolCall(id="c", name="open", arguments='{"pin": 48213, "of": "ann"}')
    found = without("48213", TurnRecorded(role="assistant", tool_calls=(call,)))
    assert found.tool_calls[0].arguments == '{"pin": "[redacted]", "of": "ann"}'


def test_words_across_an_escaped_line_end_are_struck() -> None:
    call = ToolCall(id="c", name="find", arguments='{"name":"Ann\\nSmith"}')
    found = without("Ann Smith", TurnRecorded(role="assistant", tool_calls=(call,)))
    assert found.tool_calls[0].arguments == '{"name":"[redacted]"}'


def test_any_key_of_a_tools_input_is_searched_and_numbers_too() -> None:
    block = ToolUseBlock(id="48213", name="find", input={"id": "No. 48213", "of": {"thread": 48213}, "as": 48214})
    found = without("48213", TurnRecorded(role="assistant", content=(block,)))
    assert found.content[0].id == "48213"
    assert found.content[0].input == {"id": "No. [redacted]", "of": {"thread": "[redacted]"}, "as": 48214}


def test_short_words_are_struck_from_bytes_only_where_they_stand_alone() -> None:
    long = b"\xd9a" + b"ann" + b"." * 94  # the byte of its length is a letter
    raw = b"\x82\xa7channel\xa3Ann\xa1x" + long
    blob = Blob(channel="x", version="1", encoding="msgpack", data=b64encode(raw).decode())
    found = without("Ann", CheckpointSaved(checkpoint_id="1", checkpoint={}, metadata={}, blobs=(blob,)))
    assert b64decode(found.blobs[0].data) == raw.replace(b"\xa3Ann", b"\xa3***").replace(b"ann.", b"***.")
