"""What the log says of one thread without reading it: how many events of each type it has, and its partition."""

from dataclasses import dataclass

from nats.errors import Error as NatsError

from turnlog.consumers.langgraph.held import STATE_TYPES
from turnlog.events.errors import LogUnavailable
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM, parse_stored, thread_filter


@dataclass(frozen=True, slots=True)
class LogState:
    """counts: events of the types that change a checkpoint; partition: None where the thread has no event.

    last_seq: of the whole log.
    """

    counts: dict[str, int]
    last_seq: int
    partition: int | None
    has_turns: bool


async def log_state(log: Log, tenant: str, thread: str) -> LogState:
    """One question to the server, whatever the thread's length. Raises LogUnavailable, InvalidToken."""
    try:
        info = await log.nc.jetstream().stream_info(STREAM, subjects_filter=thread_filter(tenant, thread))
    except (NatsError, OSError, TimeoutError) as error:
        raise LogUnavailable(
            f"cannot ask NATS for thread {thread!r}: {error!r}. Check NATS_URL, or start it with `turnlog up`"
        ) from error
    found = [(parse_stored(subject), count) for subject, count in (info.state.subjects or {}).items()]
    return LogState(
        {subject.type: count for subject, count in found if subject.type in STATE_TYPES},
        int(info.state.last_seq),
        found[0][0].partition if found else None,
        any(subject.type not in STATE_TYPES for subject, _ in found),
    )
