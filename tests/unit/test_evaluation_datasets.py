"""The evaluation reads small samples of LoCoMo and MemoryBank, and the complete files if they exist."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from evaluation.datasets import locomo_turns, memorybank_turns

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
        ],
        "session_99_date_time": "1:00 pm on 1 July, 2023",
    },
}


def data(name: str) -> Any:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the project (expected at {DATA})")
    return json.loads(path.read_text("utf-8"))


def test_locomo_keeps_speakers_ids_session_times_and_captions() -> None:
    first, second, again, last = locomo_turns(LOCOMO)
    assert (first.thread, first.label, first.user) == ("conv-1", "conv-1", "conv-1")
    assert (first.data.name, first.data.role, first.data.source_id) == ("Ann", "user", "D2:1")
    assert first.data.content == (TextBlock(text="look [image: a dog]"), ImageBlock(url="u"))
    assert second.data.content == "[image: a cat]"
    assert first.time == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert second.time == datetime(2023, 5, 8, 13, 56, 30, tzinfo=UTC)
    assert again.id != second.id
    assert (last.data.source_id, last.time) == ("D10:1", datetime(2023, 6, 1, 0, 5, tzinfo=UTC))


def test_memorybank_gives_each_user_a_thread_with_days_from_noon() -> None:
    history = {"2023-04-27": [{"query": "hi", "response": "hello"}, {"query": "bye", "response": "bye"}]}
    query, response, bye, _ = memorybank_turns("Emily", history)
    assert (query.thread, query.user, query.data.role, query.data.name) == ("Emily", "Emily", "user", "Emily")
    assert (response.data.role, response.data.source_id) == ("assistant", "2023-04-27/1/response")
    assert (query.data.origin, response.data.origin) == ("person", None)
    assert query.time == datetime(2023, 4, 27, 12, tzinfo=UTC)
    assert bye.time == datetime(2023, 4, 27, 12, 1, tzinfo=UTC)


def test_all_locomo_conversations_are_read_whole() -> None:
    turns = [turn for sample in data("locomo-dev.json") for turn in locomo_turns(sample)]
    assert Counter(turn.thread for turn in turns) == {
        "conv-26": 419,
        "conv-30": 369,
        "conv-41": 663,
        "conv-42": 629,
        "conv-43": 680,
    }
    assert len(turns) == len({turn.id for turn in turns}) == 2760


@pytest.mark.parametrize("name", ["memorybank-en.json", "memorybank-cn.json"])
def test_all_memorybank_exchanges_are_two_turns(name: str) -> None:
    turns = [turn for user, value in data(name).items() for turn in memorybank_turns(user, value["history"])]
    assert len(turns) == 2 * 566
    assert len({turn.thread for turn in turns}) == 15
