"""Imports a file: appends its new turns in atomic batches and waits until they are projected."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, cast
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent.access.identity import Forbidden
from turnlog.agent.counting import counted
from turnlog.agent.memory.deciding.by_hand import InvalidMemory, handmade_memory
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import utc_now
from turnlog.agent.memory.memory_changes import check_no_secret, fields_by_rules
from turnlog.agent.models.errors import ModelError
from turnlog.agent.operations.imported_threads import in_thread, own_id
from turnlog.agent.operations.importers import (
    Defaults,
    Format,
    ImportedMemory,
    ImportedTurn,
    ImportFailed,
    Item,
    Rejected,
    Repeated,
    Skipped,
    check_unpacked,
    events,
    read,
)
from turnlog.agent.operations.importers.imported import parse_time, reason_of
from turnlog.agent.operations.importers.remote import download as download
from turnlog.agent.operations.importers.remote import is_url as is_url
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, Memory
from turnlog.events.errors import EventTooLarge, InvalidEvent, InvalidToken, NotFound
from turnlog.events.progress import OnProgress
from turnlog.events.publish import Appended, Key
from turnlog.projectors.engine.duplicates import first_seqs
from turnlog.projectors.engine.lag import NotProjectedInTime, lag

# The most events and characters of a batch. Batches are large because the keys of new users are created once per batch,
# which takes as long as storing 100 turns.
BATCH, BATCH_CHARS = 4_000, 16_000_000
SHOWN, FEW, LONGEST = 100, 3, 500  # positions in the JSON report, and in a line of its text; characters of each
MAX_SILENT_WAITS = 120
logger = logging.getLogger("turnlog.agent")
WAIT_FOR_VECTORS_UP_TO = 1_000
MEMORIES_AT_ONCE = 100
CONFIDENCE = 0.7  # for memories that another product's model derived from words that turnlog does not have


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Options of an import. embed: wait for vectors; None waits only if there are at most WAIT_FOR_VECTORS_UP_TO new
    turns. own: store the turns only in conversations of `defaults.user`. If the file names a conversation of another
    user, its turns go into a new conversation with a different id. most: maximum bytes of the unpacked file."""

    path: Path
    format: str | None
    defaults: Defaults
    embed: bool | None = None
    own: bool = False
    most: int | None = None


@dataclass(slots=True)
class LeftOut:
    """Pieces of a file that were left out for one reason. count: their number. first: positions of the first SHOWN."""

    reason: str
    count: int = 0
    first: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ImportReport:
    """The result of an import. turns: number of new turns. known: number of turns that were already on the log.
    memories: number of new memories from another product. known_memories: number of memories that were already stored,
    or have the same words as a stored one. repeated: number of pieces with the source_id and the words of an earlier
    piece.

    skipped: number of pieces that were left out on purpose. left_out: these pieces by reason, for at most SHOWN
    reasons. undated: number of turns for which the file has no time, and none for their conversation either. Such a
    turn gets the time one second after the previous turn, or undated_from if it is the first of its conversation.
    undated_turns: the first SHOWN of them. ownerless: number of turns of the role user for which neither the file nor
    the caller names a person. rejected: the first SHOWN rejected pieces, because every line of a large file may be
    wrong. dry_run: nothing was stored, and turns and threads are counts of the file.
    """

    file: str
    dry_run: bool = False
    turns: int = 0
    known: int = 0
    threads: int = 0
    memories: int = 0
    known_memories: int = 0
    last_seq: int = 0
    embedded: int = 0
    skipped: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    repeated: int = 0
    undated: int = 0
    undated_from: datetime | None = None
    undated_turns: list[str] = field(default_factory=list)
    ownerless: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    rejected_count: int = 0

    def reject(self, rejected: Rejected) -> None:
        self.rejected_count += 1
        if self.rejected_count <= SHOWN:
            self.rejected.append(Rejected(rejected.where[:LONGEST], rejected.error[:LONGEST]))

    def leave_out(self, skipped: Skipped) -> None:
        self.skipped += 1
        same = next((known for known in self.left_out if known.reason == skipped.reason), None)
        if same is None and len(self.left_out) < SHOWN:
            same = LeftOut(skipped.reason)
            self.left_out.append(same)
        if same is not None:
            same.count += 1
            same.first += [skipped.where[:LONGEST]] if same.count <= SHOWN else []

    def check_some_accepted(self) -> None:
        """Raises ImportFailed with the first reasons if all pieces were rejected."""
        if self.rejected_count and not (self.turns or self.known or self.memories or self.known_memories):
            reasons = [f"{rejected.where}: {rejected.error}" for rejected in self.rejected]
            raise ImportFailed(
                f"nothing of {self.file} was imported, because everything in it was rejected: {_places(reasons)}"
            )

    def document(self) -> dict[str, Any]:
        """Returns the report as JSON, for --json and the API."""
        return {**asdict(self), "rejected": [rejected._asdict() for rejected in self.rejected]}

    def lines(self) -> Iterator[str]:
        """Yields the report for people: first the result, then the left-out pieces with reasons and positions, then the
        next steps."""
        yield self.sentence()
        for left_out in self.left_out:
            yield f"left out: {left_out.reason}: {left_out.count:,} ({_places(left_out.first)})"
        if self.undated:
            dated = (
                f"dated one second after the previous turn, the first of a conversation {self.undated_from:%Y-%m-%d}"
            )
            yield f"without a time, {dated}: {_places(self.undated_turns)}"
        if self.turns and not self.embedded and not self.dry_run:
            yield (
                "Vectors follow in the background, newest threads first, while `turnlog up` runs; `turnlog lag` shows "
                "how many are missing."
            )

    def sentence(self) -> str:
        in_threads = f"in {counted(self.threads, 'thread')}"
        if self.dry_run:
            parts = [f"{self.file} has {counted(self.turns, 'turn')} {in_threads}; nothing was stored"]
        else:
            parts = [f"imported {counted(self.turns, 'new turn')} {in_threads} from {self.file}"]
        if self.memories:
            new = "" if self.dry_run else "new "
            parts.append(counted(self.memories, f"{new}memory", f"{new}memories"))
        if known := self.known + self.known_memories:
            parts.append(f"{known:,} were there already")
        if self.embedded:
            parts.append(f"{counted(self.embedded, 'chunk')} embedded")
        if self.undated:
            parts.append(f"{self.undated:,} without a time")
        if self.repeated:
            parts.append(f"{self.repeated:,} repeated under the same source_id, stored once")
        if self.skipped:
            parts.append(f"{self.skipped:,} left out")
        if self.rejected_count:
            parts.append(f"{self.rejected_count:,} rejected")
        return "; ".join(parts) + "."


def _places(first: list[str]) -> str:
    return "; ".join([*first[:FEW], *(["…"] if len(first) > FEW else [])])


@dataclass(slots=True)
class PreparedImport:
    """A file whose format is recognised, read up to its first batch of events."""

    request: ImportRequest
    report: ImportReport
    batches: Iterator[list[Event | ImportedMemory]]


def prepare_import(request: ImportRequest) -> PreparedImport:
    """Recognises the format of a file and reads its first batch; needs no server. Raises ImportFailed if the file is
    too large, cannot be read, or has a format that turnlog cannot read."""
    if request.most is not None:
        check_unpacked(request.path, request.most)
    report = ImportReport(request.path.name)
    batches = _batches(request, report)
    return PreparedImport(request, report, chain([next(batches, [])], batches))


def check_import(prepared: PreparedImport) -> ImportReport:
    """Reads the complete file and stores nothing; the report counts all turns, new or not. Raises ImportFailed."""
    report, threads = prepared.report, set[str]()
    report.dry_run = True
    for batch in prepared.batches:
        events = [item for item in batch if isinstance(item, Event)]
        report.turns += sum(event.type == "turn_recorded" for event in events)
        report.memories += len(batch) - len(events)
        threads |= {event.thread for event in events}
    report.threads = len(threads)
    return report


async def import_conversations(
    runtime: Runtime, prepared: PreparedImport, appended: OnProgress, projected: OnProgress, vectors: OnProgress
) -> ImportReport:
    """Appends the events and waits until they are projected and, in small imports, embedded.

    Invalid records are listed in the report. Raises ImportFailed if the file cannot be read or every record is invalid.
    """
    report = prepared.report
    await runtime.wait_until_projected(timeout_s=600)
    threads = await _append_all(runtime, prepared, appended)
    report.check_some_accepted()
    await _wait_until_projected(runtime, projected)
    asked = prepared.request.embed
    if report.turns and (report.turns <= WAIT_FOR_VECTORS_UP_TO if asked is None else asked):
        from turnlog.agent.recall.embedding.embed_now import embed_now

        try:
            report.embedded = await embed_now(runtime, prepared.request.defaults.tenant, threads, vectors)
        except ModelError as error:  # all turns are stored, and search finds them by words
            logger.warning("no vectors now: %s", error)
    return report


async def _append_all(runtime: Runtime, prepared: PreparedImport, appended: OnProgress) -> set[str]:
    """Appends all batches; returns the ids of all conversations of the file. Conversations without new turns are
    included, because an interrupted import may have stored their turns but not their vectors.

    The file is read in a separate thread, so that a server is not blocked."""
    report, request = prepared.report, prepared.request
    threads, of_file, ids, refused = set[str](), set[str](), dict[str, str](), dict[str, str]()
    while (read := await asyncio.to_thread(next, prepared.batches, None)) is not None:
        await _remember(
            runtime, request.defaults.tenant, [item for item in read if isinstance(item, ImportedMemory)], report
        )
        batch = [item for item in read if isinstance(item, Event)]
        if request.own:
            for event in batch:
                if event.thread not in ids and event.thread not in refused:
                    try:
                        ids[event.thread] = await own_id(runtime, event, str(request.defaults.user))
                    except (NotFound, Forbidden) as error:
                        refused[event.thread] = str(error)
            batch = list(_moved(batch, ids, refused, report))
        async with runtime.pool.connection() as conn:
            known = await first_seqs(conn, range(runtime.log.partitions), [Key.of(event) for event in batch])
        new = [event for event in batch if Key.of(event) not in known]
        of_file |= {event.thread for event in batch}
        for event, done in zip(new, await _append(runtime, new, report), strict=True):
            if done is not None:
                report.last_seq = done.seq
                threads.add(event.thread)
                report.turns += event.type == "turn_recorded" and not done.duplicate
        report.known += sum(event.type == "turn_recorded" for event in batch) - sum(
            event.type == "turn_recorded" for event in new
        )
        appended(report.turns + report.known + report.memories + report.known_memories, None)
    report.threads = len(threads)
    return of_file


async def _remember(runtime: Runtime, tenant: str, read: Sequence[ImportedMemory], report: ImportReport) -> None:
    """Stores memories of another product; those of one person in order of time. They are compared with stored memories
    like every new memory, but have no quotes."""
    of_user: dict[str, list[Memory]] = {}
    for imported in read:
        try:
            if not imported.user:
                raise InvalidMemory("the file does not name the user; give --user")
            of_user.setdefault(imported.user, []).append(await _memory(runtime, tenant, imported.user, imported))
        except (InvalidMemory, ValueError) as error:
            report.reject(Rejected(imported.where, reason_of(error)))
    writer = Memories(runtime.log, runtime.pool)
    for user, memories in of_user.items():
        memories.sort(key=lambda memory: memory.valid_from)
        for start in range(0, len(memories), MEMORIES_AT_ONCE):
            outcomes = await writer.remember_many(tenant, user, memories[start : start + MEMORIES_AT_ONCE])
            new = sum(outcome.what in ("recorded", "ended", "asked") for outcome in outcomes)
            report.memories, report.known_memories = report.memories + new, report.known_memories + len(outcomes) - new


async def _memory(runtime: Runtime, tenant: str, user: str, imported: ImportedMemory) -> Memory:
    """Returns the memory to store. Its id is derived from its content, so that a repeated import adds nothing. Raises
    InvalidMemory, ValueError."""
    await check_no_secret(runtime, tenant, user, imported.content)
    since = utc_now() if imported.since is None else parse_time(imported.since)
    fields = fields_by_rules(runtime.settings, imported.content, since)
    fields |= {"kind": imported.kind, "category": imported.category or fields.get("category"), "origin": "imported"}
    fields |= {"confidence": CONFIDENCE, "metadata": {"from": imported.source, "id": imported.id, **imported.metadata}}
    if imported.until is not None:
        fields["expires_at"] = parse_time(imported.until)
    id_ = uuid5(NAMESPACE_OID, repr((tenant, user, imported.source, imported.id, imported.content)))
    return handmade_memory(id_, imported.content, imported.kind, since, fields)


def _moved(
    batch: Iterable[Event], ids: Mapping[str, str], refused: Mapping[str, str], report: ImportReport
) -> Iterator[Event]:
    """Yields the events, moved to the conversations in `ids`; reports turns of refused conversations as rejected. ids:
    conversation in the file → conversation of the user. refused: conversation in the file → reason."""
    for event in batch:
        if (thread := ids.get(event.thread)) is not None:
            yield in_thread(event, thread)
        elif event.type == "turn_recorded":
            where = f"turn {getattr(event.data, 'source_id', None) or event.id} of thread {event.thread[:80]}"
            report.reject(Rejected(where, refused[event.thread]))


async def _append(runtime: Runtime, new: list[Event], report: ImportReport) -> list[Appended | None]:
    """Appends a batch at once; if an event cannot be stored, appends the events one by one, so that only this event is
    rejected."""
    try:
        return list(await runtime.log.append_many(new))
    except (InvalidEvent, EventTooLarge):
        return [await _append_one(runtime, event, report) for event in new]


async def _append_one(runtime: Runtime, event: Event, report: ImportReport) -> Appended | None:
    try:
        return await runtime.log.append(event)
    except (InvalidEvent, EventTooLarge) as error:
        if event.type == "thread_opened" and isinstance(error, InvalidToken):
            return None  # the first turn has the same invalid ids, and is rejected instead
        source = getattr(event.data, "source_id", None)
        report.reject(Rejected(f"turn {source or event.id} of thread {event.thread[:80]}", str(error)))
        return None


def _batches(request: ImportRequest, report: ImportReport) -> Iterator[list[Event | ImportedMemory]]:
    batch, size = list[Event | ImportedMemory](), 0
    items = read(request.path, cast(Format | None, request.format), request.defaults)
    for item in events(_noted(items, request.defaults, report), request.defaults.tenant):
        match item:
            case Rejected():
                report.reject(item)
            case Skipped():
                report.leave_out(item)
            case Repeated():
                report.repeated += 1
            case _:
                batch.append(item)
                size += len(str(getattr(getattr(item, "data", item), "content", "")))
        if len(batch) == BATCH or size > BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _noted(items: Iterable[Item], defaults: Defaults, report: ImportReport) -> Iterator[Item]:
    """Yields the items unchanged. Counts turns without an owner, and turns without a time, because events do not show
    that the file had no time."""
    for item in items:
        report.ownerless += isinstance(item, ImportedTurn) and item.user is None and item.data.role == "user"
        if isinstance(item, ImportedTurn) and not item.is_dated:
            report.undated += 1
            report.undated_from = defaults.base_time
            if report.undated <= SHOWN:
                report.undated_turns.append(f"{item.thread[:80]}, {item.data.source_id or item.id}")
        yield item


async def _wait_until_projected(runtime: Runtime, projected: OnProgress) -> None:
    """Waits until the events are projected. Raises NotProjectedInTime after a minute without progress."""
    reached, silent = -1, 0
    while True:
        async with runtime.pool.connection() as conn:
            lags = await lag(runtime.log, conn)
        position = min((partition.position for partition in lags), default=0)
        projected(position, max((partition.head for partition in lags), default=0))
        silent = 0 if position > reached else silent + 1
        reached = position
        try:
            await runtime.wait_until_projected(timeout_s=0.5)
            return
        except NotProjectedInTime:
            if silent > MAX_SILENT_WAITS:
                raise
