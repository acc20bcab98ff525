"""Messages that are created without validation equal validated ones, and each reader gets separate objects."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from helpers.langgraph_messages import CODEC, MESSAGES, items_of
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from turnlog.consumers.langgraph.checkpoint.messages import KIND_OF, KINDS, message_of, to_messages, turn_of
from turnlog.consumers.langgraph.checkpoint.recorded import RecordedMessages, Turns
from turnlog.consumers.langgraph.checkpoint.values import LIST, REFS, Typed, resolved
from turnlog.events.errors import InvalidEvent

each_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: f"{m.type} {m.id}")


def state_of(message: BaseMessage) -> Any:
    fields_set, extra, private = (
        getattr(message, f"__pydantic_{name}__") for name in ("fields_set", "extra", "private")
    )
    return type(message), message.__dict__, fields_set, extra, private


@each_message
def test_a_message_made_again_is_the_validated_one(message: BaseMessage) -> None:
    validated = type(message)(**message.__dict__)
    for item in items_of(message):
        for made in (item.make(CODEC), item.make(CODEC)):
            assert made == validated
            assert state_of(made) == state_of(validated)
            assert made.model_dump(exclude_unset=True) == validated.model_dump(exclude_unset=True)
            assert list(made.__dict__) == list(validated.__dict__)
            assert item.matches(made, CODEC)


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_of_a_kind_are_those_of_validation(kind: str) -> None:
    needed: dict[str, Any] = {"content": "x"} | ({"tool_call_id": "c"} if kind == "tool" else {})
    validated = KINDS[kind](**needed)
    turn = needed["content"] if kind != "tool" else {"content": "x", "name": None, "tool_call_id": "c"}
    made = message_of(kind, turn, None, None)
    assert made == validated
    assert state_of(made)[1] == state_of(validated)[1]
    assert made.model_fields_set == KINDS[kind].model_fields.keys()


@each_message
def test_a_message_made_again_can_be_changed_copied_and_pickled(message: BaseMessage) -> None:
    for item in items_of(message):
        made = item.make(CODEC)
        for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.model_copy()):
            assert state_of(other) == state_of(made)
        made.content = "changed"
        assert (made.content, type(made)(**made.__dict__).content) == ("changed", "changed")


@each_message
def test_every_kind_of_change_to_a_message_is_detected_and_affects_no_other(message: BaseMessage) -> None:
    for item in items_of(message):
        for name in message.__dict__:
            made, other = item.make(CODEC), item.make(CODEC)
            before = copy.deepcopy(state_of(other))
            spoil(made, name)
            assert not item.matches(made, CODEC)
            assert state_of(other) == before
            assert state_of(item.make(CODEC)) == before
        made = item.make(CODEC)
        made.__pydantic_fields_set__.clear()
        made.extra_field = 1
        assert not item.matches(made, CODEC)
        assert state_of(item.make(CODEC)) == before


def spoil(message: BaseMessage, name: str) -> None:
    """Changes a field in place at its deepest level, or sets it."""
    value = getattr(message, name)
    while isinstance(value, list | dict) and value:
        inner = value[0] if isinstance(value, list) else next(iter(value.values()))
        if not isinstance(inner, list | dict):
            break
        value = inner
    if isinstance(value, list):
        value.append("spoilt")
    elif isinstance(value, dict):
        value["spoilt"] = True
    else:
        setattr(message, name, "spoilt")


def test_texts_that_no_store_holds_are_replaced_in_the_turn_and_kept_in_the_message() -> None:
    message = HumanMessage("nul \x00 half \ud83d end", id="h", name="a\x00n")
    turn = turn_of(message)
    assert turn is not None
    assert (turn.content, turn.name) == ("nul \ufffd half \ufffd end", "a\ufffdn")
    assert [item.make(CODEC) for item in items_of(message)] == [message, message]


def test_every_kind_has_messages_here() -> None:
    assert {KIND_OF[type(message)] for message in MESSAGES} == set(KINDS)


CHANGES: list[Callable[[BaseMessage], object]] = [
    lambda message: setattr(message, "content", "changed"),
    lambda message: message.additional_kwargs.update(more=1),
    lambda message: message.response_metadata.update(more=[1]),
    lambda message: setattr(message, "own", 1),
    lambda message: message.__dict__.pop("name"),
    lambda message: object.__setattr__(message, "__pydantic_private__", {"own": 1}),
]


@pytest.mark.parametrize("change", CHANGES)
@each_message
def test_a_changed_message_is_detected_and_affects_no_other(
    message: BaseMessage, change: Callable[[BaseMessage], object]
) -> None:
    for item in items_of(message):
        value, other = item.make(CODEC), item.make(CODEC)
        assert item.matches(value, CODEC)
        change(value)
        assert not item.matches(value, CODEC)
        assert item.matches(other, CODEC)
        assert item.matches(item.make(CODEC), CODEC)


@pytest.mark.parametrize("which", [0, 1], ids=["put", "read"])
def test_two_messages_share_no_mutable_value(which: int) -> None:
    stored = [items_of(message)[which] for message in MESSAGES]
    made = [item.make(CODEC) for item in [*stored, *stored]]
    held = [value for message in made for value in vars(message).values() if type(value) in (dict, list)]
    assert len(set(map(id, held))) == len(held)


def test_a_message_of_another_class_with_the_same_fields_is_another() -> None:
    class Own(HumanMessage):
        pass

    item = items_of(HumanMessage("hi", id="h"))[0]
    assert item.matches(HumanMessage("hi", id="h"), CODEC)
    assert not item.matches(Own("hi", id="h"), CODEC)


def test_a_message_without_an_id_is_recognised_as_the_object_that_was_read() -> None:
    recorded, turns = RecordedMessages(), Turns(record=True)
    item = items_of(AIMessage("hello"))[1]
    read, other = item.make(CODEC), item.make(CODEC)
    recorded.made([(item, read)])
    assert recorded.item(read, CODEC, turns) is item
    read.id = "a reducer gave it one"
    assert recorded.item(read, CODEC, turns).marker["turn"] == item.marker["turn"]
    assert not turns.new
    recorded.item(other, CODEC, turns)
    assert len(turns.new) == 1


@pytest.mark.parametrize("encoding", [LIST, REFS])
@pytest.mark.parametrize("data", [b"[" * 10_000, b"{", b"\xff"], ids=["deep", "cut", "bytes"])
def test_a_forged_value_is_an_error_with_its_cause(encoding: str, data: bytes) -> None:
    with pytest.raises(InvalidEvent, match="cannot be read as JSON"):
        resolved(Typed(encoding, data), {}, {})


def test_blocks_of_langchain_become_ours() -> None:
    message = HumanMessage(
        [
            {"type": "text", "text": "look:"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "image", "url": "https://example.org/b.png"},
            {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
            "and say",
        ]
    )
    thinking = AIMessage([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a dog"}])
    asked, said = to_messages([message, thinking], "c")
    assert asked.content == [
        {"type": "text", "text": "look:"},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image", "url": "https://example.org/b.png"},
        {"type": "text", "text": "and say"},
    ]
    assert said.content == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a dog"}]


def test_a_message_whose_words_changed_is_counted_again() -> None:
    before, after = (to_messages([HumanMessage(text, id="1")], "c")[0] for text in ("short", "now much longer"))
    assert before.event_id != after.event_id
