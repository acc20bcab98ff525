"""Sealed events are unreadable in the log, are restored completely with the key, and are lost without the key."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import pytest
from helpers.every_contract import EVERY_CONTRACT
from helpers.key_rings import KeysAtHand
from helpers.sample_events import MAY_8, event, turn
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from test_codec import IDS, TENANTS, TEXT

from turnlog.events.codec import decode, encode, unsealed
from turnlog.events.contracts import (
    CONTRACTS,
    ERASED,
    Erased,
    Event,
    EventData,
    Frozen,
    ThreadDeleted,
    ThreadOpened,
    TurnRecorded,
)
from turnlog.events.errors import InvalidEvent, KeyUnavailable
from turnlog.events.sealing import is_erased

KEYS, DESTROYED = KeysAtHand(), KeysAtHand(destroyed=True)
GOLDEN = Path(__file__).parent.parent / "golden" / "sealed" / "turn_recorded.v2.json"
DOCS = Path(__file__).parents[2] / "docs" / "privacy.md"
SAYING = [data for data in EVERY_CONTRACT if CONTRACTS[data.type].PERSONAL]  # type: ignore[attr-defined]
# Texts of contracts that stay unencrypted, with the reason.
CLEAR = {
    "an id, or a name that programs gave": {
        "agent",
        "by",
        "event_type",
        "envelope",  # as published, so that its sealed fields stay sealed
        "current_agent_key",
        "tool_call_id",
        "source_id",
        "parent",
        "conversation",
        "threads",
        "job",
        "key_id",
        "role",
        "scopes",
        "checkpoint_ns",
        "checkpoint_id",
        "checkpoint_ids",
        "parent_checkpoint_id",
        "run_id",
        "task_id",
        "task_path",
        "namespace",
        "key",
        "memory.rule",
        "source.thread",
        "memories",
        "calls",  # ids and names of tools in a plan; their arguments are sealed
        "call_id",
        "tool",
        "tools",
        "from_agent",
        "to_agent",
        "agents",
        "delegates",
        "code",
    },
    "what made it, and by which rules": {
        "model",
        "provider",
        "extractor",
        "derivation.provider",
        "derivation.model",
        "derivation.prompt_hash",
    },
    "a digest of far more than could be guessed": {"context_hash", "sha256", "digest"},
    "counts by our own names": {"rejected", "counts", "scanned", "found_in"},
    "what a server said": {"error"},
    "what the operator said; no key must be made for it": {"reason", "system_prompt", "name"},
    "one of two fixed lines of our own": {"doubt"},
    "where a file is": {"path"},
    "envelopes, which are sealed within": {"events"},
}


@given(st.sampled_from(EVERY_CONTRACT), IDS, TENANTS, IDS)
def test_a_sealed_event_opens_unchanged(data: EventData, thread: str, tenant: str, user: str) -> None:
    made = event(data, thread, tenant=tenant, user=user)
    assert decode(encode(made, KEYS), KEYS) == made


@given(TEXT, st.none() | TEXT)
def test_any_text_comes_back_whole(text: str, name: str | None) -> None:
    made = turn(text, name=name, user="ann")
    assert decode(encode(made, KEYS), KEYS) == made


@pytest.mark.parametrize("data", SAYING, ids=lambda data: data.type)
def test_a_sealed_document_holds_none_of_the_personal_values(data: EventData) -> None:
    made = event(data, user="ann", minutes=7)
    document = json.loads(encode(made, KEYS))
    assert {"sealed", "sealedkey"} <= document.keys()
    clear = json.loads(encode(made))
    for path in personal(type(data)):
        assert at(document["data"], path) is None
        for words in texts(at(clear["data"], path)):
            assert words not in json.dumps(document, ensure_ascii=False)


@pytest.mark.parametrize("data", EVERY_CONTRACT, ids=lambda data: data.type)
def test_without_the_key_an_event_is_valid_and_says_that_its_words_are_gone(data: EventData) -> None:
    made = event(data, user="ann")
    decoded = decode(encode(made, KEYS), DESTROYED)
    assert decoded.model_copy(update={"data": made.data}) == made
    assert is_erased(decoded) == (data in SAYING)
    assert not is_erased(made)
    kept = decoded.data.model_dump(exclude={path[0] for path in personal(type(data))})
    assert kept == made.data.model_dump(exclude={path[0] for path in personal(type(data))})


def test_the_numbers_of_a_sealed_turn_stay_readable() -> None:
    made = turn("my secret", "assistant", user="ann", model="m", tokens_in=3, tokens_out=5, latency_ms=8.5, agent="a")
    data = json.loads(encode(made, KEYS))["data"]
    clear = {"role": "assistant", "model": "m", "tokens_in": 3, "tokens_out": 5, "latency_ms": 8.5, "agent": "a"}
    assert data == {**clear, "origin": "program"}


@pytest.mark.parametrize("made", [turn("hello"), event(ThreadOpened(), user="ann"), turn("", user="ann")])
def test_events_without_a_user_or_without_words_are_written_unencrypted(made: Event) -> None:
    assert encode(made, KEYS) == encode(made)


@pytest.mark.parametrize("made", [turn("hello"), event(Erased(), user="ann"), event(ThreadDeleted(), user="ann")])
def test_no_key_is_needed_or_made_for_events_without_a_users_words(made: Event) -> None:
    assert encode(made, KeysAtHand(away=True)) == encode(made)


def test_events_of_a_user_whose_key_is_unavailable_are_not_written_unencrypted() -> None:
    with pytest.raises(KeyUnavailable, match="ann"):
        encode(turn("my secret", user="ann"), KeysAtHand(away=True))


def test_an_unavailable_key_does_not_make_an_event_malformed() -> None:
    with pytest.raises(KeyUnavailable):
        decode(encode(turn("my secret", user="ann"), KEYS), KeysAtHand(away=True))


def test_a_sealed_event_is_parked_if_no_keys_are_configured() -> None:
    with pytest.raises(InvalidEvent, match="there are no keys without TURNLOG_KEK"):
        decode(encode(turn("my secret", user="ann"), KEYS))


@pytest.mark.parametrize(
    "change",
    [
        {"id": str(UUID(int=7))},
        {"thread": "another"},
        {"type": "turnlog.thread_renamed", "dataschema": None},
        {"sealed": "AAAA"},
        {"sealed": "no base64!"},
        {"sealed": 5},
        {"sealed": ""},
        {"sealedkey": None},
        {"sealedkey": 5},
        {"user": None},
    ],
    ids=str,
)
def test_a_seal_that_was_changed_or_moved_to_another_event_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(encode(turn("my secret", user="ann"), KEYS)) | change
    with pytest.raises(InvalidEvent):
        decode(json.dumps(document).encode(), KEYS)


@given(st.data())
def test_no_bit_of_a_seal_can_be_changed(choice: st.DataObject) -> None:
    document = json.loads(encode(turn("my secret", user="ann"), KEYS))
    raw = bytearray(b64decode(document["sealed"]))
    raw[choice.draw(st.integers(0, len(raw) - 1))] ^= 1 << choice.draw(st.integers(0, 7))
    document["sealed"] = b64encode(raw).decode()
    with pytest.raises(InvalidEvent, match="was changed"):
        decode(json.dumps(document).encode(), KEYS)


def test_long_texts_take_less_room_sealed_than_unencrypted() -> None:
    made = turn("I ran along the river, 然后我喝了茶. " * 2_000, user="ann")
    assert len(encode(made, KEYS)) < len(encode(made)) / 2
    assert decode(encode(made, KEYS), KEYS) == made


def test_sealing_the_same_words_twice_gives_different_bytes() -> None:
    made = turn("my secret", user="ann")
    assert json.loads(encode(made, KEYS))["sealed"] != json.loads(encode(made, KEYS))["sealed"]


def test_the_golden_sealed_document_opens_for_ever() -> None:
    decoded = decode(GOLDEN.read_bytes(), KEYS)
    assert (decoded.user, decoded.time) == ("ann", MAY_8)
    assert decoded.data == TurnRecorded(
        role="user", content="My GPA is 3.80. 我的平均绩点是 3.80。", name="Ann", tokens_in=9, origin="person"
    )
    assert decode(GOLDEN.read_bytes(), DESTROYED).data == TurnRecorded(
        role="user", content=ERASED, tokens_in=9, origin="person"
    )


def test_a_sealed_event_is_shown_to_people_unsealed() -> None:
    made = turn("my secret", user="ann")
    assert unsealed(json.loads(encode(made, KEYS)), KEYS) == json.loads(encode(made))


def test_a_sealed_event_of_an_old_version_is_opened_before_it_is_upcast() -> None:
    document = json.loads(GOLDEN.read_bytes()) | {"dataschema": "urn:turnlog:turn_recorded:1"}
    document["data"] = {"role": "user", "tokens": 9}
    decoded = decode(json.dumps(document).encode(), DESTROYED)
    assert decoded.data == TurnRecorded(role="user", content=ERASED, tokens_out=9, origin="person")


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=lambda contract: contract.__name__)
def test_every_contract_says_what_is_personal_and_every_text_in_it_is_sealed_or_clear_for_a_reason(
    contract: Any,
) -> None:
    assert "PERSONAL" in vars(contract)
    reasons = set().union(*CLEAR.values())
    sealed = set(contract.PERSONAL)
    open_texts = {path for path in text_paths(contract) if not {path, path.split(".")[0]} & sealed}
    assert open_texts <= reasons, f"{contract.__name__}: seal {open_texts - reasons} or say why not"
    assert sealed <= set(all_paths(contract))


def test_the_documentation_lists_what_is_sealed() -> None:
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", DOCS.read_text("utf-8"), re.MULTILINE))
    sealed = {name: contract.PERSONAL for name, contract in CONTRACTS.items()}  # type: ignore[attr-defined]
    assert listed == {name: ", ".join(f"`{path}`" for path in paths) for name, paths in sealed.items() if paths}


def personal(contract: type[Frozen]) -> list[tuple[str, ...]]:
    return [tuple(path.split(".")) for path in contract.PERSONAL]  # type: ignore[attr-defined]


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def texts(value: Any) -> Iterator[str]:
    """Yields the longer texts of a JSON value except times; short texts may occur in an id by chance."""
    match value:
        case str() if len(value) > 5 and not value.startswith("2023-05-08T"):
            yield value
        case dict():
            for item in value.values():
                yield from texts(item)
        case list():
            for item in value:
                yield from texts(item)


def all_paths(contract: type[BaseModel]) -> Iterator[str]:
    """Yields the paths that PERSONAL may name: fields, and fields of models inside them (one level deep)."""
    for name, info in contract.model_fields.items():
        yield name
        for inner in models_in(info.annotation):
            yield from (f"{name}.{field}" for field in inner.model_fields)


def text_paths(contract: type[BaseModel]) -> Iterator[str]:
    for name, info in contract.model_fields.items():
        inner = models_in(info.annotation)
        for model in inner:
            yield from (f"{name}.{n}" for n, f in model.model_fields.items() if holds_text(f.annotation))
        if not inner and holds_text(info.annotation):
            yield name


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Returns the models that a field may contain, except in a tuple, which is sealed as a whole."""
    options = [annotation, *(get_args(annotation) if not is_collection(annotation) else ())]
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]


def is_collection(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list, dict)


def holds_text(annotation: Any) -> bool:
    if annotation in (str, Any):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return any(holds_text(f.annotation) for f in annotation.model_fields.values())
    if get_origin(annotation) is Literal:
        return False
    return any(holds_text(inner) for inner in get_args(annotation))
