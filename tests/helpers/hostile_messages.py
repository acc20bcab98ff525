"""Makes malformed and hostile messages, the same in every run: golden events with one defect each.

All are published on subjects of the tenants `default` and `acme`, on the threads `hostile-1`, `hostile-2` … and on the
memory threads of users with these names. Their bodies may claim other places.
"""

import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

from turnlog.events.codec import encode
from turnlog.events.contracts import Event
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread, publish_subject, thread_token

GOLDEN = Path(__file__).parent.parent / "golden"
VICTIM = {"tenant": "default", "thread": "talk-ann", "user": "ann"}
NUL, SURROGATE, BIDI = "a\0b", "\ud800", "\u202e\u0085\x1b[2J"
TIMES = (
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "1969-12-31T23:59:59Z",
    "2023-05-08T13:56:00",
    1e300,
    "",
)
HUGE = (2**31, 2**63, -(2**63), 10**400, -1, 1.5, "1", None, True, [], {})
IDS = ("", "x" * 600, NUL, SURROGATE, BIDI, 5, None, ["t"], {"t": 1}, "memories/ann", "jobs/decay", "*", ">", "a.b c")
ATTRIBUTES = ("specversion", "type", "id", "source", "time", "user", "dataschema", "causation", "traceparent")
VERSIONS = ("urn:turnlog:turn_recorded:0", "urn:turnlog:turn_recorded:99", "urn:turnlog:thread_opened:1", "", 5, None)


class Hostile(NamedTuple):
    """A hostile message. subject: its subject without `turnlog.`. name: the defect."""

    name: str
    subject: str
    body: bytes
    headers: dict[str, str] | None = None


async def forge(log: Log, event: Event) -> None:
    """Publishes the event like any NATS client could, with its id as the message id."""
    subject = publish_subject(event.tenant, event.thread, event.type)
    await log.nc.jetstream().publish(subject, encode(event), headers={"Nats-Msg-Id": str(event.id)})


def corpus() -> list[Hostile]:
    threads = (f"hostile-{number}" for number in itertools.count(1))
    made = []
    for name, type_, body in _bodies():
        tenant, thread = ("default", "acme")[len(made) % 2], next(threads)
        if name.startswith(ON_MEMORIES):
            body["user"], thread = thread, memory_thread(thread)
        if isinstance(body, dict):
            body = _written(_at_home(body, tenant, thread, len(made)))
        made.append(Hostile(name, f"{tenant}.{thread_token(thread)}.{type_}", body))
    return [*made, *_behind(made)]


def plain_turn(message: Hostile) -> Hostile:
    """Returns a harmless turn to publish in place of a hostile message, so that other events keep their sequences."""
    tenant, token, _ = message.subject.split(".")
    body = _at_home(golden("turn_recorded"), tenant, f"plain {token}", message.name + message.subject)
    return Hostile("harmless", f"{tenant}.{thread_token(body['thread'])}.turn_recorded", _written(body))


def _behind(made: list[Hostile]) -> Iterator[Hostile]:
    """Yields a valid turn on the thread of every tenth message; the turn must wait if that message is parked."""
    for number, message in enumerate(made[::10]):
        tenant, thread, _ = message.subject.split(".")
        if not thread.startswith("~"):
            body = _at_home(golden("turn_recorded"), tenant, thread, 10_000 + number)
            yield Hostile(f"{message.name}, behind it", f"{tenant}.{thread}.turn_recorded", _written(body))


def golden(type_: str) -> dict[str, Any]:
    """Returns the newest version of the type's golden event."""
    body: dict[str, Any] = json.loads(max(GOLDEN.glob(f"{type_}.v*.json")).read_bytes())
    return body


def _at_home(body: dict[str, Any], tenant: str, thread: str, number: object) -> dict[str, Any]:
    """Returns the event with the ids of its subject, except for intended defects: a key `!name` replaces `name`."""
    wrong = {key[1:]: body.pop(key) for key in [*body] if key.startswith("!")}
    home = {"id": str(uuid5(NAMESPACE_OID, f"hostile {number}")), "tenant": tenant, "thread": thread, "subject": thread}
    return {**body, **home, **wrong}


def _written(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _bodies() -> Iterator[tuple[str, str, Any]]:
    """Yields (defect, type of the subject, envelope or bytes)."""
    yield from _no_json()
    yield from _envelopes()
    yield from _every_type()
    yield from _claims()
    yield from _values()
    yield from _edges()


def _no_json() -> Iterator[tuple[str, str, bytes]]:
    turn = json.dumps({**golden("turn_recorded"), "tenant": "default"}).encode()
    texts = {
        "empty": b"",
        "cut": turn[:-20],
        "two": turn + turn,
        "text": b'"turn"',
        "null": b"null",
        "list": b"[]",
        "binary": bytes(range(256)),
        "latin-1": turn.replace(b"calendar", b"caf\xe9"),
        "utf-16": turn.decode().encode("utf-16"),
        "bom": b"\xef\xbb\xbf" + turn,
        "brackets": b"[" * 10_000,
        "deep list": b'{"data":' + b"[" * 10_000,
        "deep object": b'{"data":' + b'{"a":' * 10_000,
        "deep and whole": b'{"data":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        "long number": b'{"id":' + b"9" * 100_000 + b"}",
        "one megabyte": b'{"data":"' + b"x" * 1_000_000 + b'"}',
        "many parts": b'{"data":[' + b"[]," * 100_000 + b"1]}",
        "NaN": b'{"data":NaN}',
        "infinity": b'{"data":-Infinity}',
    }
    for name, body in texts.items():
        yield name, "turn_recorded", body
    for type_ in ("erased", "thread_deleted", "thread_restored", "memory_recorded", "checkpoint_saved", "mood_changed"):
        yield f"no {type_}", type_, b"{"


def _envelopes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    turn = golden("turn_recorded")
    for name in (
        "specversion",
        "type",
        "id",
        "source",
        "time",
        "data",
        "user",
        "dataschema",
        "causation",
        "traceparent",
    ):
        yield f"no {name}", "turn_recorded", {key: value for key, value in turn.items() if key != name}
        for value in (5, None, "", NUL, SURROGATE, [name], {name: name}):
            yield f"{name} is {value!r}"[:60], "turn_recorded", {**turn, f"!{name}": value}
    for name, value in itertools.product(("thread", "tenant", "user"), IDS):
        yield f"{name} is {value!r}"[:60], "turn_recorded", {**turn, f"!{name}": value}
    for value in TIMES:
        yield f"time is {value!r}", "turn_recorded", {**turn, "time": value}
    for value in VERSIONS:
        yield f"dataschema is {value!r}", "turn_recorded", {**turn, "dataschema": value}
    yield "unknown attribute", "turn_recorded", {**turn, "mood": {"a": [1]}}
    yield "another type than its subject's", "thread_opened", turn
    yield "unknown type", "mood_changed", {**turn, "type": "turnlog.mood_changed"}
    yield "type with bidi", BIDI.replace("[", "").replace("\x1b", ""), turn
    never_issued = "ab" * 40, str(UUID(int=6))
    for sealed, key in (never_issued, ("AAAA", "not a key"), (5, str(UUID(int=5))), ("%%%", None), ([], {})):
        yield f"sealed {sealed!r} {key!r}", "turn_recorded", {**turn, "sealed": sealed, "sealedkey": key}


def _every_type() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields for each contract events that are valid, of another tenant, thread or user, without data or with extra
    data."""
    for type_ in sorted({path.name.split(".")[0] for path in GOLDEN.glob("*.json")}):
        example = golden(type_)
        yield f"{type_} as it is", type_, {**example, "user": None}
        yield f"{type_} of another user", type_, {**example, "user": "ann"}
        yield f"{type_} of another tenant", type_, {**example, "!tenant": "globex"}
        yield f"{type_} of another thread", type_, {**example, "!thread": "talk-ann", "!tenant": "default"}
        yield f"{type_} without data", type_, {**example, "data": {}}
        yield f"{type_} with more", type_, {**example, "data": {**example["data"], "surprise": [1]}}


def _claims() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields events that claim to be about ann's thread, memories and checkpoints, each on a different thread."""
    fork = golden("thread_forked")
    for parent in ("talk-ann", "memories/ann", "hostile-1", NUL, ["talk-ann"]):
        yield (
            f"fork of {parent!r}",
            "thread_forked",
            {**fork, "data": {**fork["data"], "parent": parent, "at_seq": 2**62}},
        )
    for envelope in (_victims(golden("turn_recorded")), {**golden("turn_recorded"), "sealed": "AAAA"}, {}, "{", 5):
        text = envelope if isinstance(envelope, str) else json.dumps(envelope)
        inside = {"seq": 1, "stored_at": "2023-05-08T13:56:00Z", "envelope": text}
        data = {"part": 1, "parts": 1, "events": [inside]}
        yield "restores something else", "thread_restored", {**golden("thread_restored"), "data": data}
    archived = golden("thread_archived")
    for path in ("../../etc/passwd", "/etc/passwd", NUL, "x" * 5_000):
        yield f"archive {path!r}"[:40], "thread_archived", {**archived, "data": {**archived["data"], "path": path}}
    item = golden("store_item_put")
    for namespace in (["memories", "ann"], [], [""], ["a.b"], [NUL], ["*"]):
        yield f"item in {namespace!r}", "store_item_put", {**item, "data": {**item["data"], "namespace": namespace}}
    usage = golden("usage_metered")
    for count, user in itertools.product((2**62, 10**12, 10**30), (None, "ann")):
        many = {**usage["data"], "tokens_in": count, "calls": count}
        yield f"{count} tokens", "usage_metered", {**usage, "user": user, "data": many}
    for cost in (1e18, -1.0, 1e999):
        yield f"costs {cost}", "usage_metered", {**usage, "data": {**usage["data"], "cost_usd": cost}}
    saved = golden("checkpoint_saved")
    for encoding in ("turnlog.list", "turnlog.refs", "turnlog.seq", "pickle", "msgpack"):
        blob = {"channel": "pruned_through", "version": "1", "encoding": encoding, "data": "W1tb"}
        yield f"blob of {encoding}", "checkpoint_saved", {**saved, "data": {**saved["data"], "blobs": [blob]}}


def _victims(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, **VICTIM}


ON_MEMORIES = ("memory_recorded ", "memory_confirmed ", "entities_found ")
MUTATED = (
    "turn_recorded",
    "memory_recorded",
    "memory_confirmed",
    "checkpoint_saved",
    "summary_written",
    "session_updated",
)


def _values() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields events of some contracts with an unsuitable value in each field."""
    for type_ in MUTATED:
        for at, (path, value) in enumerate(_fields(golden(type_)["data"])):
            for wrong in _wrong(path[-1], value, at):
                changed = golden(type_)
                _set(changed["data"], path, wrong)
                yield f"{type_} {'.'.join(map(str, path))} is {wrong!r}"[:80], type_, changed


SAID = ("Remember that I fly to Rome next month.", "记住我明年去罗马。", "I was there before last winter.")


def _edges() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields valid events at both ends of the calendar, because dates are computed from their times."""
    for time in ("1970-01-01T00:00:00Z", "9998-12-31T23:59:59-00:00", "9999-01-01T13:59:59+14:00"):
        for text in SAID:
            said = {**golden("turn_recorded"), "user": "mallory", "data": {"role": "user", "content": text}}
            yield f"{text} said at {time}", "turn_recorded", {**said, "time": time}
        example = golden("memory_recorded")
        example["data"]["memory"] |= {"valid_from": time, "expires_at": time}
        yield f"memory_recorded at {time}", "memory_recorded", {**example, "time": time}


def _wrong(name: str | int, value: Any, at: int) -> tuple[Any, ...]:
    if isinstance(name, str) and name.endswith(("_at", "_from", "_to", "time")):
        return TIMES[:3]
    if isinstance(value, str):
        return NUL, SURROGATE
    if isinstance(value, int | float):
        return HUGE[at % len(HUGE)], HUGE[(at + 3) % len(HUGE)]
    return (_deep(190), 5)[at % 2 :]


def _deep(levels: int) -> Any:
    nested: Any = []
    for _ in range(levels):
        nested = [nested]
    return nested


def _fields(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data[:1]) if isinstance(data, list) else ()
    for key, value in pairs:
        yield (*path, key), value
        yield from _fields(value, (*path, key))


def _set(data: Any, path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = copy.deepcopy(value)
