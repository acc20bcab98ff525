"""Tests common properties of all import formats: ids, invalid parts, wrong files, compressed files, events."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from turnlog.agent.operations.importers import (
    Defaults,
    Format,
    ImportedTurn,
    ImportFailed,
    Item,
    Rejected,
    detect_format,
    events,
    import_id,
    read,
)
from turnlog.events.contracts import Event, ThreadOpened, TurnRecorded

TIME = datetime(2026, 5, 8, 13, 56, tzinfo=UTC)
GOOD = b'{"thread":"t","user":"ann","time":"2026-05-08T13:56:00Z","text":"hello"}'


def write(path: Path, *lines: bytes | dict[str, Any]) -> Path:
    raw = (json.dumps(line).encode() if isinstance(line, dict) else line for line in lines)
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def turns(items: list[Item]) -> list[ImportedTurn]:
    return [item for item in items if isinstance(item, ImportedTurn)]


def rejected(items: list[Item]) -> list[Rejected]:
    return [item for item in items if isinstance(item, Rejected)]


def test_an_import_id_is_a_version_7_uuid_that_begins_with_the_event_time() -> None:
    made = import_id("default", "t", "D1:1", TIME)
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert made.int >> 80 == int(TIME.timestamp() * 1000)
    assert made == import_id("default", "t", "D1:1", TIME)


def test_import_ids_differ_by_tenant_thread_and_key_even_if_their_concatenations_are_equal() -> None:
    different = [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ("a", "bc", "e"), ("", "abc", "d")]
    assert len({import_id(*names, TIME) for names in different}) == len(different)


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_an_import_id_is_refused_for_a_time_that_no_event_can_have(year: int) -> None:
    with pytest.raises(ValueError, match="is not in the years 1970 to 9998"):
        import_id("default", "t", "k", datetime(year, 1, 1, tzinfo=UTC))


def test_the_same_file_gives_the_same_ids_again_and_another_tenant_gives_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, GOOD, b'{"thread":"t","text":"no time"}')
    first, again = list(read(path)), list(read(path))
    assert first == again
    assert len({turn.id for turn in turns(first)}) == 3
    other = list(read(path, defaults=Defaults(tenant="other")))
    assert not {turn.id for turn in turns(first)} & {turn.id for turn in turns(other)}


def test_two_files_imported_into_one_thread_do_not_hide_each_other(tmp_path: Path) -> None:
    first = write(tmp_path / "one.jsonl", {"text": "first"})
    second = write(tmp_path / "two.jsonl", {"text": "second"})
    into = Defaults(thread="both")
    ids = {turn.id for path in (first, second) for turn in turns(list(read(path, "jsonl", into)))}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"thread":"t","text":', "malformed JSON"),
        (b"hello there", "malformed JSON"),
        (b'["text"]', "must be an object"),
        (b'{"thread":"t","user":"u"}', "no text"),
        (b'{"thread":"t","text":7}', "must be text"),
        (b'{"thread":"t","text":"\xff\xfe"}', "byte 23 is not UTF-8"),
        (b'{"thread":"t","text":"x","role":"robot"}', "role"),
        (b'{"thread":"t","text":"x","time":"yesterday"}', "time 'yesterday' cannot be read"),
        (b'{"thread":"t","text":"x","time":true}', "time 'True' cannot be read"),
        (b'{"thread":"t","text":"x","time":"0001-01-01T00:00:00+14:00"}', "is not in the years 1970 to 9998"),
        (b'{"thread":{"a":1},"text":"x"}', "thread is dict"),
        (b'{"thread":"t","content":[{"type":"image"}]}', "image block"),
        (b'{"thread":"t","content":[{"kind":"text"}]}', "must be an object with a type"),
        (b'{"thread":"t","text":"x","tool_calls":[{"id":"1"}]}', "tool_calls.0.name"),
        (b'{"thread":"t","text":"x","a":' + b"[" * 100_000 + b"}", "malformed JSON"),
    ],
)
def test_a_bad_line_is_named_with_its_reason_and_the_import_goes_on(tmp_path: Path, line: bytes, reason: str) -> None:
    items = list(read(write(tmp_path / "a.jsonl", GOOD, line, GOOD), "jsonl"))
    assert len(turns(items)) == 2
    assert [item.where for item in rejected(items)] == ["line 2"]
    assert reason in rejected(items)[0].error


@pytest.mark.parametrize(("format", "text", "time"), [("jsonl", "text", "time"), ("openai", "content", "created_at")])
def test_a_turn_without_a_time_is_undated_after_one_with_a_time_too(
    tmp_path: Path, format: Format, text: str, time: str
) -> None:
    said = [{"role": "user", text: "a"}, {"role": "user", text: "b", time: 1778248560}, {"role": "user", text: "c"}]
    path = write(tmp_path / "a.jsonl", *(json.dumps(message).encode() for message in said))
    assert [turn.is_dated for turn in turns(list(read(path, format)))] == [False, True, False]


def test_a_lone_surrogate_becomes_the_replacement_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rb'{"thread":"t","text":"a\u0000b \ud800 \ud83d\ude00"}')
    assert turns(list(read(path)))[0].data.content == "a�b � 😀"


@pytest.mark.parametrize(
    ("text", "format", "message"),
    [
        (b"", None, "a.json is empty"),
        (b" \n\n", "jsonl", "a.json is empty"),
        (b"[]", "jsonl", "contains no turn in the format jsonl"),
        (b"\x1f\x8b\x08", None, "damaged"),
        (b"Dear diary,\ntoday\n", None, "but 'Dear diary"),
        (b"Dear diary,\ntoday\n", "jsonl", "line 1: malformed JSON"),
        (b'[{"role":"user","content":"hi"}]', "jsonl", "looks like openai: use --format openai"),
        (b'[{"role":"user","content":"hi"}]', "claude", "looks like openai: use --format openai"),
        (GOOD, "chatgpt", "looks like jsonl: use --format jsonl"),
        (b"\xff\xfe[\x00", "openai", "UTF-16"),
        (b"PK\x03\x04 not a zip", "chatgpt", "damaged"),
    ],
)
def test_a_wholly_wrong_file_fails_with_the_cause_and_the_fix(
    tmp_path: Path, text: bytes, format: Format | None, message: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(ImportFailed, match=message):
        list(read(path, format))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match="there is no file"):
        list(read(tmp_path / "none.jsonl"))
    with pytest.raises(ImportFailed, match="is a folder"):
        list(read(tmp_path))


def test_gzip_is_recognised_by_its_bytes_and_a_truncated_file_keeps_its_first_turns(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'{"thread":"t","text":"%d"}\n' % n for n in range(20_000)))
    path = tmp_path / "named-without-gz.jsonl"
    path.write_bytes(whole)
    assert len(turns(list(read(path)))) == 20_000
    path.write_bytes(whole[: len(whole) // 2])
    items = list(read(path))
    assert 0 < len(turns(items)) < 20_000
    assert rejected(items)[-1].where == "end of file"


def test_a_list_is_read_item_by_item_across_chunk_borders(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": f"{n} " + "😀\ud800x" * 997} for n in range(300)]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(messages))
    imported = turns(list(read(path)))
    assert [turn.data.content for turn in imported] == [
        message["content"].replace("\ud800", "�") for message in messages
    ]


def test_after_malformed_json_in_a_list_the_turns_before_it_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"role":"user","content":"one"}, {"role":"user" "content":"two"}, {}]')
    items = list(read(path, "openai"))
    assert [turn.data.content for turn in turns(items)] == ["one"]
    assert [(item.where, "left out" in item.error) for item in rejected(items)] == [("item 2", True)]
    path.write_text('[{"role":"user","content":"one"}, ')
    assert rejected(list(read(path, "openai")))[0].error == "the file ends in the middle of its list"


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ('{"messages":[{"role":"user","content":"hi"}]}', "openai"),
        ('{\n "messages": [\n {"role": "user", "content": "hi"}]}', "openai"),
        ('[{"title":"x","mapping":{}}]', "chatgpt"),
        ('broken\n{"thread":"t","text":"say \\"mapping\\": now"}\n', "jsonl"),
        ('{"a": 1}', None),
    ],
)
def test_the_format_is_detected(tmp_path: Path, text: str, format: Format | None) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert detect_format(path) == format


def test_events_open_each_thread_once_and_carry_the_turns_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"thread": "a", "label": "A", "text": "1"},
        {"thread": "b", "text": "2"},
        GOOD,
        b"x",
    )
    made = list(events(read(path, "jsonl", Defaults(tenant="acme", user="u1")), "acme"))
    kinds = [(item.thread, item.type) for item in made if isinstance(item, Event)]
    assert kinds == [(thread, kind) for thread in "abt" for kind in ("thread_opened", "turn_recorded")]
    assert isinstance(made[0], Event)
    assert made[0].data == ThreadOpened(label="A")
    assert {(item.tenant, item.user) for item in made if isinstance(item, Event)} == {("acme", "u1")}
    assert isinstance(made[-1], Rejected)
    assert isinstance(made[1], Event)
    assert isinstance(made[1].data, TurnRecorded)
