"""A string is found in bytes in every form in which a store may have written it."""

import json
import random
from base64 import b64encode
from uuid import UUID

import pytest
from helpers.sample_events import SOURCE
from hypothesis import given
from hypothesis import strategies as st

from turnlog.agent.privacy.erasure.string_search import Searched, SearchStrings, candidates, chosen, words_of
from turnlog.events.contracts import (
    CheckpointSaved,
    EntitiesFound,
    Entity,
    ToolCall,
    ToolResultBlock,
    ToolUseBlock,
    TurnRecorded,
)

SECRET = "Ann's cat is 琥珀, née Ämber"
WRITTEN = {
    "plain": SECRET,
    "in capitals": SECRET.upper(),
    "as JSON": json.dumps(SECRET),
    "as JSON in JSON": json.dumps(json.dumps(SECRET)),
    "as JSON without escapes": json.dumps(SECRET, ensure_ascii=False),
    **{f"in base64 at {n}": b64encode(b"x" * n + SECRET.encode() + b"yz").decode() for n in range(4)},
}


@pytest.mark.parametrize("form", WRITTEN)
def test_every_form_is_found(form: str) -> None:
    assert SearchStrings([SECRET]).within(b"before " + WRITTEN[form].encode() + b" after") == {0: 1}


def test_a_string_that_differs_by_one_character_is_not_found() -> None:
    assert SearchStrings([SECRET]).within(SECRET[:-1].encode() + b"?" + SECRET[1:].encode()) == {}


def test_a_string_divided_among_parts_is_found_once() -> None:
    data = b"a" * 50 + SECRET.encode() + b"b" * 50
    for size in (1, 7, 30, 64):
        searched = Searched(SearchStrings([SECRET, "nowhere to be found"]))
        for at in range(0, len(data), size):
            searched.add(data[at : at + size])
            searched.flush()
        assert dict(searched.found)[0] == searched.hits == 1


@given(st.lists(st.text(min_size=8, max_size=20), min_size=1, max_size=8), st.integers(0, 99))
def test_every_match_of_a_plain_search_is_found(strings: list[str], seed: int) -> None:
    chance = random.Random(seed)
    data = "".join(chance.choice([*strings, "…", "x"]) for _ in range(12)).encode(errors="replace")
    search_strings = SearchStrings([string for string in strings if string.isprintable()])
    numbers = search_strings.within(data)
    for number, string in enumerate(search_strings.strings):
        if string.encode(errors="replace") in data:
            assert number in numbers


def test_personal_strings_are_chosen() -> None:
    text = 'I was born on 2001-05-08 in Ürümqi. Mail ann@example.com, "passport" or 13812345678!\n林薇的猫'
    strings = list(candidates(text))
    assert {"ann@example.com", "13812345678", "林薇的猫", "I was born on 2001-05-08 in Ürümqi."} <= set(strings)
    assert "2001-05-08" not in strings and "passport" not in strings
    assert chosen(strings, 2) == ["ann@example.com", "13812345678"]
    assert len(chosen([*strings, *(f"sentence number {n} of many" for n in range(900))], 100)) == 100


def test_ids_of_events_are_not_personal() -> None:
    """Digits of an id may look like a phone number, and every event's id is unencrypted."""
    fields = {"event_id": UUID("01a061d4-bc98-7934-a201-289350018440"), "quote": "my friend Mia Lindqvist"}
    source = SOURCE.model_copy(update=fields)
    entity = Entity(type="PERSON", name="Mia Lindqvist", sources=(source,))
    assert list(words_of(EntitiesFound(entities=(entity,)))) == ["Mia Lindqvist", source.quote]


def test_versions_of_channels_are_not_personal() -> None:
    version = f"{7:032}.00d0123456789abc"
    checkpoint = {"channel_values": {"topic": "the cats of Ürümqi"}, "channel_versions": {"topic": version}}
    saved = CheckpointSaved(checkpoint_id="c", checkpoint=checkpoint, metadata={"city": "Zell am See"})
    assert list(words_of(saved)) == ["the cats of Ürümqi", "Zell am See"]


def test_ids_made_by_turnlog_and_models_are_not_personal() -> None:
    call = ToolCall(id="532515270", name="recall_memory", arguments='{"query": "passport XY1234567"}')
    blocks = (ToolUseBlock(id="call 12345678", name="f"), ToolResultBlock(tool_use_id="call 12345678", content="a b"))
    assert list(words_of(TurnRecorded(role="assistant", tool_calls=(call,)))) == [
        "XY1234567",
        "passport XY1234567",
    ]
    assert list(words_of(TurnRecorded(role="tool", content=blocks, tool_call_id="532515270"))) == []
    for made in ("call_3f532515270a1b2c", "12345678-1234-7123-8123-123456789012", "0.8234567812", "CHECKPOINT"):
        assert list(candidates(made)) == []


def test_personal_numbers_are_found_in_any_surrounding_text() -> None:
    said = "电话13812345678，身份证11010119900307888X。 IBAN DE89370400440532013000, +44 20 7946 0958."
    strings = set(candidates(said))
    assert {"13812345678", "11010119900307888X", "DE89370400440532013000", "+44 20 7946 0958"} <= strings


def test_found_strings_are_shown_masked() -> None:
    searched = Searched(SearchStrings([SECRET, "对花生过敏", "nowhere to be found"]))
    searched.add(f"{SECRET} 对花生过敏".encode())
    searched.flush()
    assert searched.masked == ["An…r (26 characters)", "对… (5 characters)"]
