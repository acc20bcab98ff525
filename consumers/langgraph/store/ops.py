"""Checks LangGraph's operations and converts them to events and lookups before anything is done."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, Op, PutOp, SearchOp
from langgraph.store.base import validate_op_namespace as check_labels

from turnlog.consumers.langgraph.store.index import TextToEmbed, checked_paths, texts_to_embed
from turnlog.events.codec import decode
from turnlog.events.contracts import Event, StoreItemDeleted, StoreItemPut
from turnlog.events.errors import InvalidEvent, TurnlogError
from turnlog.events.publish import outgoing
from turnlog.events.subjects import check_id
from turnlog.projectors.models.store.filter import EVERYTHING, InvalidFilter, filter_sql, storable_json
from turnlog.projectors.models.store.lookup import ItemSearch, Namespace, NamespaceListing
from turnlog.projectors.models.store.projection import store_thread

SOURCE = "turnlog/langgraph"


class InvalidItem(TurnlogError, ValueError):
    """An item or its key cannot be stored; nothing of the call was stored."""

    code = "invalid-item"


@dataclass(frozen=True, slots=True)
class Key:
    """The address of an item."""

    namespace: Namespace
    key: str


@dataclass(frozen=True, slots=True)
class Write:
    """A put or a deletion. event: names the model and the hashes of `texts`, as if all texts had vectors."""

    address: Key
    event: Event
    texts: tuple[TextToEmbed, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """A search in the store. query: text to search for by meaning, if any."""

    lookup: ItemSearch
    query: str | None


Plan = Key | Write | Search | NamespaceListing


@dataclass(frozen=True, slots=True)
class Planner:
    """Checks operations and plans them. paths: the paths of texts to embed. model: None if nothing is embedded."""

    tenant: str
    model: str | None
    paths: tuple[str, ...]
    max_payload: int

    def plan(self, op: Op) -> Plan:
        """Checks an operation and plans it. Raises InvalidNamespaceError as LangGraph does, InvalidItem, InvalidFilter,
        InvalidIndex, InvalidToken, EventTooLarge, and NotImplementedError for a ttl."""
        check_labels(op)
        match op:
            case GetOp():
                return _address(op.namespace, op.key)
            case PutOp():
                return self._write(op)
            case SearchOp():
                return _search(op)
            case ListNamespacesOp():
                return _listing(op)
        raise InvalidItem(f"Unknown operation type: {type(op)}")

    def event(self, data: StoreItemPut | StoreItemDeleted, time: datetime) -> Event:
        """Returns the event. Raises EventTooLarge, and InvalidItem for an event that readers of the log could not
        decode."""
        event = Event(source=SOURCE, time=time, tenant=self.tenant, thread=store_thread(data.namespace), data=data)
        try:
            decode(outgoing(event, None, self.max_payload).body)
        except InvalidEvent as error:
            raise InvalidItem(f"item {data.key!r} cannot be stored: {error}") from error
        return event

    def _write(self, op: PutOp) -> Write:
        address = _address(op.namespace, op.key)
        if op.ttl is not None:
            raise NotImplementedError("TTL is not supported by TurnlogStore: an item stays until it is deleted")
        now = datetime.now(UTC)
        if op.value is None:
            return Write(address, self.event(StoreItemDeleted(namespace=address.namespace, key=address.key), now))
        value = _value(address.key, op.value)
        texts = tuple(texts_to_embed(value, self._paths(op.index)))
        data = StoreItemPut(
            namespace=address.namespace,
            key=address.key,
            value=value,
            model=self.model if texts else None,
            vectors={text.field: text.text_hash for text in texts},
        )
        return Write(address, self.event(data, now), texts)

    def _paths(self, index: Any) -> tuple[str, ...]:
        if index is False or self.model is None:
            return ()
        return self.paths if index is None else checked_paths(index)


def last_writes(writes: Iterable[Write]) -> list[Write]:
    """Returns the last write for each key."""
    return list({write.address: write for write in writes}.values())


def _address(namespace: Iterable[str], key: str) -> Key:
    labels = tuple(namespace)
    if not labels:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    check_id("namespace's thread", store_thread(labels))
    return Key(labels, check_id("item", str(key)))


def _value(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidItem(f"the value of item {key!r} is {type(value).__name__}; a mapping is needed")
    try:
        plain: dict[str, Any] = json.loads(storable_json(dict(value)))
    except ValueError as error:
        raise InvalidItem(f"the value of item {key!r} cannot be stored as JSON: {error}") from None
    return plain


def _search(op: SearchOp) -> Search:
    prefix = tuple(op.namespace_prefix)
    if prefix:
        check_id("namespace's thread", store_thread(prefix))
    fits = filter_sql(op.filter) if op.filter else EVERYTHING
    lookup = ItemSearch(prefix, fits, *_page(op.limit, op.offset))
    return Search(lookup, op.query if op.query and op.query.strip() else None)


def _listing(op: ListNamespacesOp) -> NamespaceListing:
    paths: dict[str, list[Namespace]] = {"prefix": [], "suffix": []}
    for condition in op.match_conditions or ():
        if condition.match_type not in paths:
            raise InvalidFilter(f"Unsupported match type: {condition.match_type}. Use 'prefix' or 'suffix'")
        paths[condition.match_type].append(tuple(condition.path))
    for path in (*paths["prefix"], *paths["suffix"]):
        check_id("namespace's thread", store_thread(path))
    return NamespaceListing(tuple(paths["prefix"]), tuple(paths["suffix"]), op.max_depth, *_page(op.limit, op.offset))


def _page(limit: int, offset: int) -> tuple[int, int]:
    for name, number in (("limit", limit), ("offset", offset)):
        if not isinstance(number, int) or not 0 <= number < 2**63:
            raise InvalidFilter(f"{name} is {number!r}; it must be a number of at least 0")
    return limit, offset
