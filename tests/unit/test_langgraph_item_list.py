"""A list's messages compared and made all at once are what they are one by one."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
from graph_messages import CODEC, MESSAGES, items_of
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from turnlog.consumers.langgraph.item_list import MAX_AHEAD, ItemList
from turnlog.consumers.langgraph.items import Item, value_item

PUT, READ = ([items_of(message)[at] for message in MESSAGES] for at in (0, 1))
OTHERS: list[Any] = [7, "text", None, {"a": [1]}]
CHANGES: list[Callable[[BaseMessage], object]] = [
    lambda message: setattr(message, "content", "changed"),
    lambda message: message.additional_kwargs.update(more=1),
    lambda message: message.response_metadata.update(more=[1]),
    lambda message: setattr(message, "own", 1),
    lambda message: message.__dict__.pop("name"),
    lambda message: object.__setattr__(message, "__pydantic_private__", {"own": 1}),
]
items = st.lists(st.sampled_from([*PUT, *READ, *(value_item(value, CODEC) for value in OTHERS)]), max_size=12)


@given(items, items, st.integers(0, 24), st.booleans())
def test_a_list_makes_what_its_items_make(first: list[Item], more: list[Item], count: int, is_ahead: bool) -> None:
    whole = ItemList(first)
    expected = [item.make(CODEC) for item in first]
    assert whole.make(len(first), CODEC) == expected
    whole.begins(expected)
    if is_ahead:
        whole.make_ahead(CODEC)
    whole.extend(more)
    for _ in ("as it stands", "once all was looked at"):
        made = whole.make(count, CODEC)
        assert made == [item.make(CODEC) for item in [*first, *more][:count]]
        assert list(map(type, made)) == [type(item.make(CODEC)) for item in [*first, *more][:count]]
        whole.begins(made)


@given(items, st.integers(0, 3), st.booleans())
def test_a_value_begins_with_the_items_when_each_matches(own: list[Item], more: int, is_short: bool) -> None:
    whole = ItemList(own)
    value = [*whole.make(len(own), CODEC), *OTHERS[:more]]
    assert whole.begins(value) == all(item in PUT or item in READ for item in own)
    if own and is_short:
        assert not whole.begins(value[: len(own) - 1])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", range(len(MESSAGES)))
@pytest.mark.parametrize("which", [0, 1], ids=["put", "read"])
@pytest.mark.parametrize(
    "before",
    [lambda whole: None, lambda whole: whole.begins([]), lambda whole: whole.begins([]) or whole.make_ahead(CODEC)],
    ids=["not compared", "compared", "made ahead"],
)
def test_a_message_that_was_changed_is_seen_and_reaches_no_other(
    before: Callable[[ItemList], object], which: int, at: int, change: Callable[[BaseMessage], object]
) -> None:
    stored = [items_of(message)[which] for message in MESSAGES]
    whole = ItemList(stored)
    before(whole)
    value, other = whole.make(len(stored), CODEC), whole.make(len(stored), CODEC)
    assert whole.begins(value)
    change(value[at])
    assert not whole.begins(value)
    assert whole.begins(other)
    assert whole.begins(whole.make(len(stored), CODEC))


@pytest.mark.parametrize("which", [0, 1], ids=["put", "read"])
def test_nothing_that_can_be_changed_is_in_two_messages(which: int) -> None:
    stored = [items_of(message)[which] for message in MESSAGES]
    made = [*ItemList(stored).make(len(stored), CODEC), *ItemList(stored).make(len(stored), CODEC)]
    held = [value for message in made for value in vars(message).values() if type(value) in (dict, list)]
    assert len(set(map(id, held))) == len(held)


def test_what_is_made_ahead_is_given_out_once_with_what_came_after() -> None:
    messages = [HumanMessage(str(number), id=str(number)) for number in range(5)]
    whole = ItemList([items_of(message)[0] for message in messages[:3]])
    assert not whole.make_ahead(CODEC), "it may be only read"
    assert whole.begins(messages[:3])
    assert whole.make_ahead(CODEC)
    assert not whole.make_ahead(CODEC), "they are there"
    ahead = whole._ahead[:]
    whole.extend(items_of(message)[0] for message in messages[3:])
    first, second = whole.make(5, CODEC), whole.make(5, CODEC)
    assert first == second == messages
    assert all(map(operator.is_, first, ahead))
    assert not any(map(operator.is_, first, second))
    assert whole.make_ahead(CODEC)
    assert whole.make(2, CODEC) == messages[:2], "a look at an older state"


def test_only_messages_are_made_ahead_and_not_too_many() -> None:
    message = items_of(HumanMessage("hi", id="h"))[0]

    def is_made(*items: Item) -> bool:
        whole = ItemList(items)
        whole.begins([])
        return whole.make_ahead(CODEC)

    assert not is_made()
    assert not is_made(message, value_item(7, CODEC))
    assert is_made(*[message] * MAX_AHEAD)
    assert not is_made(*[message] * (MAX_AHEAD + 1))


def test_a_message_of_another_class_with_the_same_fields_is_another() -> None:
    whole = ItemList(items_of(HumanMessage("hi", id="h"))[:1])
    assert whole.begins([HumanMessage("hi", id="h")])

    class Own(HumanMessage):
        pass

    assert not whole.begins([Own("hi", id="h")])


def test_items_without_an_id_come_with_their_values_as_far_as_there_are_any() -> None:
    named, nameless = items_of(HumanMessage("hi", id="h"))[0], items_of(AIMessage("hello"))[0]
    whole = ItemList([named, nameless, named])
    assert list(whole.nameless(["a", "b", "c"])) == [(nameless, "b")]
    whole.extend([nameless, nameless])
    assert list(whole.nameless(["a", "b", "c", "d"])) == [(nameless, "b"), (nameless, "d")]
    assert list(whole.nameless(["a"])) == []
