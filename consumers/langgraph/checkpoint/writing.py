"""Makes events of checkpoints and writes, with their new turns."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic_core import to_json

from turnlog.consumers.langgraph.checkpoint.checkpoints import FIRST_WITHOUT_SENDS, ROOT, Saved, Written
from turnlog.consumers.langgraph.checkpoint.growth import Known, Source, common, grow
from turnlog.consumers.langgraph.checkpoint.held_threads import HeldThread
from turnlog.consumers.langgraph.checkpoint.items import Codec, Item, is_plain
from turnlog.consumers.langgraph.checkpoint.messages import coerced
from turnlog.consumers.langgraph.checkpoint.recorded import Turns
from turnlog.consumers.langgraph.checkpoint.values import Listed, Value, named_value
from turnlog.events.contracts import (
    Blob,
    CheckpointSaved,
    CheckpointWritesSaved,
    Event,
    EventData,
    ListGrowth,
    PendingWrite,
)

SOURCE = "turnlog/langgraph"
MESSAGES = "messages"  # LangGraph's name for the channel in which text, pairs and dicts are messages, too
MAX_FIRST_ITEMS = 1_000  # a longer list without messages takes less space if it is stored whole


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint to put. new: the versions of changed channels; metadata is JSON."""

    ns: str
    parent_id: str | None
    checkpoint: Mapping[str, Any]
    metadata: dict[str, Any]
    new: Mapping[str, Any]


class Writer:
    """Makes the events of one call for one thread. user: the owner of the data."""

    def __init__(self, held: HeldThread, codec: Codec, user: str | None) -> None:
        self._held, self._codec, self._user = held, codec, user

    def checkpoint(self, put: NewCheckpoint) -> tuple[list[Event], Saved]:
        """Returns the events and the stored form of a checkpoint. Raises the serializer's error for a value it cannot
        write."""
        turns, lists = Turns(put.ns == ROOT, in_checkpoint=True), list[ListGrowth]()
        inline, apart = split(put.checkpoint["channel_values"], self._codec.private)
        values = {
            (channel, str(version)): self._channel(put.ns, channel, apart[channel], turns, lists)
            for channel, version in {**put.new, **self._not_encrypted(put)}.items()
            if channel in apart
        }
        checkpoint = {**put.checkpoint, "channel_values": inline}
        run_id = put.metadata.get("run_id")
        data = CheckpointSaved(
            checkpoint_ns=put.ns,
            checkpoint_id=put.checkpoint["id"],
            parent_checkpoint_id=put.parent_id,
            checkpoint=checkpoint,
            metadata=put.metadata,
            run_id=run_id if isinstance(run_id, str) else None,
            blobs=tuple(_blob(channel, version, value) for (channel, version), value in values.items()),
            lists=tuple(lists),
        )
        saved = Saved(
            self._held.thread,
            put.ns,
            put.checkpoint["id"],
            put.parent_id,
            to_json(checkpoint).decode(),
            to_json(put.metadata).decode(),
            values,
            is_old=put.parent_id is not None and put.checkpoint["v"] < FIRST_WITHOUT_SENDS,
        )
        return [*self._turns(turns), self._event(data)], saved

    def writes(
        self, ns: str, checkpoint_id: str, task_id: str, task_path: str, writes: Sequence[tuple[int, str, Any]]
    ) -> tuple[list[Event], list[Written], bool]:
        """Returns the events, the writes, and whether they replace earlier ones. writes: (index, channel, value)."""
        turns = Turns(ns == ROOT)
        is_replacing = all(channel in WRITES_IDX_MAP for _, channel, _ in writes)
        stored = self._held.writes.get((ns, checkpoint_id), {})
        written = []
        for at, channel, value in writes:
            coerces = channel == MESSAGES and (task_id, at) not in stored
            named = named_value(value, self._held.recorded, self._codec, turns, coerces=coerces)
            written.append(Written(task_id, at, task_path, channel, named))
        data = CheckpointWritesSaved(
            checkpoint_ns=ns,
            checkpoint_id=checkpoint_id,
            task_id=task_id,
            task_path=task_path,
            replace=is_replacing,
            writes=tuple(map(_write, written)),
        )
        return [*self._turns(turns), self._event(data)], written, is_replacing

    def _not_encrypted(self, put: NewCheckpoint) -> dict[str, Any]:
        """Returns the versions of unchanged plain values that are not known to be stored encrypted: earlier checkpoints
        may have them in their JSON. Returns {} if the serializer does not encrypt."""
        if not self._codec.private:
            return {}
        last, versions = self._held.latest.get(put.ns), put.checkpoint["channel_versions"]
        return {
            channel: versions[channel]
            for channel, value in put.checkpoint["channel_values"].items()
            if value is not None and is_plain(value) and channel in versions
            if last is None or (channel, str(versions[channel])) not in last.values
        }

    def _event(self, data: EventData, event_id: str | None = None) -> Event:
        held = self._held
        event = Event(source=SOURCE, tenant=held.tenant, thread=held.thread, user=self._user, data=data)
        return event.model_copy(update={"id": UUID(event_id)}) if event_id else event

    def _turns(self, turns: Turns) -> list[Event]:
        return [self._event(turn, turn_id) for turn_id, turn in turns.new]

    def _channel(self, ns: str, channel: str, value: Any, turns: Turns, lists: list[ListGrowth]) -> Value:
        if type(value) is list and value:
            listed = self._list(ns, channel, value, turns, lists)
            if listed is not None:
                return listed
        return named_value(value, self._held.recorded, self._codec, turns)

    def _list(self, ns: str, channel: str, value: list[Any], turns: Turns, lists: list[ListGrowth]) -> Listed | None:
        """Returns the value as a growing list; None if it is better stored whole."""
        known, prefix = self._begins_like(ns, channel, value)
        if known is not None and ns != ROOT and known is self._held.lists.get((ROOT, channel)):
            # A subgraph records no turns: its items must not get into the list of the root graph.
            known = replace(known, items=known.items[:], owned=False)
        if not prefix and not self._may_grow(ns, channel, value):
            return None
        held = self._held
        items = [
            held.recorded.item(element, self._codec, turns, coerces=channel == MESSAGES) for element in value[prefix:]
        ]

        def write(list_id: str, first: int, base: Source | None, new: Sequence[Item]) -> None:
            lists.append(
                ListGrowth(
                    list_id=list_id,
                    first=first,
                    base_list=base.list_id if base else None,
                    base_count=first if base else 0,
                    items=tuple(item.marker for item in new),
                )
            )

        grown = grow(known, prefix, items, lambda: uuid4().hex, write)
        held.lists[ns, channel] = grown
        return Listed(grown.source.list_id, len(value), grown.items)

    def _begins_like(self, ns: str, channel: str, value: list[Any]) -> tuple[Known[Item] | None, int]:
        """Returns the known list with the longest common beginning with the value, and the length of that beginning."""
        held, best, most = self._held, None, 0
        for known in (held.lists.get((ns, channel)), held.older.get((ns, channel)), held.lists.get((ROOT, channel))):
            if known is None or known is best:
                continue
            prefix = common(known.items, value, lambda item, element: item.matches(element, self._codec))
            if prefix > most:
                best, most = known, prefix
            if most == len(known.items):
                break
        return best, most

    def _may_grow(self, ns: str, channel: str, value: list[Any]) -> bool:
        """Returns True if the list may be stored as a growing list: if it has only messages (if encrypted, only a short
        list), or if it is short and is the previous value with more items at its end.
        """
        if all(
            isinstance(element, BaseMessage) or (channel == MESSAGES and coerced(element) is not None)
            for element in value
        ):
            return not self._codec.private or len(value) <= MAX_FIRST_ITEMS
        before = self._held.plain.get((ns, channel))
        self._held.plain[ns, channel] = list(value)
        return (
            bool(before)
            and len(value) <= MAX_FIRST_ITEMS
            and len(before or ()) < len(value)
            and all(element is other for element, other in zip(before or (), value, strict=False))
        )


def split(values: Mapping[str, Any], private: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (values in the checkpoint's JSON, values stored separately). In the JSON, a DeltaChannel's snapshot is
    replaced by True. private: only None stays in the JSON, which is not encrypted."""
    inline = {channel: value for channel, value in values.items() if value is None or (is_plain(value) and not private)}
    apart = {channel: value for channel, value in values.items() if channel not in inline}
    return inline | {channel: True for channel, value in apart.items() if isinstance(value, _DeltaSnapshot)}, apart


def _blob(channel: str, version: str, value: Value) -> Blob:
    stored = value.stored()
    return Blob(channel=channel, version=version, encoding=stored.encoding, data=b64encode(stored.data).decode())


def _write(write: Written) -> PendingWrite:
    stored = write.value.stored()
    return PendingWrite(
        idx=write.idx, channel=write.channel, encoding=stored.encoding, data=b64encode(stored.data).decode()
    )
