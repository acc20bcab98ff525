"""Extraction, compactions, the archive, keys and personal data, on real servers."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from helpers.extraction import user_turn
from helpers.key_rings import KEK
from helpers.personal_events import conversation, secret
from helpers.sample_events import turn
from pydantic import SecretStr

from turnlog.agent.conversations.threads import list_threads
from turnlog.agent.memory.entities import EntityInput, add_entity, list_entities
from turnlog.agent.memory.extraction.extract_now import NothingChosen, extract_memories, preview_extraction
from turnlog.agent.memory.memories import MemoryFilter, list_memories
from turnlog.agent.memory.memory_changes import list_compactions, remember, undo_compaction
from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel
from turnlog.agent.operations.archives import (
    NoAge,
    archive_conversations,
    list_cold_conversations,
    restore_conversation,
)
from turnlog.agent.privacy.erasure.erasure_plan import StringsTooShort
from turnlog.agent.privacy.keys.kek import InvalidKek
from turnlog.agent.privacy.keys.key_status import key_status, rewrap_keys, rotate_key
from turnlog.agent.privacy.personal_data import (
    NothingNamed,
    Parts,
    clear_person,
    erase_person,
    export_person,
    plan_clearing,
    plan_erasure,
)
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.erasing import erasure_reach
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.errors import InvalidToken, NotFound

pytestmark = pytest.mark.slow

EVERY = MemoryFilter(every=True)


@pytest.fixture
async def runtime(nats_url: str, database_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    settings = Settings(nats_url=nats_url, database_url=database_url, home=tmp_path, kek=SecretStr(KEK))
    async with opened(settings) as made, projecting(made):
        yield made


async def test_a_preview_stores_nothing_and_an_extraction_all_of_it(runtime: Runtime) -> None:
    await runtime.log.append_many([user_turn("My GPA is 3.6. Is my GPA of 3.8 ok?"), user_turn("我住在北京。", 1)])
    [preview] = await preview_extraction(runtime, "default", "t")
    assert [(memory.content, memory.outcome) for memory in preview.memories] == [
        ("GPA is 3.60", "recorded"),
        ("住在北京", "recorded"),
    ]
    assert [(rejection.reason, rejection.quote) for rejection in preview.rejected] == [
        ("question", "Is my GPA of 3.8 ok?")
    ]
    assert await list_memories(runtime, "default", "ann", EVERY) == []
    [made] = await extract_memories(runtime, "default", user="ann")
    assert made.stages["rules"] is not None and made.stages["rules"].stored == 2
    assert len(await list_memories(runtime, "default", "ann", EVERY)) == 2
    with pytest.raises(NothingChosen):
        await extract_memories(runtime, "default")
    with pytest.raises(NotFound):
        await preview_extraction(runtime, "default", "t", "bob")


async def test_a_user_without_compactions_has_nothing_to_undo(runtime: Runtime) -> None:
    assert await list_compactions(runtime, "default", "ann") == []
    with pytest.raises(NotFound):
        await undo_compaction(runtime, "default", "ann", UUID(int=7))
    with pytest.raises(InvalidToken):
        await list_compactions(runtime, "default", "")


async def test_cold_conversations_go_into_files_and_come_back(runtime: Runtime) -> None:
    await runtime.log.append_many([turn("我喝茶", thread=thread, user="ann") for thread in ("茶 1", "t")])
    with pytest.raises(NoAge):
        await archive_conversations(runtime)
    assert {cold.thread for cold in await list_cold_conversations(runtime, 30)} == {"茶 1", "t"}
    made = await archive_conversations(runtime, 30)
    assert (made.archived, made.left_out, made.errors, made.folder) == (2, 0, 0, runtime.settings.archive)
    assert [(await restore_conversation(runtime, "default", "t")).restored for _ in range(2)] == [True, False]
    with pytest.raises(NotFound):
        await restore_conversation(runtime, "default", "nobody")


async def test_a_key_is_rotated_and_all_are_wrapped_again(runtime: Runtime) -> None:
    with pytest.raises(NotFound):
        await rotate_key(runtime, "default", "ann")
    await runtime.log.append(turn("hello", user="ann"))
    made = await rotate_key(runtime, "default", "ann")
    status = await key_status(runtime)
    assert status.sealing and status.kek is not None and made.user == "ann"
    [use] = status.keys
    assert (use.kek_id, use.users, use.current, use.retired) == (status.kek.id, 1, 1, 1)
    assert (await rewrap_keys(runtime)).kek == status.kek.id
    unsealed = replace(runtime, settings=runtime.settings.model_copy(update={"kek": None}))
    with pytest.raises(InvalidKek):
        await rewrap_keys(unsealed)


async def test_a_person_is_exported_and_erased(runtime: Runtime) -> None:
    await runtime.log.append_many([*conversation("ann", 2), *conversation("bob", 2)])
    text = "".join([piece async for piece in export_person(runtime, "default", "ann", None)])
    assert secret("ann", "said", 0) in text and secret("bob", "said", 0) not in text
    masked = json.loads(
        "".join([piece async for piece in export_person(runtime, "default", "ann", SanitiseLevel.FULL)])
    )
    assert (masked["user"], masked["sanitizeLevel"]) == ("ann", "FULL")
    reach = erasure_reach(runtime.settings)
    with pytest.raises(NotFound):
        await plan_erasure(runtime, "default", "nobody", reach)
    with pytest.raises(StringsTooShort):
        await plan_erasure(runtime, "default", "ann", reach, strings=["ab"])
    plan = await plan_erasure(runtime, "default", "ann", reach, strings=[secret("ann", "said", 0)])
    assert "talk-ann" in plan.traces.own
    receipt = await erase_person(runtime, plan, reach, "asked to")
    assert (receipt.hits, receipt.data.reason) == ({}, "asked to")
    left = "".join([piece async for piece in export_person(runtime, "default", "ann", None)])
    assert secret("ann", "said", 0) not in left


ANN = ("default", "ann")


async def exported(runtime: Runtime, user: str) -> str:
    return "".join([piece async for piece in export_person(runtime, "default", user, None)])


async def with_words(runtime: Runtime) -> list[str]:
    return [memory.content for memory in await list_memories(runtime, *ANN, EVERY) if memory.status != "forgotten"]


async def test_clearing_only_memories_does_not_extract_them_again(runtime: Runtime) -> None:
    await runtime.log.append_many([*conversation("ann", 3), *conversation("bob", 3), user_turn("My GPA is 3.6.")])
    await extract_memories(runtime, "default", user="ann")
    await add_entity(runtime, *ANN, EntityInput("PERSON", "Mia"))
    before = [entity.name for entity in await list_entities(runtime, *ANN)]
    assert "GPA is 3.60" in await with_words(runtime)
    plan = await plan_clearing(runtime, *ANN, Parts(memories=True))
    made = await clear_person(runtime, *ANN, Parts(memories=True))
    assert made == plan and made.memories == 3 and (made.conversations, made.entities) == ((), 0)
    left, others = await exported(runtime, "ann"), await exported(runtime, "bob")
    assert secret("ann", "memory", 0) not in left and secret("ann", "said", 0) in left
    assert secret("bob", "memory", 0) in others
    assert [entity.name for entity in await list_entities(runtime, *ANN)] == before
    await extract_memories(runtime, "default", user="ann")
    assert await with_words(runtime) == []
    head = await runtime.log.head()
    assert (await clear_person(runtime, *ANN, Parts(memories=True))).memories == 0
    assert await runtime.log.head() == head
    await remember(runtime, *ANN, "I like tea")
    assert await with_words(runtime) == ["I like tea"]


async def test_conversations_are_cleared_except_those_in_which_others_speak(runtime: Runtime) -> None:
    shared = [turn("hello", thread="both", user=user, minutes=at) for at, user in enumerate(("ann", "bob"))]
    await runtime.log.append_many([*conversation("ann", 3), *conversation("bob", 3), *shared])
    made = await clear_person(runtime, *ANN, Parts(conversations=True))
    assert (made.conversations, made.kept, made.memories, made.entities) == (("talk-ann",), ("both",), 0, 0)
    assert {thread.thread for thread in await list_threads(runtime, "default")} == {"talk-bob", "both"}
    left = await exported(runtime, "ann")
    assert secret("ann", "said", 0) not in left and secret("ann", "memory", 0) in left
    head = await runtime.log.head()
    assert (await clear_person(runtime, *ANN, Parts(conversations=True))).conversations == ()
    assert await runtime.log.head() == head


async def test_entities_can_be_cleared_alone(runtime: Runtime) -> None:
    await runtime.log.append_many([*conversation("ann", 4), *conversation("bob", 4)])
    made = await clear_person(runtime, *ANN, Parts(entities=True))
    assert (made.entities, made.memories, made.conversations) == (2, 0, ())
    assert await list_entities(runtime, *ANN) == []
    assert len(await list_entities(runtime, "default", "bob")) == 2
    assert secret("ann", "memory", 0) in await exported(runtime, "ann")
    assert (await clear_person(runtime, *ANN, Parts(entities=True))).entities == 0
    with pytest.raises(NothingNamed):
        await clear_person(runtime, *ANN, Parts())
    with pytest.raises(InvalidToken):
        await clear_person(runtime, "default", "", Parts(entities=True))
