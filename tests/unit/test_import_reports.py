"""An import reports what it left out and why, and which formats it reads if it recognised nothing."""

import json
import zipfile
from pathlib import Path

import pytest
from helpers.cli_process import CHATGPT

from turnlog.agent.operations.importers import FORMATS, Defaults, ImportFailed, detect_format
from turnlog.agent.operations.importers.source_files import EXAMPLES
from turnlog.agent.operations.importing import ImportReport, ImportRequest, check_import, prepare_import


def report_of(path: Path, text: str) -> ImportReport:
    path.write_text(text)
    return check_import(prepare_import(ImportRequest(path, None, Defaults())))


def test_skipped_parts_are_listed_with_their_reason_and_places(tmp_path: Path) -> None:
    other = {"parent": "a", "children": [], "message": {"id": "x", "author": {"role": "user"}, "content": {}}}
    empty = {**CHATGPT[0]["mapping"]["b"], "message": {"id": "b", "author": {"role": "assistant"}, "content": None}}
    tree = {**CHATGPT[0], "mapping": {"a": CHATGPT[0]["mapping"]["a"], "b": empty, "x": other}}
    report = report_of(tmp_path / "conversations.json", json.dumps([tree]))
    assert report.document()["left_out"] == [
        {"reason": "empty", "count": 1, "first": ["c-1, message b"]},
        {"reason": "on a branch that was not shown last", "count": 1, "first": ["c-1, message x"]},
    ]
    assert list(report.lines())[:3] == [
        "conversations.json has 1 turn in 1 thread; nothing was stored; 2 left out.",
        "left out: empty: 1 (c-1, message b)",
        "left out: on a branch that was not shown last: 1 (c-1, message x)",
    ]


def test_unknown_fields_and_undated_turns_of_jsonl_are_listed(tmp_path: Path) -> None:
    line = json.dumps({"thread": "t", "text": "hello", "timestamp": "2026-05-08"})
    report = report_of(tmp_path / "talk.jsonl", "\n".join([line] * 5))
    assert (report.skipped, report.undated) == (5, 5)
    assert report.undated_turns == [f"t, L{number}" for number in range(1, 6)]
    assert list(report.lines())[1:] == [
        "left out: the unknown field 'timestamp': 5 (line 1; line 2; line 3; …)",
        "without a time, dated one second after the previous turn, the first of a conversation 2000-01-01: t, L1; "
        "t, L2; "
        "t, L3; …",
    ]


def test_a_file_with_ever_new_fields_has_a_bounded_report(tmp_path: Path) -> None:
    report = report_of(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": "hi", f"f{n}": n}) for n in range(1000)))
    assert (report.skipped, len(report.left_out), report.left_out[-1].count) == (1000, 100, 1)


def test_very_long_names_have_a_bounded_report(tmp_path: Path) -> None:
    said = {"uuid": "m", "sender": "human", "text": "hi"}
    chat = {"uuid": "t" * 10_000, "chat_messages": [*[1] * 200, said]}
    report = report_of(tmp_path / "conversations.json", json.dumps([chat]))
    assert (report.turns, report.rejected_count, len(report.rejected)) == (1, 200, 100)
    assert len(json.dumps(report.document(), default=str)) < 100_000


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_named_inside_a_zip_too(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", json.dumps(CHATGPT).encode(encoding))
    with pytest.raises(ImportFailed, match="is UTF-16; save it as UTF-8"):
        prepare_import(ImportRequest(path, None, Defaults()))


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ('{"notes": [1], "owner": "ann"}', "an object with the fields notes, owner"),
        ('[{"when": 1, "what": "x"}, ', "a list whose first item is an object with the fields when, what"),
        ('\ufeff{"a": 1}\n{"b": 2}', "an object with the fields a"),
        ("[1, 2]", "a list whose first item is neither list nor object"),
        ("2026-05-08,hello\n", "neither a JSON list nor a JSON object, but '2026-05-08,hello\\n'"),
        ("<html><body>", "neither a JSON list nor a JSON object, but '<html><body>'"),
    ],
)
def test_the_error_for_an_unknown_file_describes_it_and_lists_readable_formats(
    tmp_path: Path, text: str, looks: str
) -> None:
    with pytest.raises(ImportFailed) as failed:
        report_of(tmp_path / "file.json", text)
    assert f"no known format: it begins with {looks}. If" in str(failed.value)
    assert all(f"\n  {name}: {example}" in str(failed.value) for name, example in EXAMPLES.items())


def test_the_example_of_each_format_is_recognised_as_it(tmp_path: Path) -> None:
    assert EXAMPLES.keys() == set(FORMATS)
    for name, example in EXAMPLES.items():
        path = tmp_path / name
        path.write_text(example.replace("{…}", "{}"))
        assert detect_format(path) == name, example


def test_the_error_for_an_unknown_zip_lists_its_content(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../../etc/notes.txt", "x")
    with pytest.raises(ImportFailed, match=r"it has '\.\./\.\./etc/notes\.txt'\. Unpack it"):
        prepare_import(ImportRequest(tmp_path / "a.zip", None, Defaults()))
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
