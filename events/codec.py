"""Encodes events to bytes and decodes them: a CloudEvents 1.0 structured-mode JSON envelope.

Extension attributes tenant, thread, user, causation, correlation and traceparent are lower-case names with
string values, as CloudEvents demands; `dataschema` carries the contract's version as urn:turnlog:<type>:<n>.
Source: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from turnlog.events import tracing
from turnlog.events.contracts import CONTRACTS, Event
from turnlog.events.contracts.upcasters import upcast
from turnlog.events.errors import FutureEventVersion, InvalidEvent, UnknownEventType
from turnlog.events.sealing import Keyring, Sealed, fields_of, merged, seal, with_tombstones
from turnlog.events.subjects import check_id, check_tenant
from turnlog.events.texts import storable

CONTENT_TYPE = "application/cloudevents+json"
# NATS does not allow larger messages.
MAX_BYTES = 64 * 1024 * 1024
TYPE_PREFIX = "turnlog."
VERSIONS: dict[str, int] = {name: contract.VERSION for name, contract in CONTRACTS.items()}
_SCHEMAS: dict[str, tuple[str, int]] = {
    f"urn:turnlog:{name}:{v}": (name, v) for name, top in VERSIONS.items() for v in range(1, top + 1)
}
_VERSION = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_NAMED_ABOVE = {"data": {"type"}}


def encode(event: Event, keyring: Keyring | None = None, room: int | None = None) -> bytes:
    """Returns the envelope as UTF-8 JSON; with a keyring the personal fields of a user's event are sealed.

    A lone surrogate in a text becomes U+FFFD. room: the maximum size of the sealed fields before compression, in bytes.
    Raises InvalidEvent for an id or a value that cannot be stored, EventTooLarge, KeyUnavailable.
    """
    check_tenant(event.tenant)
    check_id("thread", event.thread)
    if event.user is not None:
        check_id("user", event.user)
    try:
        own = _own(event, keyring, room)
    except ValueError:
        try:
            data = type(event.data).model_validate(storable(event.data.model_dump()))
            own = _own(event.model_copy(update={"data": data}), keyring, room)
        except (ValueError, RecursionError) as error:
            raise InvalidEvent(f"event {event.id} cannot be written as JSON: {error}; send valid Unicode") from error
    return _head(event.type, event.thread) + own[1:]


def _own(event: Event, keyring: Keyring | None, room: int | None) -> bytes:
    return _clear(event) if keyring is None or event.user is None else _sealed(event, event.user, keyring, room)


def _clear(event: Event) -> bytes:
    return event.model_dump_json(exclude_none=True, exclude=_NAMED_ABOVE).encode()


def _sealed(event: Event, user: str, keyring: Keyring, room: int | None) -> bytes:
    """Returns the envelope, sealed if the personal fields have content. A user gets a key with the first event that can
    contain personal fields, so that a session can continue while keys cannot be fetched."""
    fields = fields_of(type(event.data))
    if not fields.tombstones:
        return _clear(event)
    key = keyring.current(event.tenant, user)
    if not event.data.has_personal():
        return _clear(event)
    sealed, key_id = seal(event, user, key, fields, room)
    clear = event.model_dump_json(exclude_none=True, exclude=fields.exclude)
    return f'{clear[:-1]},"sealed":"{sealed}","sealedkey":"{key_id}"}}'.encode()


@lru_cache(maxsize=4_096)
def _head(type_: str, thread: str) -> bytes:
    """Returns the envelope's common attributes as JSON without the closing brace, so that the event's own fields can
    follow."""
    attributes = {
        "specversion": "1.0",
        "type": TYPE_PREFIX + type_,
        "subject": thread,
        "datacontenttype": "application/json",
        "dataschema": f"urn:turnlog:{type_}:{VERSIONS[type_]}",
    }
    return to_json(attributes)[:-1] + b","


def decode(body: bytes, keyring: Keyring | None = None) -> Event:
    """Decodes bytes to the newest contract. Sealed fields are opened, or replaced by tombstones if their key was
    destroyed. An invalid traceparent is left out, because it is not part of the event's content.

    Raises InvalidEvent, UnknownEventType, FutureEventVersion, or KeyUnavailable (try again later).
    """
    envelope = parsed(body)
    place = _place(envelope)
    data = _current_data(envelope, place, keyring)
    try:
        return Event.model_validate(
            {
                "id": envelope.get("id"),
                "source": envelope.get("source"),
                "time": envelope.get("time"),
                "tenant": place.tenant,
                "thread": place.thread,
                "user": place.user,
                "causation": envelope.get("causation"),
                "correlation": envelope.get("correlation"),
                "traceparent": tracing.valid(envelope.get("traceparent")),
                "data": data,
            }
        )
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
        raise InvalidEvent(f"event {envelope.get('id')} does not fit its contract: {problems}") from None


def parsed(body: bytes | str) -> dict[str, Any]:
    """Parses a JSON object from the log. Every reader uses this function, because producers may publish any bytes.
    Python's own decoder accepts NaN and lone surrogates, and raises RecursionError, which is not a ValueError.

    The limits are MAX_BYTES, 200 nested levels, to which an empty array or object does not add, and 4,300 digits before
    a decimal point. Raises InvalidEvent.
    """
    if len(body) > MAX_BYTES:
        raise InvalidEvent(f"body has {len(body):,} bytes, more than {MAX_BYTES:,}")
    try:
        envelope = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidEvent(f"the body is not JSON: {error}") from None
    if not isinstance(envelope, dict):
        raise InvalidEvent("the body is not a JSON object; a CloudEvents 1.0 envelope is needed")
    return envelope


def unsealed(envelope: dict[str, Any], keyring: Keyring | None) -> dict[str, Any]:
    """Returns the envelope as it would be stored without sealing, for people to read. Raises the same errors as
    `decode`."""
    type_, version = _contract(envelope)
    data = _opened_data(envelope, _place(envelope), type_, version, keyring)
    clear = {name: value for name, value in envelope.items() if name not in ("sealed", "sealedkey")}
    return {**clear, "dataschema": f"urn:turnlog:{type_}:{VERSIONS[type_]}", "data": data}


class _Place(NamedTuple):
    tenant: str
    thread: str
    user: str | None


def _place(envelope: dict[str, Any]) -> _Place:
    return _Place(
        check_tenant(str(envelope.get("tenant", "default"))),
        check_id("thread", _string(envelope, "thread")),
        None if envelope.get("user") is None else check_id("user", _string(envelope, "user")),
    )


def _current_data(envelope: dict[str, Any], place: _Place, keyring: Keyring | None) -> dict[str, Any]:
    if envelope.get("specversion") != "1.0":
        raise InvalidEvent(f"specversion is {envelope.get('specversion')!r}; CloudEvents 1.0 is needed")
    type_, version = _contract(envelope)
    data = _opened_data(envelope, place, type_, version, keyring)
    return {**data, "type": type_}


def _opened_data(
    envelope: dict[str, Any], place: _Place, type_: str, version: int, keyring: Keyring | None
) -> dict[str, Any]:
    """Returns the event's data, unsealed and upcast. Tombstones are added last, because they have the newest version's
    shape."""
    data = envelope.get("data")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InvalidEvent(f"data of {type_} is not a JSON object")
    words = _words(envelope, place, type_, keyring) if "sealed" in envelope else {}
    if words:
        data = merged(data, words)
    if version < VERSIONS[type_]:
        data = upcast(type_, version, VERSIONS[type_], data)
    return with_tombstones(data, CONTRACTS[type_]) if words is None else data


def _words(envelope: dict[str, Any], place: _Place, type_: str, keyring: Keyring | None) -> dict[str, Any] | None:
    """Returns the sealed fields; None if their key was destroyed."""
    key_id, sealed = envelope.get("sealedkey"), envelope["sealed"]
    seal = Sealed(str(envelope.get("id")), place.tenant, place.user, type_, place.thread, sealed, key_id)
    return seal.opened(keyring)


def _contract(envelope: dict[str, Any]) -> tuple[str, int]:
    full = str(envelope.get("type"))
    type_ = full.removeprefix(TYPE_PREFIX)
    if type_ not in VERSIONS or type_ == full:
        raise UnknownEventType(f"event type {full[:120]!r} is unknown to this turnlog")
    schema = str(envelope.get("dataschema", f"urn:turnlog:{type_}:{VERSIONS[type_]}"))
    known = _SCHEMAS.get(schema)
    if known is not None and known[0] == type_:
        return known
    version = schema.removeprefix(f"urn:turnlog:{type_}:")
    if _VERSION.fullmatch(version) and int(version) > VERSIONS[type_]:
        raise FutureEventVersion(
            f"{type_} version {version} is newer than {VERSIONS[type_]}, the newest this turnlog reads; upgrade it"
        )
    raise InvalidEvent(f"dataschema {schema[:120]!r} does not fit type {full!r}")


def _string(envelope: dict[str, Any], key: str) -> str:
    value = envelope.get(key, envelope.get("subject") if key == "thread" else None)
    if not isinstance(value, str):
        raise InvalidEvent(f"attribute {key!r} is missing or not a string")
    return value
