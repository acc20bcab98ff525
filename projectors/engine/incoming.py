"""Decodes messages of the log for the engine, and keeps the errors of undecodable ones."""

from dataclasses import dataclass, replace
from typing import Any

from turnlog.events.contracts import Event, Recorded
from turnlog.events.errors import KeyUnavailable, TurnlogError
from turnlog.events.signing import Signer
from turnlog.events.stored import Stored, recorded
from turnlog.events.subjects import parse_stored

_NUL_ESCAPE, _SEALED = b"\\u0000", b'"sealed":'


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message of the log. recorded: the decoded event; None if decoding failed, and `error` tells why.

    place: (tenant, thread token). size: of the body, in bytes.
    """

    seq: int
    place: tuple[str, str]
    type: str
    recorded: Recorded | None
    error: str = ""
    size: int = 0


def incoming(stored: Stored, signer: Signer | None = None) -> Incoming:
    """Decodes a message and checks its signature. If either fails, the result contains the error, and the engine parks
    the event.

    Raises only KeyUnavailable: the event is valid and can be read again later.
    """
    _, _, _, tenant, token, type_ = stored.subject.replace("\x00", "\ufffd").split(".")
    try:
        decoded = recorded(stored)
        if signer is not None:
            signer.check(decoded.event.thread, stored.seq, stored.body)
        if _NUL_ESCAPE in _words(stored, decoded.event):
            decoded = replace(decoded, event=without_nul(decoded.event))
    except KeyUnavailable:
        raise
    except Exception as error:  # any error, because a malformed body must stop only its own thread
        reason = error.code if isinstance(error, TurnlogError) else type(error).__name__
        return Incoming(stored.seq, (tenant, token), type_, None, f"{reason}: {error}", len(stored.body))
    return Incoming(stored.seq, (tenant, token), type_, decoded, size=len(stored.body))


def _words(stored: Stored, event: Event) -> bytes:
    """Returns JSON that contains the event's words: of a sealed event the data, opened, otherwise the entire body."""
    return event.data.model_dump_json().encode() if _SEALED in stored.body else stored.body


def partition_of(stored: Stored) -> int:
    return parse_stored(stored.subject).partition


def without_nul(event: Event) -> Event:
    """Returns the event with each NUL replaced by U+FFFD, because Postgres text cannot store NUL; the log keeps the
    original."""
    data = _scrub(event.data.model_dump())
    return event.model_copy(update={"data": type(event.data).model_validate(data)})


def _scrub(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\x00", "\ufffd")
        case dict():
            return {_scrub(key): _scrub(item) for key, item in value.items()}
        case list() | tuple():
            return [_scrub(item) for item in value]
    return value
