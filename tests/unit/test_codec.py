"""Events survive encoding to CloudEvents JSON and decoding, and invalid events are refused with clear errors."""

import json
import re
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from helpers.every_contract import EVERY_CONTRACT
from helpers.sample_events import BLOCKS, MAY_8, event, turn
from hypothesis import given
from hypothesis import strategies as st

from turnlog.events.codec import MAX_BYTES, decode, encode, parsed
from turnlog.events.contracts import Event, EventData, ToolUseBlock, TurnRecorded
from turnlog.events.errors import FutureEventVersion, InvalidEvent, InvalidToken, UnknownEventType

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=120)
TENANTS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def envelope(**changes: Any) -> bytes:
    """Returns a valid envelope with changed attributes; a value of None removes the attribute."""
    good = json.loads(encode(turn("hello")))
    return json.dumps({key: value for key, value in (good | changes).items() if value is not None}).encode()


@given(TEXT, IDS, TENANTS, st.none() | IDS, st.dictionaries(TEXT, JSON, max_size=3), st.timezones())
def test_an_encoded_event_decodes_to_an_equal_event(
    text: str, thread: str, tenant: str, user: str | None, given_input: dict[str, Any], zone: Any
) -> None:
    data = TurnRecorded(role="user", content=(*BLOCKS, ToolUseBlock(id="c", name=text, input=given_input)), name=text)
    made = Event(time=MAY_8.astimezone(zone), tenant=tenant, thread=thread, user=user, data=data)
    assert decode(encode(made)) == made


@pytest.mark.parametrize("data", EVERY_CONTRACT, ids=lambda data: data.type)
def test_the_cloudevents_sdk_takes_every_event(data: EventData) -> None:
    made = event(data, thread="t/1", user="ann", tenant="acme")
    cloud_event = JSONFormat().read(CloudEvent, encode(made))
    assert (cloud_event.get_id(), cloud_event.get_type()) == (str(made.id), f"turnlog.{data.type}")
    assert (cloud_event.get_subject(), cloud_event.get_time()) == ("t/1", made.time)
    assert (cloud_event.get_extension("tenant"), cloud_event.get_extension("user")) == ("acme", "ann")
    assert decode(JSONFormat().write(cloud_event)) == made


@pytest.mark.parametrize("data", EVERY_CONTRACT, ids=lambda data: data.type)
def test_attribute_names_are_lower_case_letters_and_digits_and_values_are_strings(data: EventData) -> None:
    attributes = json.loads(encode(event(data, user="ann", causation=turn().id)))
    del attributes["data"]
    assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in attributes)
    assert all(isinstance(value, str) for value in attributes.values())


def test_a_nul_in_a_text_is_kept_in_the_log() -> None:
    made = turn("a\0b")
    assert decode(encode(made)) == made


def test_a_lone_surrogate_is_replaced_before_it_is_stored() -> None:
    call = ToolUseBlock(id="c", name="search", input={"\ud83d": ["\ude00", "\ud83d\ude00"]})
    made = turn("half a pair: \ud83d")
    assert decode(encode(made)).data.content == "half a pair: \ufffd"
    nested = made.model_copy(update={"data": made.data.model_copy(update={"content": (call,)})})
    assert decode(encode(nested)).data.content[0].input == {"\ufffd": ["\ufffd", "\U0001f600"]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"id": "\xff"}', "not JSON"),
        (b'"text"', "not a JSON object"),
        (envelope(specversion="0.3"), "CloudEvents 1.0 is needed"),
        (envelope(id="not a uuid"), "id: "),
        (envelope(id=None), "id: "),
        (envelope(source=None), "source: "),
        (envelope(time="2023-05-08T13:56:00"), "timezone"),
        (envelope(time="9999-12-31T23:59:59-23:59"), "should be less than 9999-01-01T00:00:00Z"),
        (envelope(time="0001-01-01T00:00:00+23:59"), "should be greater than or equal to 1970-01-01T00:00:00Z"),
        (envelope(time="1970-01-01T00:00:00+00:01"), "should be greater than or equal to 1970-01-01T00:00:00Z"),
        (envelope(time="9998-12-31T23:59:59-00:01"), "should be less than 9999-01-01T00:00:00Z"),
        (b'{"data":' + b"[" * 10_000, "recursion limit"),
        (b'{"data":' + b'{"a":' * 10_000, "recursion limit"),
        (b'{"id":' + b"1" * 10_000 + b"}", "number out of range"),
        (b'{"id":"\\ud800"}', "not JSON"),
        (b" " * (MAX_BYTES + 1), "more than 67,108,864"),
        (envelope(thread=None, subject=None), "'thread' is missing"),
        (envelope(thread=5), "not a string"),
        (envelope(user=""), "user id is empty"),
        (envelope(tenant="a.b"), "no valid name"),
        (envelope(data=[1]), "not a JSON object"),
        (envelope(data=None), "data.turn_recorded.role: Field required"),
        (envelope(data={"role": "king"}), "data.turn_recorded.role"),
        (envelope(data={"role": "user", "surprise": 1}), "Extra inputs are not permitted"),
        (envelope(dataschema="urn:turnlog:turn_recorded:0"), "does not fit type"),
        (envelope(dataschema="urn:turnlog:turn_recorded:³"), "does not fit type"),
        (envelope(dataschema="urn:turnlog:turn_recorded:" + "9" * 5_000), "does not fit type"),
        (envelope(dataschema="urn:turnlog:thread_opened:1"), "does not fit type"),
    ],
)
def test_malformed_events_are_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=re.escape(reason)):
        decode(body)


def nested(arrays: int, innermost: str) -> str:
    return '{"a":' + "[" * arrays + innermost + "]" * arrays + "}"


@pytest.mark.parametrize(
    ("largest", "too_large"),
    [
        (nested(199, "1"), nested(200, "1")),
        (nested(199, "[]"), nested(200, "[]")),
        (nested(199, "{}"), nested(200, "{}")),
        (nested(0, "9" * 4_300), nested(0, "9" * 4_301)),
        (nested(0, "9" * 4_300 + ".5"), nested(0, "9" * 4_301 + ".5")),
    ],
)
def test_a_body_is_refused_beyond_the_limits_of_nesting_and_digits(largest: str, too_large: str) -> None:
    assert parsed(largest)
    with pytest.raises(InvalidEvent, match="the body is not JSON"):
        parsed(too_large)


@pytest.mark.parametrize("type_", ["turnlog.mood_changed", "turn_recorded", "other.turn_recorded", 7, None])
def test_an_unknown_type_is_named(type_: Any) -> None:
    with pytest.raises(UnknownEventType, match="is unknown to this turnlog"):
        decode(envelope(type=type_))


def test_a_version_from_the_future_asks_for_an_upgrade() -> None:
    with pytest.raises(FutureEventVersion, match=r"turn_recorded version 4 is newer than 3.*upgrade"):
        decode(envelope(dataschema="urn:turnlog:turn_recorded:4"))


def test_without_a_dataschema_the_newest_version_is_meant() -> None:
    assert decode(envelope(dataschema=None)).data == turn("hello").data


def test_a_foreign_producer_may_leave_out_thread_and_tenant() -> None:
    decoded = decode(envelope(thread=None, tenant=None))
    assert (decoded.thread, decoded.tenant) == ("t", "default")


@pytest.mark.parametrize("thread", ["", "a\0b", "x" * 10_000, "\ud800"])
def test_ids_that_no_store_can_hold_are_refused_on_both_ways(thread: str) -> None:
    with pytest.raises(InvalidToken):
        encode(turn(thread=thread))
    with pytest.raises(InvalidEvent):
        decode(envelope(thread=thread))


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "traceparent",
    [
        *(
            "",
            "a-<script>-b-c",
            5,
            ["00"],
            f"00-{TRACE}-{SPAN}",
            f"00-{TRACE}-{SPAN}-01-more",
            f"00-{TRACE}-{SPAN}-01\n",
        ),
        *(f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"),
        f"ff-{TRACE}-{SPAN}-01",
    ],
)
def test_a_malformed_traceparent_is_left_out_and_the_event_kept(traceparent: Any) -> None:
    decoded = decode(envelope(traceparent=traceparent))
    assert (decoded.traceparent, decoded.type) == (None, "turn_recorded")
    assert decode(envelope(traceparent=f"00-{TRACE}-{SPAN}-01")).traceparent == f"00-{TRACE}-{SPAN}-01"
