"""Event ⇄ bytes: a CloudEvents 1.0 structured-mode JSON envelope (L3).

Extension attributes tenant, thread, user, causation, correlation and traceparent are lower-case names with
string values, as CloudEvents demands; `dataschema` carries the contract's version as urn:turnlog:<type>:<n>.
Source: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
"""

import re
from functools import lru_cache
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from turnlog.events.contracts import Event, EventData
from turnlog.events.errors import FutureEventVersion, InvalidEvent, UnknownEventType
from turnlog.events.frozen import Frozen
from turnlog.events.subjects import check_id, check_tenant
from turnlog.events.upcasters import upcast

CONTENT_TYPE = "application/cloudevents+json"
TYPE_PREFIX = "turnlog."
_UNION = get_args(EventData)[0]
CONTRACTS: dict[str, type[Frozen]] = {c.model_fields["type"].default: c for c in get_args(_UNION)}
VERSIONS: dict[str, int] = {name: contract.VERSION for name, contract in CONTRACTS.items()}  # type: ignore[attr-defined]
_SCHEMAS: dict[str, tuple[str, int]] = {
    f"urn:turnlog:{name}:{v}": (name, v) for name, top in VERSIONS.items() for v in range(1, top + 1)
}
_VERSION = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_NAMED_ABOVE = {"data": {"type"}}


def encode(event: Event) -> bytes:
    """The envelope as UTF-8 JSON. Raises InvalidEvent when an id or a text cannot be stored anywhere."""
    check_tenant(event.tenant)
    check_id("thread", event.thread)
    if event.user is not None:
        check_id("user", event.user)
    try:
        own = event.model_dump_json(exclude_none=True, exclude=_NAMED_ABOVE).encode()
    except ValueError as error:
        raise InvalidEvent(f"event {event.id} cannot be written as JSON: {error}; send valid Unicode") from error
    return _head(event.type, event.thread) + own[1:]


@lru_cache(maxsize=4_096)
def _head(type_: str, thread: str) -> bytes:
    """The attributes that say what the event is, as JSON up to where its own fields follow."""
    attributes = {
        "specversion": "1.0",
        "type": TYPE_PREFIX + type_,
        "subject": thread,
        "datacontenttype": "application/json",
        "dataschema": f"urn:turnlog:{type_}:{VERSIONS[type_]}",
    }
    return to_json(attributes)[:-1] + b","


def decode(body: bytes) -> Event:
    """Bytes to the newest contract. Raises InvalidEvent, UnknownEventType or FutureEventVersion."""
    try:
        envelope = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidEvent(f"body is no JSON: {error}") from None
    if not isinstance(envelope, dict):
        raise InvalidEvent("body is no JSON object; a CloudEvents 1.0 envelope is needed")
    data = _current_data(envelope)
    try:
        return Event.model_validate(
            {
                "id": envelope.get("id"),
                "source": envelope.get("source"),
                "time": envelope.get("time"),
                "tenant": check_tenant(str(envelope.get("tenant", "default"))),
                "thread": check_id("thread", _string(envelope, "thread")),
                "user": _optional_id(envelope, "user"),
                "causation": envelope.get("causation"),
                "correlation": envelope.get("correlation"),
                "traceparent": envelope.get("traceparent"),
                "data": data,
            }
        )
    except ValidationError as error:
        raise InvalidEvent(_plain(envelope.get("id"), error)) from None


def _current_data(envelope: dict[str, Any]) -> dict[str, Any]:
    if envelope.get("specversion") != "1.0":
        raise InvalidEvent(f"specversion is {envelope.get('specversion')!r}; CloudEvents 1.0 is needed")
    type_, version = _contract(envelope)
    data = envelope.get("data")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise InvalidEvent(f"data of {type_} is no JSON object")
    if version < VERSIONS[type_]:
        data = upcast(type_, version, VERSIONS[type_], data)
    return {**data, "type": type_}


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
        raise InvalidEvent(f"attribute {key!r} is missing or no string")
    return value


def _optional_id(envelope: dict[str, Any], key: str) -> str | None:
    return None if envelope.get(key) is None else check_id(key, _string(envelope, key))


def _plain(event_id: object, error: ValidationError) -> str:
    problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
    return f"event {event_id} does not fit its contract: {problems}"
