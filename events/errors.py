"""Every error turnlog raises on purpose. The message names the cause and the fix; `code` is stable."""


class TurnlogError(Exception):
    """Base of all errors that are shown to a person without a traceback."""

    code = "error"


class InvalidEvent(TurnlogError):
    """The bytes or fields are not a valid event; it was not stored (or is parked, if it already was)."""

    code = "invalid-event"


class UnknownEventType(InvalidEvent):
    """This version of turnlog does not know the event's type."""

    code = "unknown-event-type"


class FutureEventVersion(InvalidEvent):
    """The event was written by a newer turnlog; upgrade this one to read it."""

    code = "future-event-version"


class InvalidToken(InvalidEvent):
    """A tenant, thread or user id cannot be used as given."""

    code = "invalid-id"


class EventTooLarge(TurnlogError):
    """The encoded event is larger than the server's max_payload; nothing was stored."""

    code = "event-too-large"

    @classmethod
    def by(cls, size: int, room: int, event_id: object) -> "EventTooLarge":
        return cls(
            f"event {event_id} is {size:,} bytes; the server takes {room:,}. Store large parts elsewhere and put their "
            "URL in an image block, or raise the server's max_payload"
        )


class WrongExpectedVersion(TurnlogError):
    """Another event was appended to the thread first; read the thread and decide again."""

    code = "wrong-expected-version"


class LogUnavailable(TurnlogError):
    """NATS did not answer in time; the append may or may not have happened, retry with the same event id."""

    code = "log-unavailable"


class LogClosed(LogUnavailable):
    """The connection to NATS was closed, by this process or by the server, and does not reconnect; open a new one."""

    code = "log-closed"


WAYS_OUT = (
    "Nothing is appended until one of these is done: `turnlog log restore FOLDER` brings a backup of the log back; "
    "`turnlog log adopt` keeps the rows and continues with this log after them; `turnlog log rebuild` rebuilds "
    "the rows from this log. If NATS_URL or DATABASE_URL is wrong, correct it"
)


class OtherLog(LogUnavailable):
    """The read models were made from another log than the connected one, or the stream is gone. Nothing is appended."""

    code = "other-log"


class LogFull(TurnlogError):
    """The stream reached its max_bytes; nothing was stored. Raise TURNLOG_STREAM_MAX_BYTES."""

    code = "log-full"


class StreamDrift(TurnlogError):
    """The stream's settings differ from the ones this turnlog needs."""

    code = "stream-drift"


class GapInLog(TurnlogError):
    """An ordered read missed a message; the reader must reopen at its position."""

    code = "gap-in-log"


class DatabaseUnavailable(TurnlogError):
    """Postgres cannot be reached at DATABASE_URL."""

    code = "database-unavailable"


class KeyUnavailable(DatabaseUnavailable):
    """The key of a user's personal fields cannot be fetched now; the event cannot be published or read without it."""

    code = "key-unavailable"


class NotFound(TurnlogError):
    """The given thread, event or projection does not exist."""

    code = "not-found"


def cause(error: BaseException) -> str:
    """Returns the error's message, or the docstring of its class if it has no message."""
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
