"""LoCoMo and MemoryBank in small; and whole data sets, where they lie beside the project."""

import json
import tracemalloc
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from turnlog.agent.operations.importers import Defaults, ImportedTurn, Item, Rejected, detect_format, read
from turnlog.events.contracts import ImageBlock, TextBlock

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

LOCOMO = {
    "sample_id": "conv-1",
    "qa": [],
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Bo",
        "session_10_date_time": "12:05 am on 1 June, 2023",
        "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "late"}],
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_2": [
            {"speaker": "Ann", "dia_id": "D2:1", "text": "look", "img_url": ["u"], "blip_caption": "a dog"},
            {"speaker": "Bo", "dia_id": "D2:2", "text": "", "blip_caption": "a cat"},
            {"speaker": "Bo", "dia_id": "D2:2", "text": "the same id again"},
            {"speaker": "Bo", "dia_id": "D2:3"},
        ],
        "session_3_date_time": "some day",
        "session_3": [{"speaker": "Bo", "dia_id": "D3:1", "text": "when?"}],
        "session_99_date_time": "1:00 pm on 1 July, 2023",
    },
}


def data(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the project (expected at {DATA})")
    return path


def imported(found: list[Item]) -> list[ImportedTurn]:
    return [item for item in found if isinstance(item, ImportedTurn)]


def test_locomo_keeps_speakers_ids_session_times_and_captions(tmp_path: Path) -> None:
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([LOCOMO]))
    found = list(read(path))
    first, second, again, last = imported(found)
    assert (first.thread, first.label, first.user) == ("conv-1", "conv-1", "conv-1")
    assert (first.data.name, first.data.role, first.data.source_id) == ("Ann", "user", "D2:1")
    assert first.data.content == (TextBlock(text="look [image: a dog]"), ImageBlock(url="u"))
    assert second.data.content == "[image: a cat]"
    assert first.time == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert second.time == datetime(2023, 5, 8, 13, 56, 30, tzinfo=UTC)
    assert again.id != second.id
    assert (last.data.source_id, last.time) == ("D10:1", datetime(2023, 6, 1, 0, 5, tzinfo=UTC))
    assert [item.where for item in found if isinstance(item, Rejected)] == [
        "conv-1, session 2, turn 4",
        "conv-1, session 3",
    ]


def test_memorybank_gives_each_user_a_thread_with_days_from_noon(tmp_path: Path) -> None:
    history = {"2023-04-27": [{"query": "hi", "response": "hello"}, {"query": "bye"}], "never": [{}]}
    path = tmp_path / "bank.json"
    path.write_text(json.dumps({"Emily": {"history": history, "questions": []}, "Tom": 3}, indent=1))
    found = list(read(path))
    query, response, bye = imported(found)
    assert (query.thread, query.user, query.data.role, query.data.name) == ("Emily", "Emily", "user", "Emily")
    assert (response.data.role, response.data.source_id) == ("assistant", "2023-04-27/1/response")
    assert query.time == datetime(2023, 4, 27, 12, tzinfo=UTC)
    assert bye.time == datetime(2023, 4, 27, 12, 1, tzinfo=UTC)
    assert len([item for item in found if isinstance(item, Rejected)]) == 3


def test_all_locomo_conversations_are_imported_whole() -> None:
    found = list(read(data("locomo-dev.json"), "locomo"))
    assert Counter(turn.thread for turn in imported(found)) == {
        "conv-26": 419,
        "conv-30": 369,
        "conv-41": 663,
        "conv-42": 629,
        "conv-43": 680,
    }
    assert len(found) == len({turn.id for turn in imported(found)}) == 2760


def test_the_irc_file_is_read_as_valid_turns_in_flat_memory() -> None:
    path = data("irc.jsonl.gz")
    assert detect_format(path) == "jsonl"
    tracemalloc.start()
    try:
        assert {type(item) for item in islice(read(path), 5_000)} == {ImportedTurn}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000


@pytest.mark.nightly
def test_the_whole_irc_file_is_valid_turns() -> None:
    path = data("irc.jsonl.gz")
    kinds: Counter[str] = Counter()
    threads, ids = set(), set()
    for item in read(path, defaults=Defaults(user="owner")):
        kinds[type(item).__name__] += 1
        if isinstance(item, ImportedTurn):
            threads.add(item.thread)
            ids.add(item.id.int)
    assert kinds == {"ImportedTurn": 207_735}
    assert (len(threads), len(ids)) == (9_650, 207_735)


def test_all_cped_utterances_are_turns() -> None:
    found = imported(list(read(data("cped.jsonl.gz"))))
    assert len(found) == len({turn.id for turn in found}) == 38_575


@pytest.mark.parametrize("name", ["memorybank-en.json", "memorybank-cn.json"])
def test_all_memorybank_exchanges_are_two_turns(name: str) -> None:
    found = list(read(data(name)))
    assert len(imported(found)) == len(found) == 2 * 566
    assert len({turn.thread for turn in imported(found)}) == 15
