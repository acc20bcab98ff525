"""Messages that are built without validation are what validation makes, and each copy is the caller's own."""

import copy
import pickle
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from turnlog.consumers.langgraph.items import Codec, Item, message_item, stored_item
from turnlog.consumers.langgraph.messages import KIND_OF, SHAPES, built, marked, said, turn_of

CODEC = Codec(JsonPlusSerializer())
CALL = {"name": "look", "args": {"n": [1, {"deep": 2}]}, "id": "c", "type": "tool_call"}
MESSAGES: list[BaseMessage] = [
    HumanMessage("plain", id="h"),
    HumanMessage("kept", id="k", name="ann", additional_kwargs={"a": {"deep": [1]}}, response_metadata={"b": [2]}),
    HumanMessage([{"type": "text", "text": "block"}], id="b"),
    AIMessage("answer", id="a"),
    AIMessage("", id="t", tool_calls=[CALL], usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    SystemMessage("be kind", id="s"),
    ToolMessage("found", id="f", tool_call_id="c", artifact={"rows": [1]}),
]
each_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: f"{m.type} {m.id}")


def items_of(message: BaseMessage) -> list[Item]:
    """The item as it is after a put, and as it is after a read from the tables."""
    turn = turn_of(message)
    assert turn is not None
    marker = marked(message, turn)
    assert marker is not None
    put = message_item("turn-1", marker, message)
    read = stored_item(put.marker, {"turn-1": said(turn)})
    assert read is not None
    return [put, read]


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


@pytest.mark.parametrize("kind", SHAPES)
def test_the_defaults_of_a_kind_are_those_of_validation(kind: str) -> None:
    shape = SHAPES[kind]
    needed = {"content": "x"} | ({"tool_call_id": "c"} if kind == "tool" else {})
    validated = shape.cls(**needed)
    made = built(shape, copy.deepcopy(shape.defaults) | needed)
    assert made == validated
    assert state_of(made)[1] == state_of(validated)[1]
    assert made.__dict__.keys() == shape.names


@each_message
def test_a_message_made_again_can_be_changed_copied_and_pickled(message: BaseMessage) -> None:
    for item in items_of(message):
        made = item.make(CODEC)
        for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.model_copy()):
            assert state_of(other) == state_of(made)
        made.content = "changed"
        assert (made.content, type(made)(**made.__dict__).content) == ("changed", "changed")


@each_message
def test_whatever_is_done_to_a_message_is_seen_and_reaches_no_other(message: BaseMessage) -> None:
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
    """Changes a field in place as deep as it goes, or sets it."""
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


def test_every_kind_has_messages_here() -> None:
    assert {KIND_OF[type(message)] for message in MESSAGES} == set(SHAPES)
