"""Old versions of event data become new ones step by step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.events.contracts.upcasters import UPCASTERS, upcast


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
def test_an_upcaster_leaves_what_it_was_given_as_it_was(data: dict[str, Any]) -> None:
    before = dict(data)
    for type_, version in UPCASTERS:
        upcast(type_, version, version + 1, data)
    assert data == before


def test_data_of_todays_version_passes_unchanged() -> None:
    data = {"role": "user", "content": "Hi"}
    assert upcast("turn_recorded", 2, 2, data) is data
