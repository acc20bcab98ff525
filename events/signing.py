"""Signs events that affect access rights (all events on the threads of limits, agents and API keys), and events that
replace (events/redactions.py) or delete other events.

Without signatures, anyone who can publish to NATS could change access rights. The last attribute of a signed envelope
is `signature`: the HMAC-SHA256 of all bytes before it, under a key that only turnlog's processes have. Other readers
ignore it. Checkpoint values of an application's own types are signed separately, inside their event.
"""

import hmac
import re
from collections.abc import Callable
from functools import cache

from turnlog.events.errors import InvalidEvent, KeyUnavailable, TurnlogError
from turnlog.events.subjects import ACCESS, AGENTS, LIMITS

SIGNED_THREADS = (LIMITS, AGENTS, ACCESS)
_REMOVES = tuple(
    b'{"specversion":"1.0","type":"turnlog.%s",' % type_ for type_ in (b"event_redacted", b"turns_expired")
)
_SIGNATURE = re.compile(rb',"signature":"([0-9a-f]{64})"}\Z')


class UnsignedEvent(InvalidEvent):
    """The event would change access rights, or replace or delete events, but is not signed with turnlog's secret."""

    code = "unsigned-event"


class Signer:
    """Signs events and checks signatures. key: returns the key of 32 bytes; called at the first use. trusted_through:
    events up to this sequence need no signature."""

    def __init__(self, key: Callable[[], bytes], trusted_through: int = 0) -> None:
        self._key, self._trusted_through = cache(key), trusted_through

    def sign(self, thread: str, body: bytes) -> bytes:
        """Returns the envelope with a signature if the event needs one, else unchanged. Raises KeyUnavailable."""
        if not thread.startswith(SIGNED_THREADS) and not body.startswith(_REMOVES):
            return body
        return body[:-1] + b',"signature":"' + self._signature(body[:-1]) + b'"}'

    def check(self, thread: str, seq: int, body: bytes) -> None:
        """Checks the signature of a stored event if events of its thread need one. Raises the errors of
        check_signed."""
        if thread.startswith(SIGNED_THREADS):
            self.check_signed(seq, body)

    def check_signed(self, seq: int, body: bytes) -> None:
        """Checks the signature of a stored event, which must have one. Raises UnsignedEvent, KeyUnavailable."""
        if seq <= self._trusted_through:
            return
        match = _SIGNATURE.search(body)
        if match is None or not hmac.compare_digest(match[1], self._signature(body[: match.start()])):
            raise UnsignedEvent(
                f"the event at sequence {seq} is not signed with the secret of this turnlog (TURNLOG_API_SECRET). Drop "
                "it if its origin is unknown; if it is yours, from before events were signed or with another secret, "
                f"set TURNLOG_TRUSTED_THROUGH to {seq} or more and retry"
            )

    def value_signature(self, tenant: str, value: bytes) -> bytes:
        """Returns 32 bytes that sign a value inside an event; the value is read only if they match. Raises
        KeyUnavailable."""
        return self._digest(b"value\0" + tenant.encode() + b"\0" + value)  # envelopes do not begin with this prefix

    def _signature(self, signed: bytes) -> bytes:
        return self._digest(signed).hex().encode()

    def _digest(self, signed: bytes) -> bytes:
        try:
            key = self._key()
        except TurnlogError as error:
            raise KeyUnavailable(f"the event can be neither signed nor checked: {error}") from error
        return hmac.digest(key, signed, "sha256")
