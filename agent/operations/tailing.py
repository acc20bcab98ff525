"""Shows the log as a stream of short lines, including undecodable events."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.agent.runtime import Runtime
from turnlog.events.codec import parsed, unsealed
from turnlog.events.errors import GapInLog, InvalidEvent, TurnlogError
from turnlog.events.log import Log
from turnlog.events.read import REOPEN_WAIT_S
from turnlog.events.stored import Stored
from turnlog.events.subjects import STORED_PREFIX, check_id, check_tenant, parse_stored, tenant_filter, thread_filter

LINE_CHARS = 100
# Control characters, other line breaks, and characters that change the direction of text (Unicode's Bidi_Control).
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Line:
    """A message of the log. body: its JSON, with sealed fields opened if the reader may see them and their key exists;
    None if the message is not JSON."""

    stored: Stored
    body: dict[str, Any] | None

    def document(self) -> dict[str, Any]:
        subject = parse_stored(self.stored.subject)
        return {
            "seq": self.stored.seq,
            "stored_at": self.stored.stored_at,
            "partition": subject.partition,
            "type": subject.type,
            "event": self.body if self.body is not None else self.stored.body.decode("utf-8", "replace"),
        }

    def text(self) -> str:
        """Returns the message as exactly one line: characters that end, hide or reorder text are escaped."""
        subject, event = parse_stored(self.stored.subject), self.body or {}
        type_, thread = _visible(subject.type), _visible(str(event.get("thread", subject.thread_token)))
        data = _visible(json.dumps(event.get("data", self.stored.body.decode("utf-8", "replace")), ensure_ascii=False))
        short = data if len(data) <= LINE_CHARS else data[:LINE_CHARS] + "…"
        return f"{self.stored.seq:>8}  {self.stored.stored_at:%H:%M:%S}  {type_[:32]:<16}  {thread[:24]:<24}  {short}"


async def tail(
    runtime: Runtime,
    start: int | None = None,
    follow: bool = True,
    tenant: str | None = None,
    thread: str | None = None,
    readers: frozenset[str] | None = None,
    types: Sequence[str] = (),
) -> AsyncGenerator[Line]:
    """Yields events of all tenants, one tenant or one thread, from sequence `start` on. start: None means only new
    events. types: only events of these types; needs a thread.

    follow: wait for more events at the end of the log, and reconnect after a server was lost. thread: belongs to the
    tenant of the settings if no tenant is given. readers: users whose sealed fields are opened; None for all. Raises
    InvalidToken, LogUnavailable.
    """
    if thread is not None or tenant is not None:
        tenant = check_tenant(runtime.settings.tenant if tenant is None else tenant)
    head = await runtime.log.head()
    position = head + 1 if start is None else start
    filters = [_filter(tenant, thread, type_) for type_ in types or (None,)]
    while True:
        try:
            async with runtime.log.reader_of(filters, position) as reader:
                while follow or (reader.pending_at_start and position <= head):
                    for stored in await reader.batch():
                        yield Line(stored, readable(stored, readers))
                        position = stored.seq + 1
                        if not follow and (stored.pending == 0 or position > head):
                            return
                return
        except GapInLog:
            await asyncio.sleep(REOPEN_WAIT_S)


async def line_at(log: Log, seq: int, readers: frozenset[str] | None = None) -> Line:
    """Returns the event at a sequence. readers: as for `tail`. Raises NotFound."""
    stored = await log.stored(seq)
    return Line(stored, readable(stored, readers))


def _filter(tenant: str | None, thread: str | None, type_: str | None) -> str:
    if tenant is None:
        return f"{STORED_PREFIX}.>"
    return tenant_filter(tenant) if thread is None else thread_filter(tenant, check_id("thread", thread), type_)


def readable(stored: Stored, readers: frozenset[str] | None) -> dict[str, Any] | None:
    """Returns the event; None for a message that is not JSON. A seal that cannot be opened stays as it is in the
    log."""
    try:
        body = parsed(stored.body)
    except InvalidEvent:
        return None
    if "sealed" not in body or (readers is not None and body.get("user") not in readers):
        return body
    try:
        return unsealed(body, stored.keyring)
    except TurnlogError:
        return body


def _visible(text: str) -> str:
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
