"""Maintains whole threads: copies them checkpoint by checkpoint, or drops checkpoints: those of given runs, or all but
the newest."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from langgraph.checkpoint.serde.types import TASKS
from pydantic_core import from_json

from turnlog.consumers.langgraph.checkpoint.checkpoints import FIRST_WITHOUT_SENDS, ROOT, Saved, Written
from turnlog.consumers.langgraph.checkpoint.held_threads import HeldThread
from turnlog.consumers.langgraph.checkpoint.items import Codec
from turnlog.consumers.langgraph.checkpoint.lookup import Lookup
from turnlog.consumers.langgraph.checkpoint.sending import Sender
from turnlog.consumers.langgraph.checkpoint.writing import NewCheckpoint, Writer
from turnlog.events.contracts import CheckpointsDropped, Event
from turnlog.projectors.engine.writer import Connection

COPIED_AT_ONCE = 100
Copied = set[tuple[str, str, str]]
Drops = dict[str, list[CheckpointsDropped]]  # by thread
_OF_RUNS = """
SELECT thread_id, checkpoint_ns, array_agg(checkpoint_id ORDER BY checkpoint_id) FROM checkpoints
WHERE tenant = %s AND run_id = ANY(%s) GROUP BY thread_id, checkpoint_ns ORDER BY 1, 2
"""
# A DeltaChannel leaves counters in the metadata, or True instead of a value that is stored separately.
_WITH_DELTAS = """
SELECT DISTINCT c.thread_id FROM checkpoints c WHERE c.tenant = %(tenant)s AND c.thread_id = ANY(%(threads)s) AND (
    c.metadata ? 'counters_since_delta_snapshot' OR c.metadata ? 'delta_writes_versioned'
    OR EXISTS (
        SELECT 1 FROM jsonb_each(c.checkpoint -> 'channel_values') v JOIN checkpoint_blobs b
        ON b.tenant = c.tenant AND b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
        AND b.channel = v.key AND b.version = c.checkpoint -> 'channel_versions' ->> v.key
        WHERE v.value = 'true'::jsonb
    )
) ORDER BY 1
"""
_OF_THREAD = f"""
SELECT c.checkpoint_ns, c.checkpoint_id, c.metadata -> 'parents' ->> '',
    CASE WHEN (c.checkpoint ->> 'v')::int < {FIRST_WITHOUT_SENDS} AND EXISTS (
        SELECT 1 FROM checkpoint_writes w WHERE w.tenant = c.tenant AND w.thread_id = c.thread_id
        AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.parent_checkpoint_id AND w.channel = '{TASKS}'
    ) THEN c.parent_checkpoint_id END
FROM checkpoints c WHERE c.tenant = %s AND c.thread_id = %s ORDER BY c.checkpoint_ns, c.checkpoint_id
"""


@dataclass(slots=True)
class Namespace:
    """A namespace of a thread. ids: its checkpoints, oldest first. root: the checkpoint of the root graph that made the
    call to which the newest checkpoint belongs. sends_from: the parent of the newest checkpoint if the pending sends
    are stored there, else None."""

    ids: list[str] = field(default_factory=list)
    root: str | None = None
    sends_from: str | None = None


async def drops_of_runs(conn: Connection, tenant: str, run_ids: Sequence[str]) -> Drops:
    drops: Drops = {}
    rows = await conn.execute(_OF_RUNS, (tenant, list(run_ids)))
    for thread, ns, ids in await rows.fetchall():
        dropped = CheckpointsDropped(checkpoint_ns=ns, checkpoint_ids=tuple(ids), reason="run")
        drops.setdefault(thread, []).append(dropped)
    return drops


async def drops_of_all_but_the_newest(conn: Connection, tenant: str, threads: Sequence[str]) -> Drops:
    """Returns the events that drop all but the newest checkpoints. Raises NotImplementedError if a thread has a
    DeltaChannel, whose state is made of its older checkpoints."""
    rows = await conn.execute(_WITH_DELTAS, {"tenant": tenant, "threads": list(threads)})
    if deltas := [thread for (thread,) in await rows.fetchall()]:
        raise NotImplementedError(f"keep_latest can't prune threads that use a DeltaChannel: {', '.join(deltas)}")
    drops: Drops = {}
    for thread in threads:
        for ns, ids in but_the_newest(await _namespaces_of(conn, tenant, thread)).items():
            dropped = CheckpointsDropped(checkpoint_ns=ns, checkpoint_ids=ids, reason="prune")
            drops.setdefault(thread, []).append(dropped)
    return drops


async def _namespaces_of(conn: Connection, tenant: str, thread: str) -> dict[str, Namespace]:
    namespaces: dict[str, Namespace] = {}
    rows = await conn.execute(_OF_THREAD, (tenant, thread))
    for ns, checkpoint_id, root, sends_from in await rows.fetchall():
        own = namespaces.setdefault(ns, Namespace())
        own.ids.append(checkpoint_id)
        own.root, own.sends_from = root, sends_from
    return namespaces


def but_the_newest(namespaces: Mapping[str, Namespace]) -> dict[str, tuple[str, ...]]:
    """Returns the checkpoints to drop in each namespace (pure). The namespace of a subgraph's call contains a colon
    and the task's id. All its checkpoints are dropped if the root's checkpoint that made the call is dropped."""
    root = namespaces.get(ROOT, Namespace())
    kept_roots = _kept(root)
    dropped: dict[str, tuple[str, ...]] = {}
    for ns, own in namespaces.items():
        is_over = ":" in ns and own.root in root.ids and own.root not in kept_roots
        kept = set() if is_over else _kept(own)
        if ids := tuple(id_ for id_ in own.ids if id_ not in kept):
            dropped[ns] = ids
    return dropped


def _kept(own: Namespace) -> set[str]:
    return {id_ for id_ in (*own.ids[-1:], own.sends_from) if id_ is not None}


async def user_of_thread(conn: Connection, tenant: str, thread: str) -> str | None:
    rows = await conn.execute(
        "SELECT user_id FROM messages WHERE tenant = %s AND thread_id = %s AND user_id IS NOT NULL LIMIT 1",
        (tenant, thread),
    )
    row = await rows.fetchone()
    return str(row[0]) if row else None


async def copy_thread(
    lookup: Lookup, sender: Sender, source: str, target: HeldThread, codec: Codec, user: str | None
) -> None:
    """Copies a thread; the copy does not depend on the source. Checkpoints are copied oldest first, so that each list
    grows from the previous one."""
    writer = Writer(target, codec, user)
    waiting: list[asyncio.Future[None]] = []
    copied: Copied = set()
    async for saved in lookup.oldest_first(source):
        waiting += _copy(sender, writer, target, saved, codec, copied)
        if len(waiting) >= COPIED_AT_ONCE:
            await asyncio.gather(*waiting)
            waiting = []
    await asyncio.gather(*waiting)


def _copy(
    sender: Sender, writer: Writer, target: HeldThread, saved: Saved, codec: Codec, copied: Copied
) -> "list[asyncio.Future[None]]":
    new = {channel: version for (channel, version) in saved.values if (saved.ns, channel, version) not in copied}
    copied.update((saved.ns, channel, version) for channel, version in new.items())
    checkpoint = from_json(saved.checkpoint)
    inline = checkpoint.get("channel_values") or {}
    loaded = {
        channel: value.load(codec, None)
        for (channel, _), value in saved.values.items()
        if channel in new or inline.get(channel) is True  # a snapshot, which is not the plain value True
    }
    checkpoint["channel_values"] = inline | loaded
    put = NewCheckpoint(saved.ns, saved.parent_id, checkpoint, from_json(saved.metadata), new)
    events, kept = writer.checkpoint(put)
    versions = checkpoint["channel_versions"]
    sent = [sender.put(target, events, lambda: target.saved(kept, versions))]
    by_task = sorted(saved.writes, key=lambda write: write.order)
    for (path, task_id), own in groupby(by_task, lambda write: (write.task_path, write.task_id)):
        indexed = [(write.idx, write.channel, write.value.load(codec, None)) for write in own]
        more, written, is_replacing = writer.writes(saved.ns, saved.checkpoint_id, task_id, path, indexed)
        sent.append(_send_writes(sender, target, saved, more, written, is_replacing))
    return sent


def _send_writes(
    sender: Sender, target: HeldThread, saved: Saved, events: list[Event], written: list[Written], is_replacing: bool
) -> "asyncio.Future[None]":
    return sender.put(target, events, lambda: target.wrote(saved.ns, saved.checkpoint_id, written, is_replacing))
