"""Moves events to the end of the log, above the sequences that another log had used. Adopting another log needs
this."""

import json
import re
import uuid
from datetime import datetime

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from turnlog.events.errors import LogUnavailable
from turnlog.events.log import Log, nats_errors
from turnlog.events.stream import overwrite
from turnlog.events.subjects import STORED_PREFIX, STREAM, parse_stored, type_filter

FILLER = "turnlog.turnlog.filler.filler"
AT_ONCE = 1_000
ACK_S = 10.0
# The header of a moved event: the last sequence to move, and the sequence above which events are stored again.
MOVED = "Turnlog-Moved"


async def move_behind(log: Log, after: int, through: int) -> int:
    """Moves the log's events after sequence `after` to the end of the log, above `through`, and returns their number.

    The events are stored again in order and deleted at their old sequences. A move that was killed continues where it
    stopped. Raises LogUnavailable."""
    js, moved = log.nc.jetstream(), 0
    with nats_errors("cannot move events in the log"):
        head = await log.head()
        end, through = await _begun(js, through) or (head, max(through, head))
        await _advance(log, js, through)
        seq = after + 1
        while seq <= end:
            try:
                message = await js.get_msg(STREAM, seq, subject=">", next=True)
            except NotFoundError:
                break
            if (old_seq := message.seq or 0) > end:
                break
            headers = (message.headers or {}) | {MOVED: f"{end} {through}"}
            await _store_again(log, str(message.subject), message.data or b"", headers)
            await overwrite(js, STREAM, old_seq)
            seq, moved = old_seq + 1, moved + 1
    return moved


async def _begun(js: JetStreamContext, through: int) -> tuple[int, int] | None:
    """Returns (end, through) of an unfinished move above `through`, read from a header of the log's last event; None if
    there is none."""
    try:
        last = await js.get_last_msg(STREAM, f"{STORED_PREFIX}.>")
    except NotFoundError:
        return None
    noted = re.fullmatch(r"([0-9]+) ([0-9]+)", (last.headers or {}).get(MOVED, ""))
    end, behind = map(int, noted.groups()) if noted else (0, 0)
    return (end, behind) if noted and end <= behind and through <= behind < (last.seq or 0) else None


async def first_since(log: Log, time: datetime) -> int:
    """Returns the sequence of the first event that was stored at this time or later; if there is none, the sequence
    after the end of the log."""
    ask = json.dumps({"start_time": time.isoformat()}).encode()
    with nats_errors("cannot ask NATS for the events since a time"):
        answer = json.loads((await log.nc.request(f"$JS.API.STREAM.MSG.GET.{STREAM}", ask, timeout=ACK_S)).data)
    return int(answer["message"]["seq"]) if "message" in answer else await log.head() + 1


async def _advance(log: Log, js: JetStreamContext, through: int) -> None:
    """Makes the next sequence larger than `through`. An empty stream accepts any first sequence; in other streams
    filler messages are stored and removed again."""
    state = (await js.stream_info(STREAM)).state
    if state.last_seq < through and not state.messages:
        await js.purge_stream(STREAM, seq=through + 1)
        return
    while (missing := through - await log.head()) > 0:
        for _ in range(min(missing, AT_ONCE) - 1):
            await log.nc.publish(FILLER)
        await log.nc.request(FILLER, timeout=ACK_S)
    await js.purge_stream(STREAM, subject=type_filter("filler"))


async def _store_again(log: Log, subject: str, body: bytes, headers: dict[str, str]) -> None:
    parts = parse_stored(subject)
    kept = {name: value for name, value in headers.items() if not name.startswith("Nats-")}
    again = {"Nats-Msg-Id": f"{headers.get('Nats-Msg-Id', '')[:36]} {uuid.uuid4().hex}"}
    to = f"turnlog.{parts.tenant}.{parts.thread_token}.{parts.type}"
    answer = json.loads((await log.nc.request(to, body, timeout=ACK_S, headers=kept | again)).data)
    if "error" in answer:
        raise LogUnavailable(f"NATS refused to store an event again: {answer['error'].get('description')}")
