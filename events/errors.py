"""The base class of all errors of turnlog, and the errors of the log. Messages name the cause and the fix."""


class TurnlogError(Exception):
    """Base of all errors that are shown to a person without a traceback. detail_zh: the message in Chinese, if it has
    one."""

    code = "error"
    detail_zh: str | None = None


class InvalidEvent(TurnlogError):
    """The bytes or fields are not a valid event; the event was not stored, or is parked if it was stored before."""

    code = "invalid-event"


class UnknownEventType(InvalidEvent):
    """This version of turnlog does not know the event's type."""

    code = "unknown-event-type"


class FutureEventVersion(InvalidEvent):
    """The event was written by a newer turnlog; upgrade this turnlog to read it."""

    code = "future-event-version"


class InvalidToken(InvalidEvent):
    """A tenant, thread or user id is invalid."""

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
    """NATS did not answer in time; the event may or may not be stored, so retry with the same event id."""

    code = "log-unavailable"


class LogClosed(LogUnavailable):
    """The connection to NATS was closed by this process or the server and does not reconnect; open a new connection."""

    code = "log-closed"


WAYS_OUT = (
    "Nothing is appended until one of these is done: `turnlog log restore FOLDER` brings a backup of the log back; "
    "`turnlog log adopt` keeps the rows and continues with this log after them; `turnlog log rebuild` rebuilds "
    "the rows from this log. If NATS_URL or DATABASE_URL is wrong, correct it"
)


class OtherLog(LogUnavailable):
    """The read models were made from another log, or the stream no longer exists. No events are appended."""

    code = "other-log"


class LogFull(TurnlogError):
    """The stream reached its max_bytes; nothing was stored. Raise TURNLOG_STREAM_MAX_BYTES."""

    code = "log-full"


class StreamDrift(TurnlogError):
    """The stream's settings differ from the settings that this turnlog needs."""

    code = "stream-drift"


class GapInLog(TurnlogError):
    """An ordered read missed a message; the reader must reopen at its position."""

    code = "gap-in-log"


class DatabaseUnavailable(TurnlogError):
    """Postgres cannot be reached at DATABASE_URL."""

    code = "database-unavailable"


class KeyUnavailable(DatabaseUnavailable):
    """The key of a user's personal fields cannot be fetched now, and the event cannot be published or read without the
    key."""

    code = "key-unavailable"


class NotFound(TurnlogError):
    """The given thread, event or projection does not exist."""

    code = "not-found"


def cause(error: BaseException) -> str:
    """Returns the error's message; without a message, "timed out" or the name of its class."""
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
