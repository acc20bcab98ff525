"""Old versions of event data are upgraded step by step."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from turnlog.events.codec import decode
from turnlog.events.contracts.upcasters import UPCASTERS, upcast
from turnlog.events.errors import InvalidEvent


def test_the_text_of_a_version_one_turn_becomes_its_content() -> None:
    old = {"role": "user", "text": "Hi", "name": "Ann", "source_id": "D1:1"}
    assert upcast("turn_recorded", 1, 2, old) == {
        "role": "user",
        "content": "Hi",
        "name": "Ann",
        "source_id": "D1:1",
    }


@pytest.mark.parametrize(("tokens", "expected"), [(0, {"tokens_out": 0}), (7, {"tokens_out": 7}), (None, {})])
def test_the_tokens_of_version_one_were_the_models_output(tokens: int | None, expected: dict[str, int]) -> None:
    new = upcast("turn_recorded", 1, 2, {"role": "assistant", "text": "", "tokens": tokens})
    assert new == {"role": "assistant", "content": "", **expected}


@given(st.dictionaries(st.text(), st.integers() | st.text()))
def test_an_upcaster_does_not_change_its_input(data: dict[str, Any]) -> None:
    before = dict(data)
    for type_, version in UPCASTERS:
        upcast(type_, version, version + 1, data)
    assert data == before


def test_data_of_todays_version_passes_unchanged() -> None:
    data = {"role": "user", "content": "Hi"}
    assert upcast("turn_recorded", 2, 2, data) is data


def test_the_lists_of_a_version_five_receipt_become_spans_and_their_union_its_state() -> None:
    old = {"tiers": [{"tier": "2", "tokens": 3, "seqs": [4, 5, 9]}], "dropped_seqs": [2, 3, 7], "notes": []}
    new = upcast("answer_receipt", 5, 6, old)
    assert new["tiers"] == [{"tier": "2", "tokens": 3, "turns": {"count": 3, "spans": ((4, 5), (9, 9))}}]
    assert new["dropped"] == {"count": 3, "spans": ((2, 3), (7, 7))}
    assert new["state"] == ((2, 5), (7, 7), (9, 9)) and "dropped_seqs" not in new


@pytest.mark.parametrize("wrong", [{"dropped_seqs": "2"}, {"tiers": [{"tier": "2", "tokens": 1, "seqs": ["x"]}]}])
def test_a_malformed_receipt_of_version_five_is_refused(wrong: dict[str, Any]) -> None:
    envelope = from_json((Path(__file__).parent.parent / "golden" / "answer_receipt.v5.json").read_bytes())
    with pytest.raises(InvalidEvent):
        decode(to_json(envelope | {"data": envelope["data"] | wrong}))
