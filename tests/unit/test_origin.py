"""Every turn records whose words it contains, and only a person's own words are evidence for memories."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ChatMessage, HumanMessage

from turnlog.agent.answering.turns import shown
from turnlog.agent.context.tokens import counter_for
from turnlog.agent.context.wire import WireOptions, to_wire
from turnlog.agent.conversations.sessions.history import build_history
from turnlog.agent.conversations.sessions.value import session_value
from turnlog.agent.memory.extraction.evidence import evidence, own_words, quoted_ranges, said_text
from turnlog.agent.models.offline_chat import said_before
from turnlog.consumers.langgraph.checkpoint.messages import turn_of
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import Event, Recorded, SessionCreated, TurnOrigin, TurnRecorded
from turnlog.projectors.models.sessions.state import evolve, message_of

SUMMARY = "Here is a summary of the conversation to date:\n\nThe user is called Ann and is allergic to nuts."
RESULT = [{"type": "tool_result", "tool_use_id": "c", "content": "I am vegan."}]


def origin(role: str = "user", content: Any = "I am vegan.", name: str | None = None, user: str | None = "ann") -> str:
    data = TurnRecorded.model_validate({"role": role, "content": content, "name": name})
    turn = Event(thread="t", user=user, data=data).data
    assert isinstance(turn, TurnRecorded) and turn.origin is not None
    return turn.origin


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ({}, "person"),
        ({"user": None}, "person"),
        ({"name": "Ann"}, "person"),
        ({"name": "ANN.", "user": "ann@example.org"}, "person"),
        ({"name": "user"}, "person"),
        ({"name": "用户"}, "person"),
        ({"name": "bob"}, "participant"),
        ({"name": "Annabel"}, "participant"),
        ({"name": "researcher", "user": None}, "participant"),
        ({"name": "SummarizationMiddleware"}, "program"),
        ({"content": SUMMARY}, "program"),
        ({"content": f"\n{SUMMARY}", "name": "bob"}, "program"),
        ({"content": "Please write: Here is a summary of the conversation to date:"}, "person"),
        ({"content": "> I am vegan.\n> Bob"}, "quoted"),
        ({"content": "```\nI am vegan.\n```"}, "quoted"),
        ({"content": "> Are you vegan?\nYes."}, "person"),
        ({"content": "if a > b then a"}, "person"),
        ({"content": "?!"}, "person"),
        ({"content": RESULT}, "tool"),
        ({"content": [*RESULT, {"type": "text", "text": "I am vegan."}]}, "person"),
        ({"role": "tool"}, "tool"),
        ({"role": "assistant"}, "program"),
        ({"role": "system", "name": "ann"}, "program"),
    ],
)
def test_the_origin_follows_from_role_name_user_and_form(turn: dict[str, Any], expected: str) -> None:
    assert origin(**turn) == expected


def test_an_origin_that_the_sender_gives_stays() -> None:
    given_one = Event(thread="t", user="u-17", data=TurnRecorded(role="user", name="Ann Lee", origin="person"))
    assert isinstance(given_one.data, TurnRecorded) and given_one.data.origin == "person"
    assert decode(encode(given_one)) == given_one


def test_a_turn_of_version_two_gets_its_origin_when_it_is_read() -> None:
    stored = encode(Event(thread="t", user="ann", data=TurnRecorded(role="user", content="I am vegan.", name="bob")))
    old = stored.replace(b"turn_recorded:3", b"turn_recorded:2").replace(b',"origin":"participant"', b"")
    assert b"origin" not in old
    turn = decode(old).data
    assert isinstance(turn, TurnRecorded) and turn.origin == "participant"


@pytest.mark.parametrize(
    "message",
    [
        HumanMessage("I am vegan.", additional_kwargs={"lc_source": "summarization"}),
        HumanMessage("I am vegan.", additional_kwargs={"lc_source": "pinned_skill", "skill": {}}),
        HumanMessage("I am vegan.", response_metadata={"lc_source": "summarization"}),
        HumanMessage("I am vegan.", example=True),
        HumanMessage("I am vegan.", id="do-not-render-1"),
    ],
)
def test_messages_of_middleware_have_the_origin_program(message: HumanMessage) -> None:
    turn = turn_of(message)
    assert turn is not None and (turn.role, turn.origin) == ("user", "program")


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("user", ("user", None, "person")),
        ("human", ("user", None, "person")),
        ("ai", ("assistant", None, "program")),
        ("model", ("assistant", None, "program")),
        ("developer", ("system", None, "program")),
        ("function", ("tool", None, "tool")),
        ("critic", ("user", "critic", "participant")),
    ],
)
def test_the_role_of_a_chat_message_says_who_speaks(role: str, expected: Any) -> None:
    turn = turn_of(ChatMessage(role=role, content="I am vegan."))
    assert turn is not None
    turn = turn.of("ann")
    assert (turn.role, turn.name, turn.origin) == expected


@pytest.mark.parametrize("kind", ["text-plain", "document", "tool_result"])
def test_the_text_of_an_attached_file_is_not_the_persons(kind: str) -> None:
    part: Any = {"type": kind, "text": "I am vegan.\n</document>\nI eat fish.", "mime_type": "text/plain"}
    turn = turn_of(HumanMessage([{"type": "text", "text": "See my file."}, part]))
    assert turn is not None
    text = said_text([block.model_dump() for block in turn.content if not isinstance(block, str)])
    assert "I am vegan." in text and own_words(text).strip() == "See my file."


def message(text: str, **more: Any) -> Any:
    made = Event(thread="t", user="ann", data=TurnRecorded(role="user", content=text, **more))
    assert isinstance(made.data, TurnRecorded)
    return message_of(Recorded(made, 1, 0, made.time), made.data)


def test_the_transcript_shows_origin_and_quoted_parts() -> None:
    text = "Bob wrote:\n> I am vegan.\n> Bob\nI eat fish."
    turn = shown(message(text))
    assert turn.origin == "person"
    assert [text[start:end] for start, end in turn.quoted] == ["> I am vegan.\n> Bob"]
    assert shown(message(text, name="bob")).quoted == []


@pytest.mark.parametrize(("name", "origin"), [("bob", "participant"), (None, "program"), (None, "quoted")])
def test_models_answers_and_sessions_name_the_others(name: str | None, origin: TurnOrigin) -> None:
    turn = message("I keep three parrots.", name=name, origin=origin)
    wire = [wired for asked in (turn, message("Who keeps parrots?")) for wired in to_wire(asked, WireOptions())]
    assert [wired.get("name") for wired in wire] == [name or origin, None]
    assert [quote.speaker for quote in said_before(wire)] == [name or origin]
    begun = Event(thread="t", user="ann", data=SessionCreated())
    state = evolve(None, Recorded(begun, 1, 0, begun.time))
    assert state is not None
    state = replace(state, segment=(turn, message("Hi.")))
    shown_there = session_value(state).message_context.window_messages
    assert [(shown_turn.name, shown_turn.origin) for shown_turn in shown_there] == [(name, origin), (None, None)]
    history = build_history("", [[turn]], "", state.rules, counter_for("m")).history
    assert history == f"{name or origin.title()}: I keep three parrots."


@given(st.text("a>`\n .", max_size=60))
def test_quoted_parts_and_own_words_make_up_the_text(text: str) -> None:
    ranges, words = quoted_ranges(text), own_words(text)
    inside = {at for start, end in ranges for at in range(start, end)}
    assert all(words[at] == text[at] for at in range(len(text)) if at not in inside)
    assert all(not words[at].strip() for at in inside)


@pytest.mark.parametrize("other", ["participant", "tool", "program", "quoted"])
def test_only_turns_of_the_person_are_evidence(other: TurnOrigin) -> None:
    turns = [message("I am vegan."), message("I am vegan.", origin=other)]
    own, others = evidence(turns, "t", "ann")
    assert (len(own), others) == (1, 0 if other == "tool" else 1)
