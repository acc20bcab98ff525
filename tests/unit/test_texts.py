"""Lone surrogates and NUL become U+FFFD in values and in JSON, and nothing else changes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.events.texts import storable, valid_json

TEXTS = st.text(st.characters() | st.sampled_from('\ud800\udbff\udc00\udfff\0\\"u한\U0001f98a'))
VALUES = st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("caf\ud83d ok", "caf\ufffd ok"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83e\udd8a", "\U0001f98a"),
        ("a\0b", "a\ufffdb"),
        ("한국어 \\ud800", "한국어 \\ud800"),
    ],
)
def test_characters_that_no_store_accepts_are_replaced(text: str, stored: str) -> None:
    assert storable({text: [text, 5, None]}) == {stored: [stored, 5, None]}


@given(VALUES)
def test_every_value_can_be_stored_and_a_valid_one_stays(value: Any) -> None:
    stored = storable(value)
    assert "\\u0000" not in json.dumps(stored).replace("\\\\", "")
    assert json.loads(json.dumps(stored, ensure_ascii=False).encode()) == stored == storable(stored)


@given(VALUES, st.booleans())
def test_json_is_valid_unicode_and_otherwise_the_same(value: Any, is_ascii: bool) -> None:
    """Tests JSON as Python's json and JavaScript's JSON.stringify write it, and with encoded surrogates."""
    sent = valid_json(json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass"))
    assert storable(json.loads(sent.decode())) == storable(value)
    assert json.dumps(json.loads(sent), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": "\xff\xed"}', b'"\\', b'"\\u', b'"\\ud8', b'"\\ud800\\u', b"\xed\xa0"]
)
def test_malformed_json_stays_malformed(body: bytes) -> None:
    with pytest.raises(ValueError):
        json.loads(valid_json(body).decode())
