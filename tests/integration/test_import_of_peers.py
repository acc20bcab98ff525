"""Memories of other products become memories without a quote; LangGraph's tables become turns."""

import json
from pathlib import Path
from typing import Any

import psycopg
from helpers.stage import player
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from turnlog.agent.memory.memories import list_memories
from turnlog.agent.operations.importers import Defaults, ImportedTurn, read
from turnlog.agent.operations.importers.remote import download
from turnlog.agent.operations.importing import ImportReport, ImportRequest, import_conversations, prepare_import
from turnlog.agent.runtime import Runtime
from turnlog.events.progress import no_progress

# The tables of langgraph-checkpoint-postgres 3.2.
TABLES = (
    "CREATE SCHEMA peer; SET search_path TO peer; CREATE TABLE checkpoints (thread_id text, checkpoint_ns text, "
    "checkpoint_id text, checkpoint jsonb, metadata jsonb); CREATE TABLE checkpoint_blobs (thread_id text, "
    "checkpoint_ns text, channel text, version text, type text, blob bytea)"
)


async def imported(runtime: Runtime, path: Path, user: str | None = None) -> ImportReport:
    request = ImportRequest(path, None, Defaults(tenant="default", user=user), embed=False)
    nothing = no_progress
    return await import_conversations(runtime, prepare_import(request), nothing, nothing, nothing)


async def test_imported_memories_are_valid_once_and_quote_nobody(
    nats_url: str, database_url: str, tmp_path: Path
) -> None:
    def memory(id_: str, text: str, **more: Any) -> dict[str, Any]:
        return {"id": id_, "memory": text, "user_id": "ann", "created_at": "2026-05-01T10:00:00Z", **more}

    path = tmp_path / "mem0.json"
    over = memory("3", "Is on holiday", expiration_date="2026-05-09")
    secret, nobodys = memory("4", "The password is hunter2-Xk9!"), memory("5", "Likes tea", user_id=None)
    path.write_text(
        json.dumps({"results": [memory("1", "I live in Porto"), memory("2", "Has a dog"), over, secret, nobodys]})
    )
    async with player(nats_url, database_url, ("projectors",), extract=True)() as stage:
        first, again = await imported(stage.runtime, path), await imported(stage.runtime, path)
        assert (first.memories, first.turns, [rejection.where[-1] for rejection in first.rejected]) == (
            3,
            0,
            ["4", "5"],
        )
        assert (again.memories, again.known_memories) == (0, 3)
        rows = await stage.rows(
            "SELECT content, origin, sources, valid_from::date::text FROM memories ORDER BY content"
        )
        assert [tuple(row) for row in rows] == [
            (text, "imported", [], "2026-05-01") for text in ("Has a dog", "I live in Porto", "Is on holiday")
        ]
        held = await list_memories(stage.runtime, "default", "ann")
        assert {remembered.content for remembered in held} == {"Has a dog", "I live in Porto"}


async def test_langgraphs_messages_keep_the_time_of_the_checkpoint_that_first_has_them(
    empty_database_url: str, tmp_path: Path
) -> None:
    call = {"name": "look", "args": {"at": "sea"}, "id": "c1"}
    messages = [HumanMessage("Where is it?", id="1"), AIMessage("", id="2", tool_calls=[call])]
    messages += [ToolMessage("there", id="3", tool_call_id="c1"), AIMessage("There.", id="4")]
    async with await psycopg.AsyncConnection.connect(empty_database_url, autocommit=True) as conn:
        await conn.execute(TABLES)
        for version, until in (("1", 1), ("2", 4)):
            kind, blob = JsonPlusSerializer().dumps_typed(messages[:until])
            row_key = ("t1", "", str(uuid6(clock_seq=until)))
            checkpoint, about = {"channel_versions": {"messages": version}}, {"user_id": "ann"}
            await conn.execute(
                "INSERT INTO checkpoints VALUES (%s, %s, %s, %s, %s)",
                (*row_key, json.dumps(checkpoint), json.dumps(about)),
            )
            await conn.execute(
                "INSERT INTO checkpoint_blobs VALUES (%s, '', 'messages', %s, %s, %s)", ("t1", version, kind, blob)
            )
    path, format = download(f"{empty_database_url}&options=-c%20search_path%3Dpeer", None, None, None, tmp_path)
    turns = [turn for turn in read(path, format) if isinstance(turn, ImportedTurn)]
    assert [(turn.thread, turn.user, turn.data.role, turn.data.source_id) for turn in turns] == [
        ("t1", "ann", role, id_) for id_, role in zip("1234", ("user", "assistant", "tool", "assistant"), strict=True)
    ]
    assert turns[0].time < turns[1].time == turns[3].time
    assert [(tool_call.name, tool_call.arguments) for tool_call in turns[1].data.tool_calls] == [
        ("look", '{"at": "sea"}')
    ]
