"""Reads Zep's threads (sessions) with their messages, and its facts: objects as its API returns them, in any order.

A thread is {thread_id or session_id, user_id, messages}; a fact is an edge of a user's graph, {fact, user_id, valid_at,
invalid_at}. An object {threads or sessions: […], facts or edges: […]} contains both, with one user_id for all of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from turnlog.agent.operations.importers.imported import (
    EMPTY,
    MALFORMED,
    Conversation,
    Defaults,
    ImportedMemory,
    Item,
    Rejected,
    Skipped,
    ThreadNames,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import TurnRecorded

_LISTS = ("users", "threads", "sessions", "facts", "edges")
_ROLES = {"function": "tool", "norole": "system"}


def read_zep(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """Yields the turns and facts of the records."""
    names = ThreadNames(defaults, stem)
    for record in records:
        if record.error:
            yield Rejected(record.where, record.error)
        else:
            yield from _items(record.where, record.value, names, defaults, None)


def _items(where: str, value: Any, names: ThreadNames, defaults: Defaults, user: str | None) -> Iterator[Item]:
    try:
        user = value.get("user_id") or user
        if isinstance(value.get("fact"), str):
            yield _fact(where, value, defaults.user or user)
        elif isinstance(value.get("messages"), list):
            yield from _turns(value, names, defaults, user)
        elif not any(isinstance(value.get(name), list) for name in _LISTS):
            raise ValueError("neither a thread with `messages` nor a `fact` of Zep")
        for name in _LISTS:
            for number, item in enumerate(value.get(name) or (), 1):
                yield from _items(f"{where}, {name} {number}", item, names, defaults, user)
    except MALFORMED as error:
        yield Rejected(where, reason_of(error))


def _fact(where: str, edge: dict[str, Any], user: str | None) -> ImportedMemory:
    return ImportedMemory(
        where,
        user,
        "zep",
        str(edge["uuid"]),
        edge["fact"],
        category=edge.get("name"),
        since=edge.get("valid_at") or edge.get("created_at"),
        until=edge.get("invalid_at") or edge.get("expired_at"),
        metadata={"attributes": edge["attributes"]} if edge.get("attributes") else {},
    )


def _turns(thread: dict[str, Any], names: ThreadNames, defaults: Defaults, user: str | None) -> Iterator[Item]:
    thread_id = names.next(thread.get("thread_id") or thread.get("session_id"))
    opened = Conversation(defaults, thread_id, None, user, thread.get("created_at"))
    for number, message in enumerate(thread["messages"], 1):
        where = f"{thread_id}, message {number}"
        try:
            role = message.get("role_type") or message["role"]
            name = message.get("name") or (message.get("role") if message.get("role_type") else None)
            if not message["content"].strip():
                yield Skipped(where, EMPTY)
                continue
            data = TurnRecorded(
                role=_ROLES.get(role, role), content=message["content"], name=name or None, source_id=message["uuid"]
            )
            yield opened.turn(data, message.get("created_at"), message["uuid"])
        except MALFORMED as error:
            yield Rejected(where, reason_of(error))
