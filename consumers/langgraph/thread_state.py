"""What the log says of one thread without reading it: how many events of each type it has, and its partition."""

import json
from dataclasses import dataclass
from typing import Any

from nats.errors import Error as NatsError
from pydantic_core import from_json

from turnlog.consumers.langgraph.held import STATE_TYPES
from turnlog.events.errors import LogUnavailable, cause
from turnlog.events.log import Log
from turnlog.events.subjects import STREAM, parse_stored, thread_filter

_INFO = f"$JS.API.STREAM.INFO.{STREAM}"
ANSWERED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class LogState:
    """counts: events of the types that change a checkpoint; partition: None where the thread has no event.

    last_seq: of the whole log.
    """

    counts: dict[str, int]
    last_seq: int
    partition: int | None


async def log_state(log: Log, tenant: str, thread: str) -> LogState:
    """One question to the server, whatever the thread's length. Raises LogUnavailable, InvalidToken."""
    state = await _stream_state(log, thread, json.dumps({"subjects_filter": thread_filter(tenant, thread)}))
    found = [(parse_stored(subject), count) for subject, count in (state.get("subjects") or {}).items()]
    return LogState(
        {subject.type: count for subject, count in found if subject.type in STATE_TYPES},
        int(state["last_seq"]),
        found[0][0].partition if found else None,
    )


async def _stream_state(log: Log, thread: str, asked: str) -> dict[str, Any]:
    """The server's own answer: every turn of a graph asks, and the client library reads far more out of it."""
    try:
        answer = from_json((await log.nc.request(_INFO, asked.encode(), timeout=ANSWERED_WITHIN_S)).data)
    except (NatsError, OSError, TimeoutError) as error:
        raise _unavailable(thread, cause(error)) from error
    if "error" in answer:
        raise _unavailable(thread, str(answer["error"].get("description")))
    state: dict[str, Any] = answer["state"]
    return state


def _unavailable(thread: str, cause: str) -> LogUnavailable:
    return LogUnavailable(
        f"cannot ask NATS for thread {thread!r}: {cause}. Check NATS_URL, or start it with `turnlog up`"
    )
