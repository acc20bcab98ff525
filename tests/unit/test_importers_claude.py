"""Tests imports of Claude's export: blocks, files, branches, the zip file."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from turnlog.agent.operations.importers import (
    ImportedTurn,
    ImportFailed,
    Item,
    Rejected,
    Repeated,
    Skipped,
    detect_format,
    read,
)
from turnlog.events.contracts import TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

Message = dict[str, Any]


def message(key: str, sender: str, *content: Message | str, **more: Any) -> Message:
    blocks = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    time = f"2026-06-01T10:00:0{key}Z"
    made = {"uuid": key, "sender": sender, "text": "", "content": blocks, "created_at": time}
    return {**made, "attachments": [], "files": [], **more}


def conversation(*messages: Any, **more: Any) -> Message:
    start = "2026-06-01T10:00:00Z"
    return {"uuid": "c-1", "name": "Plov", "created_at": start, "chat_messages": list(messages), **more}


def items(tmp_path: Path, *conversations: Message) -> list[Item]:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(conversations))
    assert detect_format(path) == "claude"
    return list(read(path))


def imported(read_items: list[Item]) -> list[ImportedTurn]:
    return [item for item in read_items if isinstance(item, ImportedTurn)]


def test_messages_become_turns_with_their_ids_times_and_blocks(tmp_path: Path) -> None:
    call = {"type": "tool_use", "name": "artifacts", "input": {"command": "create", "title": "Plov"}}
    result = {"type": "tool_result", "name": "artifacts", "content": [{"type": "text", "text": "OK"}]}
    thought = {"type": "thinking", "thinking": "no peanuts"}
    answer = message("2", "assistant", thought, "Here.", call, result, {"type": "token_budget"}, "Enjoy.")
    asked, answered = imported(items(tmp_path, conversation(message("1", "human", "A recipe?"), answer, model="opus")))
    assert (asked.thread, asked.label, asked.data.role, asked.data.content) == ("c-1", "Plov", "user", "A recipe?")
    assert (asked.data.source_id, asked.time.isoformat()) == ("1", "2026-06-01T10:00:01+00:00")
    assert (answered.data.role, answered.data.model, asked.data.model) == ("assistant", "opus", None)
    assert answered.data.content == (
        ThinkingBlock(thinking="no peanuts"),
        TextBlock(text="Here."),
        ToolUseBlock(id="2-2", name="artifacts", input={"command": "create", "title": "Plov"}),
        ToolResultBlock(tool_use_id="2-2", content=(TextBlock(text="OK"),)),
        TextBlock(text="Enjoy."),
    )


def test_attached_files_are_named_with_the_text_that_was_extracted(tmp_path: Path) -> None:
    attachment = {"file_name": "pantry.txt", "extracted_content": "rice, lamb"}
    asked = message("1", "human", "See", attachments=[attachment], files=[{"file_name": "me.png"}])
    [turn] = imported(items(tmp_path, conversation(asked)))
    pantry = "[attached file: pantry.txt]\n<document>\nrice, lamb\n</document>"
    texts = [pantry, "[attached file: me.png]", "See"]
    assert turn.data.content == tuple(TextBlock(text=text) for text in texts)


def test_the_text_replaces_missing_blocks_and_empty_messages_are_left_out(tmp_path: Path) -> None:
    read_items = items(
        tmp_path,
        conversation(message("1", "human", text="old form"), message("2", "assistant"), name=""),
        conversation(uuid="c-2"),
    )
    assert [(turn.data.content, turn.label) for turn in imported(read_items)] == [("old form", None)]
    assert [item for item in read_items if isinstance(item, Skipped)] == [
        ("c-1, message 2", "empty"),
        ("c-2", "without messages"),
    ]


@pytest.mark.parametrize(("leaf", "shown"), [(None, ["ask", "new"]), ("2", ["ask", "old"]), ("gone", ["ask", "new"])])
def test_the_branch_that_was_shown_last_is_imported(tmp_path: Path, leaf: str | None, shown: list[str]) -> None:
    tree = conversation(
        message("1", "human", "ask", parent_message_uuid="00000000-0000-4000-8000-000000000000"),
        message("2", "assistant", "old", parent_message_uuid="1"),
        message("3", "assistant", "new", parent_message_uuid="1"),
        current_leaf_message_uuid=leaf,
    )
    read_items = items(tmp_path, tree)
    assert [turn.data.content for turn in imported(read_items)] == shown
    assert [item.reason for item in read_items if isinstance(item, Skipped)] == ["on a branch that was not shown last"]


def test_loops_end_and_repeated_ids_are_reported(tmp_path: Path) -> None:
    first = message("1", "human", "one", parent_message_uuid="2")
    read_items = items(
        tmp_path,
        conversation(first, message("2", "human", "two", parent_message_uuid="1"), first, {**first, "text": "x"}),
    )
    assert [turn.data.content for turn in imported(read_items)] == ["one", "two"]
    assert [item for item in read_items if isinstance(item, Repeated)] == [("c-1, message 3", "1")]
    assert [item for item in read_items if isinstance(item, Rejected)] == [
        ("c-1, message 4", "1 is another message's `uuid`")
    ]


def test_bad_messages_and_conversations_are_named_and_the_others_stay(tmp_path: Path) -> None:
    read_items = items(
        tmp_path,
        conversation(
            message("1", "robot", "x"),
            7,
            message("", "human", "x"),
            message("2", "human", "y", created_at="0000-01-01"),
        ),
        {"uuid": "c-2", "chat_messages": {}},
        conversation(message("3", "human", "fine"), created_at="soon"),
        conversation(message("4", "human", "fine"), uuid="c-3"),
    )
    assert [turn.data.content for turn in imported(read_items)] == ["fine"]
    assert [item.where for item in read_items if isinstance(item, Rejected)] == [
        "c-1, message 2",
        "c-1, message 3",
        "c-1, message 1",
        "c-1, message 2",
        "item 2",
        "item 3",
    ]


def test_the_zip_of_an_export_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "data-2026-06-03-batch-0000.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps([conversation(message("1", "human", "hi"))]))
        archive.writestr("users.json", "[]")
    assert detect_format(path) == "claude"
    assert [turn.data.content for turn in imported(list(read(path)))] == ["hi"]
    with pytest.raises(ImportFailed, match="it looks like claude: use --format claude"):
        list(read(path, "chatgpt"))
