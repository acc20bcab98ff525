"""A thread's checkpoints in another thread, message for message: the copy lives on its own."""

import asyncio
from itertools import groupby

from pydantic_core import from_json

from turnlog.consumers.langgraph.held import Held
from turnlog.consumers.langgraph.items import Codec
from turnlog.consumers.langgraph.listing import Listing
from turnlog.consumers.langgraph.sending import Sender
from turnlog.consumers.langgraph.tuples import Saved, Written
from turnlog.consumers.langgraph.writing import NewCheckpoint, Writer
from turnlog.events.contracts import Event

AT_ONCE = 100
Copied = set[tuple[str, str, str]]


async def copy_thread(
    listing: Listing, sender: Sender, source: str, target: Held, codec: Codec, user: str | None
) -> None:
    """Oldest first, so that each list grows from the one before."""
    writer = Writer(target, codec, user)
    waiting: list[asyncio.Future[None]] = []
    copied: Copied = set()
    async for saved in listing.oldest_first(source):
        waiting += _copy(sender, writer, target, saved, codec, copied)
        if len(waiting) >= AT_ONCE:
            await asyncio.gather(*waiting)
            waiting = []
    await asyncio.gather(*waiting)


def _copy(
    sender: Sender, writer: Writer, target: Held, saved: Saved, codec: Codec, copied: Copied
) -> "list[asyncio.Future[None]]":
    new = {channel: version for (channel, version) in saved.values if (saved.ns, channel, version) not in copied}
    copied.update((saved.ns, channel, version) for channel, version in new.items())
    checkpoint = from_json(saved.checkpoint)
    inline = checkpoint.get("channel_values") or {}
    loaded = {channel: saved.values[channel, version].load(codec, None) for channel, version in new.items()}
    checkpoint["channel_values"] = inline | loaded
    put = NewCheckpoint(saved.ns, saved.parent_id, checkpoint, from_json(saved.metadata), new)
    events, kept = writer.checkpoint(put)
    versions = checkpoint["channel_versions"]
    sent = [sender.put(target, events, lambda: target.saved(kept, versions))]
    by_task = sorted(saved.writes, key=lambda one: one.order)
    for (path, task_id), own in groupby(by_task, lambda one: (one.task_path, one.task_id)):
        given = [(one.idx, one.channel, one.value.load(codec, None)) for one in own]
        more, written, is_replacing = writer.writes(saved.ns, saved.checkpoint_id, task_id, path, given)
        sent.append(_send_writes(sender, target, saved, more, written, is_replacing))
    return sent


def _send_writes(
    sender: Sender, target: Held, saved: Saved, events: list[Event], written: list[Written], is_replacing: bool
) -> "asyncio.Future[None]":
    return sender.put(target, events, lambda: target.wrote(saved.ns, saved.checkpoint_id, written, is_replacing))
