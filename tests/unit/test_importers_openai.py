"""Tests imports of messages in the formats of OpenAI and Anthropic."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from turnlog.agent.operations.importers import Defaults, ImportedTurn, Item, Rejected, read
from turnlog.events.contracts import (
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TurnRecorded,
)
from turnlog.events.contracts.base import UNDATED_FROM

HI = {"role": "user", "content": "hi"}
YO = {"role": "assistant", "content": "yo"}


def items(tmp_path: Path, text: str, defaults: Defaults | None = None) -> list[Item]:
    path = tmp_path / "chat.json"
    path.write_text(text)
    return list(read(path, "openai", defaults))


def messages(tmp_path: Path, *written: dict[str, Any]) -> list[TurnRecorded]:
    read_items = items(tmp_path, json.dumps(written))
    assert all(isinstance(item, ImportedTurn) for item in read_items), read_items
    return [item.data for item in read_items if isinstance(item, ImportedTurn)]


def threads(read_items: list[Item]) -> list[str]:
    return [item.thread for item in read_items if isinstance(item, ImportedTurn)]


def test_a_list_an_object_and_jsonl_of_messages_are_one_conversation(tmp_path: Path) -> None:
    shapes = [
        json.dumps([HI, YO]),
        json.dumps({"messages": [HI, YO]}),
        json.dumps({"messages": [HI, YO]}, indent=2),
        f"{json.dumps(HI)}\n\n{json.dumps(YO)}\n",
    ]
    by_shape = [items(tmp_path, shape) for shape in shapes]
    assert by_shape == [by_shape[0]] * 4
    assert threads(by_shape[0]) == ["chat", "chat"]
    assert [item.time - UNDATED_FROM for item in by_shape[0] if isinstance(item, ImportedTurn)] == [
        timedelta(0),
        timedelta(seconds=1),
    ]
    assert [item.data.source_id for item in by_shape[0] if isinstance(item, ImportedTurn)] == ["M1", "M2"]


def test_jsonl_and_lists_of_conversations_are_numbered_threads(tmp_path: Path) -> None:
    line = json.dumps({"messages": [HI, YO]})
    expected = ["chat", "chat", "chat-2", "chat-2"]
    assert threads(items(tmp_path, f"{line}\n{line}\n")) == expected
    assert threads(items(tmp_path, f"[{line},{line}]")) == expected
    assert threads(items(tmp_path, f"{json.dumps([HI, YO])}\n{json.dumps([HI, YO])}\n")) == expected
    assert threads(items(tmp_path, f"[{line},{line}]", Defaults(thread="x"))) == ["x", "x", "x-2", "x-2"]
    assert threads(items(tmp_path, json.dumps({"id": "own", "messages": [HI]}))) == ["own"]


def test_parts_become_blocks_and_sound_is_noted(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "hologram", "beams": 3},
    ]
    (turn,) = messages(tmp_path, {"role": "user", "content": parts})
    assert turn.content == (
        TextBlock(text="see"),
        ImageBlock(url="data:image/png;base64,AA=="),
        TextBlock(text="[audio: wav]"),
        TextBlock(text='[hologram] <document>\n{"type": "hologram", "beams": 3}\n</document>'),
    )


def test_tool_calls_and_their_results_keep_their_ids(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":1}'}}
    calls, result = messages(
        tmp_path,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    )
    assert calls.content == ""
    assert calls.tool_calls == (ToolCall(id="c1", name="search", arguments='{"q":1}'),)
    assert (result.role, result.tool_call_id) == ("tool", "c1")


def test_legacy_function_calls_are_paired_by_name(tmp_path: Path) -> None:
    call, result = messages(
        tmp_path,
        {"role": "assistant", "content": None, "function_call": {"name": "gpa", "arguments": "{}"}},
        {"role": "function", "name": "gpa", "content": "3.8"},
    )
    assert result.role == "tool"
    assert result.tool_call_id == call.tool_calls[0].id


def test_developer_is_system_and_reasoning_is_thinking(tmp_path: Path) -> None:
    system, answer = messages(
        tmp_path,
        {"role": "developer", "content": "be kind"},
        {"role": "assistant", "content": "yes", "reasoning_content": "because"},
    )
    assert system.role == "system"
    assert answer.content == (ThinkingBlock(thinking="because"), TextBlock(text="yes"))


def test_anthropic_blocks_are_taken_and_pure_tool_results_are_the_tools(tmp_path: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    use = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
    ]
    asked, thought, result = messages(
        tmp_path,
        {"role": "user", "content": [{"type": "image", "source": source}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use]},
        {"role": "user", "content": results},
    )
    assert asked.content == (ImageBlock(url="data:image/png;base64,AA==", media_type="image/png"),)
    assert thought.content == (
        ThinkingBlock(thinking="hm", signature="s"),
        ToolUseBlock(id="t1", name="search", input={"q": "x"}),
    )
    assert result.role == "tool"
    assert result.content == (
        ToolResultBlock(tool_use_id="t1", content=(TextBlock(text="found"),)),
        ToolResultBlock(tool_use_id="t2", content="no", is_error=True),
    )


def test_a_bad_message_is_named_and_the_others_stay(tmp_path: Path) -> None:
    bad: list[Any] = [
        {"role": "wizard", "content": "x"},
        {"role": "user"},
        7,
        {"role": ["a"], "content": "x"},
    ]
    read_items = items(tmp_path, json.dumps({"messages": [HI, *bad, YO]}))
    assert [item.where for item in read_items if isinstance(item, Rejected)] == [
        f"line 1, message {number}" for number in (2, 3, 4, 5)
    ]
    assert len(threads(read_items)) == 2


def test_a_conversation_that_grew_keeps_the_ids_of_its_first_messages(tmp_path: Path) -> None:
    before = items(tmp_path, json.dumps([HI, YO]))
    after = items(tmp_path, json.dumps([HI, YO, HI]))
    assert after[:2] == before
