"""Messages that are built without validation are what validation makes, and each copy is the caller's own."""

import copy
import pickle
from typing import Any

import pytest
from graph_messages import CODEC, MESSAGES, items_of
from langchain_core.messages import BaseMessage

from turnlog.consumers.langgraph.messages import KIND_OF, SHAPES, FieldNames, built

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


@pytest.mark.parametrize("kind", SHAPES)
def test_the_defaults_of_a_kind_are_those_of_validation(kind: str) -> None:
    shape = SHAPES[kind]
    needed = {"content": "x"} | ({"tool_call_id": "c"} if kind == "tool" else {})
    validated = shape.cls(**needed)
    made = built([shape.cls], [copy.deepcopy(shape.defaults) | needed])[0]
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


@each_message
def test_nothing_done_to_the_names_of_a_message_changes_them(message: BaseMessage) -> None:
    for item in items_of(message):
        made = item.make(CODEC)
        names = made.model_fields_set
        before = set(names)
        names.add("own")
        names.update({"own"}, {"other"})
        names.discard("content")
        names.remove("content")
        names.difference_update(before)
        names.intersection_update(set())
        names.symmetric_difference_update(before)
        names.clear()
        with pytest.raises(TypeError, match="take them from a copy"):
            names.pop()
        assert item.make(CODEC).model_fields_set == names == before


@pytest.mark.parametrize("operator", ["__ior__", "__iand__", "__isub__", "__ixor__"])
def test_a_message_whose_names_are_set_anew_has_names_of_its_own(operator: str) -> None:
    names, plain = SHAPES["ai"].names, set(SHAPES["ai"].names)
    changed = getattr(names, operator)({"content", "own"})
    assert changed == getattr(plain.copy(), operator)({"content", "own"})
    assert type(changed) is set
    assert names == plain


def test_what_is_made_of_the_names_is_a_set_like_any_other() -> None:
    names = SHAPES["human"].names
    for made in (
        names.copy(),
        copy.copy(names),
        copy.deepcopy(names),
        pickle.loads(pickle.dumps(names)),
        names | {"x"},
    ):
        assert type(made) is set
        made.add("own")
        assert "own" in made
        assert "own" not in names
    assert type(names) is FieldNames


def test_a_copy_of_a_message_counts_a_field_of_the_callers_own() -> None:
    made = items_of(MESSAGES[0])[0].make(CODEC).model_copy(update={"own": 1})
    made.other = 2
    assert made.model_fields_set == {*SHAPES["human"].names, "own", "other"}
    assert made.model_dump(exclude_unset=True)["own"] == 1
