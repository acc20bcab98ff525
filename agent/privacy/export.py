"""Exports everything stored about a user as one JSON document, piece by piece.

From a thread with several speakers, only its label, metadata and times, the user's own turns and the answers to them
are exported.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from psycopg.rows import dict_row
from pydantic_core import to_jsonable_python

from turnlog.agent.answering.receipts import receipts
from turnlog.agent.memory.sanitiser.sanitise import REGIONS, SanitiseLevel, sanitise, sanitise_json
from turnlog.agent.privacy.erasure.event_scan import Person, tokens
from turnlog.agent.privacy.erasure.rows import known_threads
from turnlog.agent.privacy.screening import clean_content
from turnlog.events.log import Log
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.registry import BY_NAME

Document = dict[str, Any]
_TALKS = """
SELECT DISTINCT thread_id FROM (
  SELECT thread_id FROM thread_activity WHERE tenant = %(tenant)s AND user_id = %(user)s
  UNION SELECT thread_id FROM messages WHERE tenant = %(tenant)s AND user_id = %(user)s
  UNION SELECT thread_id FROM sessions WHERE tenant = %(tenant)s AND user_id = %(user)s) t ORDER BY 1"""
_SHARED = """
SELECT EXISTS (SELECT FROM messages
  WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND user_id <> %(user)s)"""
_THREAD = """
SELECT label, metadata, created_at, last_active_at, message_count FROM thread_activity
WHERE tenant = %(tenant)s AND thread_id = %(thread)s"""
_MESSAGES = """
SELECT to_jsonb(t) - ARRAY['tenant', 'thread_id', 'user_id'] AS row FROM messages t
WHERE tenant = %(tenant)s AND thread_id = %(thread)s AND (NOT %(shared)s OR user_id = %(user)s) ORDER BY seq"""
_OF_THREAD = "SELECT to_jsonb(t) - ARRAY['tenant', 'thread_id'] AS row FROM {} t WHERE {} AND thread_id = %(thread)s"
_MINE = "tenant = %(tenant)s AND user_id = %(user)s"
_TECHNICAL = "ARRAY['tenant', 'user_id', 'terms', 'content_key', 'name_key', 'embedding', 'embedding_model']"
# Section of the document → the query of its rows. A memory has one row for each version, with the time in which it
# held.
_SECTIONS = {
    "memories": f"SELECT to_jsonb(t) - {_TECHNICAL} AS row FROM memories t WHERE {_MINE} ORDER BY thread_id, seq, id",
    "conflicts": f"SELECT to_jsonb(t) - {_TECHNICAL} AS row FROM memory_conflicts t WHERE {_MINE} ORDER BY raised_at",
    "profile": f"SELECT to_jsonb(t) - {_TECHNICAL} AS row FROM profile_texts t WHERE {_MINE} ORDER BY thread_id",
    "preferences": f"SELECT preferences AS row FROM user_preferences t WHERE {_MINE}",
    "entities": f"SELECT to_jsonb(t) - {_TECHNICAL} AS row FROM entities t WHERE {_MINE} ORDER BY type, name",
    "usage": f"SELECT to_jsonb(t) - {_TECHNICAL} AS row FROM usage t WHERE {_MINE} ORDER BY day, agent, purpose",
}
_ITEMS = f"SELECT to_jsonb(t) - {_TECHNICAL} AS row FROM store_items t WHERE tenant = %s AND thread_id = ANY(%s)"

# Events in the person's threads that a read model could not apply; each is listed once, even if several read models
# parked it.
_PASSED_OVER = """
SELECT jsonb_build_object('seq', seq, 'type', min(event_type), 'thread', min(thread_token), 'error', min(error)) AS row
FROM dead_letters WHERE build = 'live' AND projection = ANY(%(projections)s) AND tenant = %(tenant)s
AND thread_token = ANY(%(tokens)s)
GROUP BY seq ORDER BY seq"""


async def user_export(
    conn: Connection,
    log: Log,
    person: Person,
    level: SanitiseLevel | None,
    regions: Sequence[str] = REGIONS,
    on_progress: OnProgress = no_progress,
) -> AsyncIterator[str]:
    """Yields the export of a person: one JSON document, in pieces of text. At most one conversation is in memory.
    level: None exports everything unchanged.

    Empty sections are included too; docs/user-export.schema.json describes the document.
    """
    owner = {"tenant": person.tenant, "user": person.user}
    head = {
        "user": person.user,
        "tenant": person.tenant,
        "exportedAt": datetime.now(UTC),
        "sanitizeLevel": None if level is None else level.name,
    }
    yield json.dumps(to_jsonable_python(head), ensure_ascii=False)[:-1]
    threads = [str(row["thread_id"]) async for row in _rows(conn, _TALKS, owner)]
    for at, thread in enumerate(threads):
        talk = await _conversation(conn, log, owner | {"thread": thread})
        yield (', "conversations": [' if at == 0 else ",") + "\n" + _text(talk, level, regions)
        on_progress(at + 1, len(threads))
    yield "]" if threads else ', "conversations": []'
    for name, query in _SECTIONS.items():
        async for piece in _section(name, _rows(conn, query, owner), level, regions):
            yield piece
    spaces = [thread for thread in await known_threads(conn, person) if person.owns(thread)]
    async for piece in _section("items", _rows(conn, _ITEMS, (person.tenant, spaces)), level, regions):
        yield piece
    mine = {"tokens": sorted(tokens({*threads, *spaces, memory_thread(person.user)})), "projections": list(BY_NAME)}
    async for piece in _section("passedOver", _rows(conn, _PASSED_OVER, owner | mine), level, regions):
        yield piece
    yield "}\n"


def clean_messages(
    rows: Sequence[Message], level: SanitiseLevel | None, regions: Sequence[str] = REGIONS
) -> list[Message]:
    """Returns a transcript with its texts sanitised for an export; names, ids and times stay."""
    if level is None:
        return list(rows)
    clean, messages = partial(sanitise, level=level, regions=regions), []
    for row in rows:
        calls = [{**call, "arguments": clean(call["arguments"])} for call in row.tool_calls]
        messages.append(replace(row, content=clean_content(row.content, clean), tool_calls=calls))
    return messages


async def _conversation(conn: Connection, log: Log, key: Document) -> Document:
    shared = (await anext(_rows(conn, _SHARED, key)))["exists"]
    about = [row async for row in _rows(conn, _THREAD, key)]
    own = {} if shared else await _of_an_own_thread(conn, log, key)
    messages = [row["row"] async for row in _rows(conn, _MESSAGES, key | {"shared": shared})]
    return {"thread": key["thread"], "shared": shared, **(about[0] if about else {}), **own, "messages": messages}


async def _of_an_own_thread(conn: Connection, log: Log, key: Document) -> Document:
    """Returns the conversation's summary, its session, and the receipts of its answers without system prompts."""
    sections: Document = {}
    for name, table in (("summary", "conversation_summaries"), ("session", "sessions")):
        query = _OF_THREAD.format(table, "tenant = %(tenant)s")
        sections[name] = next(iter([row["row"] async for row in _rows(conn, query, key)]), None)
    seen = await receipts(conn, log, key["tenant"], key["thread"])
    kept = {"system_prompt", "type"}
    sections["receipts"] = [
        {"seq": at.seq, "time": at.event.time} | receipt.model_dump(exclude=kept) for at, receipt in seen
    ]
    return sections


async def _section(
    name: str, rows: AsyncIterator[Document], level: SanitiseLevel | None, regions: Sequence[str]
) -> AsyncIterator[str]:
    begin = f',\n"{name}": ['
    async for row in rows:
        yield begin + "\n" + _text(row["row"], level, regions)
        begin = ","
    yield "]" if begin == "," else begin + "]"


def _text(document: Document, level: SanitiseLevel | None, regions: Sequence[str]) -> str:
    plain = to_jsonable_python(document)
    return json.dumps(plain if level is None else sanitise_json(plain, level, regions), ensure_ascii=False)


async def _rows(conn: Connection, query: str, params: Any) -> AsyncIterator[Document]:
    cursor = conn.cursor(row_factory=dict_row)
    await cursor.execute(query.encode(), params)
    async for row in cursor:
        yield row
