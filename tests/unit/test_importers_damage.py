"""Importers report every kind of damage inside a file as refusals and never raise unexpected exceptions."""

import copy
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from helpers.nightly import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnlog.agent.operations.importers import (
    Format,
    ImportedTurn,
    ImportFailed,
    Rejected,
    Repeated,
    Skipped,
    read,
)
from turnlog.agent.operations.importers.jsontext import MAX_BYTES

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BLOCKS: list[Any] = [
    {"type": "text", "text": "a"},
    {"type": "image_url", "image_url": {"url": "u"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    {"type": "tool_use", "id": "t", "name": "n", "input": {}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]},
    {"type": "input_audio", "input_audio": {"format": "wav"}},
    {"type": "file", "file": {"filename": "x.pdf"}},
]
SAMPLES: dict[Format, Any] = {
    "openai": {
        "id": "c",
        "title": "t",
        "system": "s",
        "messages": [
            {"role": "user", "content": BLOCKS, "created_at": 1778248560},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "x"},
        ],
    },
    "chatgpt": [
        {
            "title": "t",
            "create_time": 1778248560.5,
            "current_node": "b",
            "mapping": {
                "r": {"message": None, "parent": None, "children": ["a"]},
                "a": {
                    "parent": "r",
                    "children": ["b"],
                    "message": {
                        "id": "a",
                        "author": {"role": "assistant", "name": None},
                        "recipient": "python",
                        "metadata": {"model_slug": "m"},
                        "content": {"content_type": "code", "text": "1"},
                    },
                },
                "b": {
                    "parent": "a",
                    "children": [],
                    "message": {
                        "id": "b",
                        "author": {"role": "user"},
                        "create_time": 1778248561,
                        "content": {
                            "content_type": "multimodal_text",
                            "parts": ["x", {"content_type": "image_asset_pointer", "asset_pointer": "p"}],
                        },
                    },
                },
            },
        }
    ],
    "claude": [
        {
            "uuid": "c",
            "name": "n",
            "created_at": "2026-06-01T10:00:00Z",
            "current_leaf_message_uuid": "b",
            "chat_messages": [
                {
                    "uuid": "a",
                    "sender": "human",
                    "text": "x",
                    "content": [],
                    "created_at": "2026-06-01T10:00:01Z",
                    "attachments": [{"file_name": "f", "extracted_content": "x"}],
                    "files": [{"file_name": "f"}],
                },
                {"uuid": "b", "sender": "assistant", "content": BLOCKS, "parent_message_uuid": "a"},
            ],
        }
    ],
    "open-webui": [
        {
            "id": "w",
            "title": "t",
            "created_at": 1756000000,
            "chat": {
                "history": {
                    "currentId": "b",
                    "messages": {
                        "a": {
                            "id": "a",
                            "role": "user",
                            "content": "x",
                            "files": [{"type": "image", "url": "data:,"}, {"type": "file", "name": "n"}],
                        },
                        "b": {
                            "parentId": "a",
                            "role": "assistant",
                            "model": "m",
                            "content": '<details type="tool_calls" name="f" arguments="[[1]]"></details>x',
                            "timestamp": 1756000005,
                            "error": {"content": "e"},
                        },
                    },
                }
            },
        }
    ],
    "librechat": {
        "conversationId": "l",
        "title": "t",
        "options": {"model": "m"},
        "messages": [
            {
                "messageId": "a",
                "text": "x",
                "isCreatedByUser": True,
                "createdAt": "2026-05-01T10:00:00.000Z",
                "files": [{"filename": "f"}],
                "children": [
                    {
                        "messageId": "b",
                        "parentMessageId": "a",
                        "isCreatedByUser": False,
                        "content": [
                            {"type": "think", "think": "x"},
                            {"type": "text", "text": {"value": "x"}},
                            {"type": "tool_call", "tool_call": {"id": "i", "name": "n", "args": "{}", "output": "o"}},
                            {"type": "error", "error": "e"},
                        ],
                    }
                ],
            }
        ],
    },
    "jsonl": {
        "thread": "t",
        "user": "u",
        "time": "2026-05-08T13:56:00Z",
        "content": BLOCKS,
        "tool_calls": [{"id": "1", "name": "n", "arguments": "{}"}],
        "source_id": "s",
        "event_id": "0196b0a4-0000-7000-8000-000000000000",
        "tenant": "default",
    },
}
junk: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1e300, "", "x", [], {}, [None], ["x"], [[]], {"a": 1}, [{}]]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths of all values inside the value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in pairs for inner in places(item, (*path, key)))]


def damaged(value: Any, path: tuple[Any, ...], replacement: Any) -> Any:
    if not path:
        return replacement
    whole = copy.deepcopy(value)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = replacement
    return whole


@pytest.mark.parametrize("format", SAMPLES)
@given(draw=st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(150),
    derandomize=True,
)
def test_any_value_replaced_by_junk_is_refused_or_read(format: Format, tmp_path: Path, draw: st.DataObject) -> None:
    path = draw.draw(st.sampled_from(places(SAMPLES[format])))
    file = tmp_path / "a.json"
    file.write_text(json.dumps(damaged(SAMPLES[format], path, draw.draw(junk))))
    try:
        items = list(read(file, format))
    except ImportFailed:
        return
    assert all(isinstance(item, ImportedTurn | Rejected | Skipped | Repeated) for item in items)


def test_a_line_that_is_too_long_is_refused_by_its_number_and_never_read_into_memory(tmp_path: Path) -> None:
    file = tmp_path / "huge.jsonl.gz"
    with gzip.open(file, "wb", compresslevel=1) as packed:
        packed.write(b'{"thread": "t", "text": "first"}\n{"thread": "t", "text": "')
        for _ in range(4):
            packed.write(b"a" * MAX_BYTES)
        packed.write(b'"}\n{"thread": "t", "text": "last"}\n')
    tracemalloc.start()
    first, refused, last = read(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(first, ImportedTurn) and isinstance(last, ImportedTurn) and last.data.content == "last"
    assert refused == Rejected("line 2", "it is longer than 64 MiB, the most that is read at once; split it")
    assert peak < 3 * MAX_BYTES


@pytest.mark.parametrize(
    "beginning", [b'[{"role": "user", "content": "', b'{\n"messages": [{"role": "user", "content": "']
)
def test_an_endless_document_is_refused_as_well(tmp_path: Path, beginning: bytes) -> None:
    file = tmp_path / "endless.json.gz"
    with gzip.open(file, "wb", compresslevel=1) as packed:
        packed.write(beginning)
        packed.write(b"a" * MAX_BYTES)
    with pytest.raises(ImportFailed, match="longer than 64 MiB"):
        list(read(file, "openai"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a\x01b"}', "malformed JSON: Invalid control character at character 12"),
        (b'{"text": "ab', "malformed JSON: Unterminated string at character 10"),
        (b'{"text": "\\x"}', "malformed JSON: Invalid \\escape at character 11"),
        (b'{"text" "a"}', "malformed JSON: Expecting ':' delimiter at character 9"),
        ('{"text": "café"}'.encode("latin-1"), "byte 14 is not UTF-8; convert the file first: `iconv -f LATIN1"),
        ('{"text": "你好"}'.encode("gbk"), "byte 11 is not UTF-8; convert the file first: `iconv -f LATIN1"),
    ],
)
def test_a_broken_line_is_refused_with_its_place_and_what_to_do(tmp_path: Path, line: bytes, reason: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    [good, refused] = read(file)
    assert isinstance(good, ImportedTurn) and isinstance(refused, Rejected)
    assert refused.where == "line 2" and refused.error.startswith(reason)


def test_a_file_that_is_all_in_latin_1_is_recognised_and_refused_for_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "latin.jsonl"
    file.write_bytes('{"thread": "t", "role": "user", "content": "café"}\n'.encode("latin-1"))
    with pytest.raises(ImportFailed, match="no turn in the format jsonl: line 1: byte 48 is not UTF-8"):
        list(read(file))


def test_an_item_of_an_array_in_another_encoding_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mixed.json"
    garbled = '{"role": "user", "content": "café"}'.encode("latin-1")
    file.write_bytes(b"[" + garbled + ', {"role": "user", "content": "naïve 你好"}]'.encode())
    refused, good = read(file)
    assert isinstance(good, ImportedTurn) and good.data.content == "naïve 你好"
    assert isinstance(refused, Rejected) and refused.where == "item 1"
    assert refused.error.startswith("it is not UTF-8; convert the file first")
    document = tmp_path / "document.json"
    document.write_bytes(b'{\n"messages": [' + garbled + b"]}")
    with pytest.raises(ImportFailed, match="document: byte 48 is not UTF-8"):
        list(read(document, "openai"))
