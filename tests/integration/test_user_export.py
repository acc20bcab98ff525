"""A person's export contains all of their data, sanitised, and nobody else's."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from helpers.personal_events import conversation, secret
from helpers.sample_events import DERIVED, event, turn
from helpers.stage import Play, Stage, player

from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.privacy.erasure.event_scan import person_of
from turnlog.agent.privacy.export import clean_messages, user_export
from turnlog.consumers.cli.exporting import write_user
from turnlog.events.contracts import ProfileWritten
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.conversation.message import thread_messages

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "user-export.schema.json").read_text("utf-8"))
MAIL = "write to ann@example.com or call 13812345678, GPA: 3.9"


@pytest.fixture
def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ["projectors"])


@pytest.fixture
async def stage(play: Play) -> AsyncIterator[Stage]:
    async with play() as opened:
        yield opened


async def exported(stage: Stage, user: str, level: SanitiseLevel | None = SanitiseLevel.MODERATE) -> Any:
    await stage.runtime.wait_until_projected()
    person = person_of("default", user)
    async with stage.runtime.pool.connection() as conn:
        pieces = [piece async for piece in user_export(conn, stage.runtime.log, person, level)]
    document = json.loads("".join(pieces))
    jsonschema.validate(document, SCHEMA)
    return document


async def test_an_export_contains_everything_of_a_person_and_nothing_of_others(stage: Stage) -> None:
    for user in ("ann", "bob"):
        await stage.runtime.log.append_many(conversation(user, 4))
        of_memories = {"memories": ((UUID(int=1),),), "lines": (UUID(int=1),), "derivation": DERIVED}
        written = ProfileWritten(sentences=(secret(user, "profile"),), **of_memories)
        await stage.runtime.log.append(event(written, memory_thread(user), user=user))
    export = await exported(stage, "ann")
    assert [text["sentences"] for text in export["profile"]] == [[secret("ann", "profile")]]
    [talk] = export["conversations"]
    assert [message["content"] for message in talk["messages"]] == [*(secret("ann", "said", n) for n in range(4)), ""]
    assert talk["summary"]["summary"] == secret("ann", "summary", 3)
    assert talk["session"]["user_snapshot"] == {"name": secret("ann", "snapshot")}
    assert len(talk["receipts"]) == 4
    assert {memory["content"] for memory in export["memories"]} == {secret("ann", "memory", n) for n in (0, 2)}
    assert export["memories"][0]["sources"][0]["quote"] == secret("ann", "quote", 0)
    assert {entity["name"] for entity in export["entities"]} == {secret("ann", "entity", n) for n in (1, 3)}
    assert {item["value"]["text"] for item in export["items"]} == {secret("ann", "item", n) for n in range(4)}
    assert export["usage"][0]["tokens_in"] == 6
    assert "bob" not in json.dumps(export)


async def test_an_export_is_sanitised_by_level(stage: Stage) -> None:
    await stage.runtime.log.append(turn(MAIL, user="ann"))
    shown = {
        level: (await exported(stage, "ann", level))["conversations"][0]["messages"][0]["content"]
        for level in (None, *SanitiseLevel)
    }
    assert shown[None] == shown[SanitiseLevel.LIGHT] == MAIL
    assert shown[SanitiseLevel.MODERATE] == "write to a***@*** or call 138****5678, GPA: 3.9"
    assert shown[SanitiseLevel.FULL] == "write to a***@*** or call 138****5678, GPA: [已脱敏]"


async def test_only_the_persons_own_turns_of_a_shared_thread_are_exported(stage: Stage) -> None:
    await stage.runtime.log.append_many([turn("mine", user="ann"), turn("not mine", user="bob")])
    [talk] = (await exported(stage, "ann"))["conversations"]
    assert talk["shared"] and [message["content"] for message in talk["messages"]] == ["mine"]


async def test_an_unknown_person_has_an_empty_export(stage: Stage) -> None:
    export = await exported(stage, "nobody")
    assert export["conversations"] == export["memories"] == export["items"] == []


async def test_an_export_writes_to_a_pipe_or_device_without_replacing_it(stage: Stage, tmp_path: Path) -> None:
    await stage.runtime.log.append(turn("mine", user="ann"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        size = await write_user(stage.runtime.settings, "default", "ann", None, pipe)
        assert pipe.is_fifo()
        assert len(os.read(reading, 4 * size).decode()) == size
    finally:
        os.close(reading)


async def test_turns_are_sanitised_on_their_way_in_when_the_settings_say_so(play: Play) -> None:
    async with play(sanitise_before_publish="MODERATE") as stage:
        await stage.runtime.log.append(turn(MAIL, user="ann"))
        await stage.runtime.wait_until_projected()
        assert await stage.rows("SELECT content FROM messages") == [
            ("write to a***@*** or call 138****5678, GPA: 3.9",)
        ]


async def test_a_transcript_is_sanitised_and_keeps_its_ids(stage: Stage) -> None:
    await stage.runtime.log.append(turn(MAIL, user="ann"))
    await stage.runtime.wait_until_projected()
    async with stage.runtime.pool.connection() as conn:
        [row] = await thread_messages(conn, "default", "t")
    [clean] = clean_messages([row], SanitiseLevel.FULL)
    assert clean.event_id == row.event_id and "ann@" not in str(clean.content)
    assert clean_messages([row], None) == [row]
