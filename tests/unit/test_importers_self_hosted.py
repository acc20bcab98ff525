"""Tests imports of the exports of Open WebUI and LibreChat."""

import json
from pathlib import Path
from typing import Any

import pytest

from turnlog.agent.operations.importers import (
    Format,
    ImportedTurn,
    ImportFailed,
    Item,
    Rejected,
    Skipped,
    detect_format,
    read,
)
from turnlog.events.contracts import ImageBlock, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

Message = dict[str, Any]


def items(tmp_path: Path, format: Format, value: Any, **layout: Any) -> list[Item]:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(value, **layout))
    assert detect_format(path) == format
    return list(read(path))


def imported(read_items: list[Item]) -> list[ImportedTurn]:
    return [item for item in read_items if isinstance(item, ImportedTurn)]


def contents(read_items: list[Item]) -> list[Any]:
    return [turn.data.content for turn in imported(read_items)]


def reasons(read_items: list[Item]) -> list[str]:
    return [item.reason for item in read_items if isinstance(item, Skipped)]


def chat(current: str | None, *messages: Message, **more: Any) -> Message:
    tree = {"messages": {message["id"]: message for message in messages}, "currentId": current}
    return {"id": "ow-1", "title": "Balcony", "chat": {"title": "x", "history": tree}, "created_at": 1756000000, **more}


def webui(key: str, parent: str | None, role: str, content: str, **more: Any) -> Message:
    return {"id": key, "parentId": parent, "childrenIds": [], "role": role, "content": content, **more}


ASK = webui("a", None, "user", "Which plants?", timestamp=1756000001)
OLD = webui("b", "a", "assistant", "cactus", timestamp=1756000005)
NEW = webui("c", "a", "assistant", "Ferns.", timestamp=1756000009, model="llama3.1:8b")


def test_an_open_webui_chat_is_imported_along_its_current_branch(tmp_path: Path) -> None:
    read_items = items(tmp_path, "open-webui", [chat("c", ASK, NEW, OLD)])
    ask, new = imported(read_items)
    assert (ask.thread, ask.label, ask.data.content, ask.data.role) == ("ow-1", "Balcony", "Which plants?", "user")
    assert (new.data.content, new.data.model, new.data.source_id) == ("Ferns.", "llama3.1:8b", "c")
    assert [turn.time.timestamp() for turn in (ask, new)] == [1756000001, 1756000009]
    assert reasons(read_items) == ["on a branch that was not shown last"]
    assert contents(items(tmp_path, "open-webui", [chat("c", ASK, NEW, OLD)], indent=1)) == ["Which plants?", "Ferns."]


def test_open_webuis_details_become_thinking_and_tool_calls(tmp_path: Path) -> None:
    text = (
        '<details type="reasoning" done="true" duration="2">\n<summary>Thought</summary>\n&gt; 1 &lt; 2\n&gt; so\n'
        "</details>\nI look.\n"
        '<details type="tool_calls" done="true" id="t" name="search" '
        'arguments="&quot;{\\&quot;q\\&quot;: \\&quot;fern\\&quot;}&quot;" result="&quot;found&quot;">\n'
        "<summary>Tool Executed</summary>\n</details>\n"
        '<details type="tool_calls" done="true" name="now"><summary>Tool Executed</summary>{"h": 1}</details>'
        'A <details type="reasoning"> never closed'
    )
    [turn] = imported(items(tmp_path, "open-webui", [chat("a", webui("a", None, "assistant", text))]))
    *blocks, call, result, last = turn.data.content
    assert blocks == [
        ThinkingBlock(thinking="1 < 2\nso"),
        TextBlock(text="I look."),
        ToolUseBlock(id="t", name="search", input={"q": "fern"}),
        ToolResultBlock(tool_use_id="t", content="found"),
    ]
    assert isinstance(call, ToolUseBlock) and call.name == "now"
    assert result == ToolResultBlock(tool_use_id=call.id, content='{"h": 1}')
    assert last == TextBlock(text='A <details type="reasoning"> never closed')


def test_open_webuis_images_are_kept_if_they_can_be_opened(tmp_path: Path) -> None:
    files = [
        {"type": "image", "url": "data:image/png;base64,AAAA"},
        {"type": "image", "url": "/api/v1/files/1/content"},
        {"type": "image", "url": "data:image/png;base64," + "A" * 2_000_000},
        {"type": "file", "name": "notes.pdf"},
    ]
    [turn] = imported(items(tmp_path, "open-webui", [chat("a", webui("a", None, "user", "See", files=files))]))
    assert turn.data.content == (
        ImageBlock(url="data:image/png;base64,AAAA"),
        TextBlock(text="[attached image]"),
        TextBlock(text="[attached image]"),
        TextBlock(text="[attached file: notes.pdf]"),
        TextBlock(text="See"),
    )


def libre(key: str, parent: str, text: str, minute: int, **more: Any) -> Message:
    made = {"messageId": key, "parentMessageId": parent, "text": text, "isCreatedByUser": parent == "0"}
    return {**made, "createdAt": f"2026-05-01T10:{minute:02}:00.000Z", **more}


def export(*messages: Message, **more: Any) -> Message:
    about = {"conversationId": "lc-1", "endpoint": "openAI", "title": "Guitar", "exportAt": "10:00:00 GMT"}
    return {**about, "options": {"model": "gpt-5-mini"}, **more, "messages": list(messages)}


@pytest.mark.parametrize("layout", [{}, {"indent": 2}])
@pytest.mark.parametrize("nested", [False, True])
def test_a_librechat_export_flat_or_nested_is_imported_along_its_newest_branch(
    tmp_path: Path, nested: bool, layout: dict[str, Any]
) -> None:
    ask, new, old = libre("a", "0", "Name?", 1), libre("b", "a", "Owls.", 9), libre("c", "a", "Cats.", 5, model="m")
    value = export({**ask, "children": [new, old]}) if nested else export(ask, new, old)
    read_items = items(tmp_path, "librechat", value, **layout)
    assert contents(read_items) == ["Name?", "Owls."]
    assert {(turn.thread, turn.label) for turn in imported(read_items)} == {("lc-1", "Guitar")}
    assert [(turn.data.role, turn.data.model) for turn in imported(read_items)] == [
        ("user", None),
        ("assistant", "gpt-5-mini"),
    ]
    assert reasons(read_items) == ["on a branch that was not shown last"]


def test_librechats_parts_become_blocks(tmp_path: Path) -> None:
    call = {"id": "t", "name": "search", "args": '{"q": "owl"}', "output": "found"}
    parts = [
        {"type": "think", "think": "hm"},
        {"type": "text", "text": {"value": "I look."}},
        {"type": "tool_call", "tool_call": call},
        {"type": "agent_update", "agent_update": {}},
        {"type": "error", "error": "timeout"},
    ]
    files = [{"filename": "riff.mp3"}]
    read_items = items(
        tmp_path, "librechat", export(libre("a", "0", "", 1, content=parts, files=files), libre("b", "a", "", 2))
    )
    assert contents(read_items) == [
        (
            TextBlock(text="[attached file: riff.mp3]"),
            ThinkingBlock(thinking="hm"),
            TextBlock(text="I look."),
            ToolUseBlock(id="t", name="search", input={"q": "owl"}),
            ToolResultBlock(tool_use_id="t", content="found"),
            TextBlock(text="[error] timeout"),
        )
    ]
    assert reasons(read_items) == ["empty"]


def test_another_sender_of_a_librechat_message_is_named(tmp_path: Path) -> None:
    said = (libre("a", "0", "one", 1, sender="User"), libre("b", "a", "two", 2, isCreatedByUser=True, sender="Bob"))
    turns = [item for item in items(tmp_path, "librechat", export(*said)) if isinstance(item, ImportedTurn)]
    assert [(turn.data.role, turn.data.name) for turn in turns] == [("user", None), ("user", "Bob")]


def test_a_conversation_nested_too_deeply_says_how_to_export_it(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    message = '{"messageId":"a","parentMessageId":"0","isCreatedByUser":true,"text":"x","children":['
    path.write_text('{"conversationId":"c","messages":[' + message * 3_000 + "]}" * 3_000 + "]}")
    with pytest.raises(ImportFailed, match="nested too deeply; export the conversation again with the option"):
        list(read(path))


def test_messages_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    bad_time = libre("b", "a", "x", 1, createdAt="0000-01-01T00:00:00Z")
    read_items = items(tmp_path, "librechat", export(libre("a", "0", "fine", 1), bad_time, libre("c", "b", "y", 2)))
    assert contents(read_items) == ["fine", "y"]
    assert [item.where for item in read_items if isinstance(item, Rejected)] == ["lc-1, message b"]
