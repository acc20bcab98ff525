"""Tests imports of ChatGPT's export: the tree of messages, the content types, the zip file."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from turnlog.agent.operations.importers import ImportedTurn, ImportFailed, Item, Rejected, Skipped, detect_format, read
from turnlog.events.contracts import TextBlock, ThinkingBlock

Node = dict[str, Any]


def message(key: str, role: str, content: Node | str, **more: Any) -> Node:
    body = {"content_type": "text", "parts": [content]} if isinstance(content, str) else content
    author = {"role": role, "name": more.pop("tool", None), "metadata": {}}
    return {"id": key, "author": author, "content": body, "recipient": "all", "metadata": {}, **more}


def tree(*messages: Node) -> dict[str, Node]:
    """Returns a tree of one branch: a root without a message, then each message as a child of the previous."""
    mapping: dict[str, Node] = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    parent = "root"
    for made in messages:
        mapping[parent]["children"].append(made["id"])
        mapping[made["id"]] = {"id": made["id"], "message": made, "parent": parent, "children": []}
        parent = made["id"]
    return mapping


def conversation(mapping: dict[str, Node], current: str | None, **more: Any) -> Node:
    return {
        "title": "Essay plan",
        "create_time": 1778248560.5,
        "mapping": mapping,
        "current_node": current,
        "conversation_id": "c-1",
        **more,
    }


def items(tmp_path: Path, *conversations: Node) -> list[Item]:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(conversations))
    return list(read(path, "chatgpt"))


def imported(read_items: list[Item]) -> list[ImportedTurn]:
    return [item for item in read_items if isinstance(item, ImportedTurn)]


def test_the_branch_of_the_current_node_is_followed(tmp_path: Path) -> None:
    mapping = tree(message("a", "user", "draft"), message("b", "assistant", "first answer"))
    mapping["a"]["children"].append("c")
    retry = message("c", "assistant", "second answer", create_time=1778248600.25)
    mapping["c"] = {"id": "c", "message": retry, "parent": "a", "children": []}
    turns = imported(items(tmp_path, conversation(mapping, "b")))
    assert [turn.data.content for turn in turns] == ["draft", "first answer"]
    turns = imported(items(tmp_path, conversation(mapping, None)))
    assert [turn.data.content for turn in turns] == ["draft", "second answer"]
    assert [turn.time.timestamp() for turn in turns] == [1778248560.5, 1778248600.25]
    assert {(turn.thread, turn.label) for turn in turns} == {("c-1", "Essay plan")}
    assert [turn.data.source_id for turn in turns] == ["a", "c"]


def test_a_tree_with_a_loop_ends(tmp_path: Path) -> None:
    mapping = tree(message("a", "user", "one"), message("b", "user", "two"))
    mapping["root"]["parent"] = "b"
    assert len(imported(items(tmp_path, conversation(mapping, "b")))) == 2
    assert imported(items(tmp_path, conversation(tree(message("a", "user", "x")), "gone")))


def test_hidden_and_empty_messages_are_skipped_and_counted(tmp_path: Path) -> None:
    mapping = tree(
        message("s", "system", ""),
        message("h", "system", "rules", metadata={"is_visually_hidden_from_conversation": True}),
        message("p", "user", {"content_type": "user_editable_context", "user_profile": "x"}),
        message("a", "user", "hello"),
    )
    read_items = items(tmp_path, conversation(mapping, "a"))
    assert [item.reason for item in read_items if isinstance(item, Skipped)] == [
        "empty",
        "hidden in ChatGPT",
        "hidden in ChatGPT: user_editable_context",
    ]
    assert [turn.data.content for turn in imported(read_items)] == ["hello"]


def test_every_content_type_keeps_its_text(tmp_path: Path) -> None:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1"}
    speech = {"content_type": "audio_transcription", "text": "spoken"}
    thought = {"summary": "Plan", "content": "first this"}
    contents: list[tuple[Node, Any]] = [
        (
            {
                "content_type": "multimodal_text",
                "parts": [image, speech, "written", {"content_type": "video"}],
            },
            (
                TextBlock(text="[attached image]"),
                TextBlock(text="spoken"),
                TextBlock(text="written"),
                TextBlock(text="[video]"),
            ),
        ),
        ({"content_type": "thoughts", "thoughts": [thought]}, (ThinkingBlock(thinking="Plan\nfirst this"),)),
        (
            {"content_type": "reasoning_recap", "content": "Thought for 5s"},
            (ThinkingBlock(thinking="Thought for 5s"),),
        ),
        (
            {"content_type": "tether_quote", "title": "MIT", "url": "http://m", "text": "due"},
            "MIT http://m\ndue",
        ),
        ({"content_type": "tether_browsing_display", "result": "r", "summary": "s"}, "r\ns"),
        ({"content_type": "system_error", "name": "Timeout", "text": "slow"}, "Timeout: slow"),
        ({"content_type": "something_new", "text": "plain"}, "plain"),
    ]
    made = [message(f"m{n}", "assistant", content) for n, (content, _) in enumerate(contents)]
    read_items = items(tmp_path, conversation(tree(*made), made[-1]["id"]))
    assert [turn.data.content for turn in imported(read_items)] == [expected for _, expected in contents]


def test_only_typed_and_spoken_words_of_a_user_are_the_persons(tmp_path: Path) -> None:
    heard = {"content_type": "audio_transcription", "text": "I am vegan.", "direction": "out"}
    contents: list[tuple[Node | str, str | None]] = [
        ("I am vegan.", None),
        ({"content_type": "multimodal_text", "parts": [{**heard, "direction": "in"}]}, None),
        ({"content_type": "multimodal_text", "parts": [heard]}, "quoted"),
        ({"content_type": "code", "text": "I am vegan."}, "quoted"),
        ({"content_type": "execution_output", "text": "I am vegan."}, "quoted"),
        ({"content_type": "tether_quote", "text": "I am vegan."}, "quoted"),
        ({"content_type": "something_new", "text": "I am vegan."}, "quoted"),
    ]
    made = [message(f"m{n}", "user", content) for n, (content, _) in enumerate(contents)]
    made.append(message("named", "user", "I am vegan.", tool="bob"))
    turns = imported(items(tmp_path, conversation(tree(*made), "named")))
    assert [turn.data.origin for turn in turns] == [*(origin for _, origin in contents), None]
    assert [turn.data.name for turn in turns] == [None] * len(contents) + ["bob"]


def test_a_call_to_a_tool_and_its_answer_are_paired(tmp_path: Path) -> None:
    code = {"content_type": "code", "language": "unknown", "text": "print(1)"}
    output = {"content_type": "execution_output", "text": "1"}
    mapping = tree(
        message("call", "assistant", code, recipient="python", metadata={"model_slug": "gpt-5"}),
        message("out", "tool", output, tool="python"),
    )
    call, result = (turn.data for turn in imported(items(tmp_path, conversation(mapping, "out"))))
    assert [(made.id, made.name, made.arguments) for made in call.tool_calls] == [("call", "python", "print(1)")]
    assert call.model == "gpt-5"
    assert (result.role, result.name, result.content, result.tool_call_id) == ("tool", "python", "1", "call")


def test_an_answer_without_a_model_has_that_of_its_conversation(tmp_path: Path) -> None:
    named = message("b", "assistant", "hello", metadata={"model_slug": "gpt-5"})
    mapping = tree(message("a", "user", "hi"), named, message("c", "assistant", "again"))
    turns = imported(items(tmp_path, conversation(mapping, "c", default_model_slug="gpt-5-thinking")))
    assert [turn.data.model for turn in turns] == [None, "gpt-5", "gpt-5-thinking"]


def test_attached_files_are_named_and_no_pointer_into_the_export_stays(tmp_path: Path) -> None:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_1"}
    voice = {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://file_2"}
    files = [{"id": "file_1", "name": "me.png"}, {"id": "file_3", "name": "essay.pdf"}]
    content = {"content_type": "multimodal_text", "parts": [image, voice, "look"]}
    mapping = tree(message("a", "user", content, metadata={"attachments": files}))
    [turn] = imported(items(tmp_path, conversation(mapping, "a")))
    assert turn.data.content == tuple(
        TextBlock(text=text)
        for text in ("[attached file: essay.pdf]", "[attached image]", "[attached recording]", "look")
    )


def test_messages_without_content_and_of_other_branches_are_left_out_with_their_reason(tmp_path: Path) -> None:
    mapping = tree(message("a", "user", "hi"), {**message("b", "assistant", "hello"), "content": None})
    mapping["c"] = {"id": "c", "message": message("c", "assistant", "old answer"), "parent": "a", "children": []}
    read_items = items(tmp_path, conversation(mapping, "b"))
    assert [item for item in read_items if isinstance(item, Skipped)] == [
        ("c-1, message b", "empty"),
        ("c-1, message c", "on a branch that was not shown last"),
    ]
    assert not [item for item in read_items if isinstance(item, Rejected)]


def test_a_bad_message_or_conversation_is_named_and_the_others_stay(tmp_path: Path) -> None:
    mapping = tree(
        message("x", "user", {"content_type": "riddle"}),
        message("y", "user", "late", create_time="soon"),
        message("z", "critic", "role"),
        message("a", "user", "fine"),
    )
    broken: Node = {"title": "no tree"}
    read_items = items(tmp_path, conversation(mapping, "a"), broken, conversation({}, None, create_time="?"))
    assert [item.where for item in read_items if isinstance(item, Rejected)] == [
        "c-1, message x",
        "c-1, message y",
        "c-1, message z",
        "item 2",
        "item 3",
    ]
    assert [turn.data.content for turn in imported(read_items)] == ["fine"]


def test_the_zip_of_an_export_is_read_with_all_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in (1, 0):
            part = conversation(tree(message("a", "user", f"part {number}")), "a", conversation_id=f"c-{number}")
            archive.writestr(f"conversations-{number:03}.json", json.dumps([part]))
        archive.writestr("user.json", "{}")
    assert detect_format(path) == "chatgpt"
    assert [turn.data.content for turn in imported(list(read(path)))] == ["part 0", "part 1"]


def test_a_zip_with_one_file_for_each_conversation_is_read(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key in "ab":
            file = conversation(tree(message(key, "user", f"said {key}")), key, conversation_id=None)
            archive.writestr(f"conversations/{key}.json", json.dumps(file))
        archive.writestr("conversations/c.json", '{"title": "no tree"}')
        archive.writestr("conversations/index.json", '{"count": 3}')
    read_items = list(read(path))
    assert [(turn.thread, turn.data.content) for turn in imported(read_items)] == [
        ("export", "said a"),
        ("export-2", "said b"),
    ]
    assert [item.where for item in read_items if isinstance(item, Rejected)] == ["conversations/c.json, line 1"]


def test_a_zip_that_was_made_to_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("conversations.json", b" " * 20_000_000)
    with pytest.raises(ImportFailed, match=r"conversations\.json would unpack to 20,000,000 bytes"):
        list(read(path))
