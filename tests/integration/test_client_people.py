"""Profiles of a person, and opening a memory without a block, work the same in the process and over HTTP."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from helpers.client import Face, served
from helpers.client import face as face
from helpers.client import given as given
from helpers.client import model as model

import turnlog
from turnlog._memory import NotSettled
from turnlog.agent.memory.preferences import InvalidPreference
from turnlog.consumers.sync_bridge import LoopClosed
from turnlog.events.errors import NotFound, TurnlogError

pytestmark = pytest.mark.slow


async def test_a_memory_without_a_block_is_closed_once(face: Face) -> None:
    memory = await face().start()
    await memory.thread("t", user="ann").add("user", "hello")
    await memory.close()
    await memory.close()
    for call in (memory.threads(), memory.thread("t", user="ann").add("user", "hello"), memory.preferences("ann")):
        with pytest.raises(LoopClosed, match="this memory is closed"):
            await call
    async with face() as memory:
        assert [turn.content for turn in await memory.thread("t", user="ann").messages()] == ["hello"]
        await memory.close()


def test_a_memory_without_asyncio_is_closed_early(given: dict[str, Any]) -> None:
    with turnlog.open(**given) as memory:
        memory.thread("t", user="ann").add("user", "hello")
        memory.close()
    with pytest.raises(LoopClosed):
        memory.threads()


async def test_a_session_keeps_slots_and_what_is_known_of_the_user(face: Face) -> None:
    async with face() as memory:
        thread = memory.thread("t", user="ann")
        await thread.add("user", "Book a table.")
        with pytest.raises(NotFound):
            await thread.session()
        await thread.begin_session(window=4_000)
        slots = {"city": "Porto", "guests": 2}
        await thread.set_session(agent="booking", global_state={"agent_slots": slots, "current_intent": "book"})
        changed = await thread.set_session(global_state={"agent_slots": {"guests": None}})
        assert changed.flow_context.current_agent_key == "booking"
        kept = (await thread.session()).global_state
        assert (kept.agent_slots, kept.current_intent) == ({"city": "Porto"}, "book")


async def test_preferences_are_set_and_cleared(face: Face) -> None:
    async with face() as memory:
        assert (await memory.set_preferences("ann", language="zh", response_length="brief")).language == "zh"
        assert (await memory.set_preferences("ann", clear=["language"])).language is None
        assert (await memory.set_preferences("ann", retention_days=30)).retention_days == 30
        with pytest.raises(TurnlogError, match="retention_days"):
            await memory.set_preferences("ann", retention_days=0)
        assert (await memory.preferences("ann")).response_length == "brief"
        with pytest.raises(InvalidPreference):
            await memory.set_preferences("ann", colour="red")


async def test_a_person_decides_what_happens_to_secrets(face: Face) -> None:
    async with face() as memory:
        thread = memory.thread("t", user="ann")
        await thread.add("user", "My PIN is 4711.")
        await memory.set_preferences("ann", secrets="refuse")
        with pytest.raises(TurnlogError, match="secrets=refuse"):
            await thread.add("user", "My wifi password is swordfish.")
        # an answer is not refused, because its question is already stored
        await thread.add("assistant", "Your password is hunter22")
        await memory.set_preferences("ann", secrets="mask")
        await thread.add("user", "My wifi password is swordfish.")
        await memory.set_preferences("ann", secrets="keep")
        await thread.add("user", "My PIN is 4712.")
        with pytest.raises(TurnlogError, match="MEMORY_REMEMBER_SECRETS"):  # the operator does not allow secrets
            await memory.remember("ann", "My wifi password is swordfish.")
        assert [turn.content for turn in await thread.messages()] == [
            "My PIN is 4711.",
            "Your password is ****",
            "My wifi password is ****.",
            "My PIN is 4712.",
        ]


async def test_a_memory_can_be_reworded(face: Face) -> None:
    async with face() as memory:
        before = await memory.remember("ann", "Ann plays the cello.")
        await memory.edit("ann", before.memory_id, "Ann plays the viola.")
        assert [remembered.content for remembered in await memory.memories("ann")] == ["Ann plays the viola."]
        with pytest.raises(NotFound):
            await memory.edit("ann", uuid4(), "Ann sings.")


async def test_receipts_follow_into_a_fork(face: Face) -> None:
    async with face() as memory:
        thread = memory.thread("t", user="ann")
        first = await thread.add("user", "My corgi is called Sesame.")
        context = await thread.context("What is my dog called?")
        await thread.add("assistant", "Sesame.", receipt=context.receipt)
        (receipt,) = await thread.receipts()
        assert receipt.receipt.as_of_seq >= first.seq
        fork = await thread.fork(first.seq, thread="u", label="a fork")
        assert (fork.id, (await fork.info()).label) == ("u", "a fork")
        assert [turn.content for turn in await fork.messages()] == ["My corgi is called Sesame."]
        assert await fork.receipts() == [] and len(await thread.messages()) == 3


async def test_all_data_of_a_person_is_exported(face: Face) -> None:
    async with face() as memory:
        await memory.thread("t", user="ann").add("user", "My card is 4111 1111 1111 1111.")
        masked, light = await memory.export("ann"), await memory.export("ann", level="light")
        assert masked["user"] == "ann" and "4111 1111" not in str(masked)
        assert [talk["thread"] for talk in light["conversations"]] == ["t"]


@pytest.mark.parametrize("kind", ["open", "connect"])
async def test_settled_waits_until_memories_are_extracted(given: dict[str, Any], tmp_path: Path, kind: str) -> None:
    offline = {name: given[name] for name in ("nats_url", "database_url")} | {"home": tmp_path}
    async with AsyncExitStack() as stack:
        if kind == "open":
            memory = await stack.enter_async_context(turnlog.open(**offline))
        else:
            api = await stack.enter_async_context(served(offline, tmp_path, "reactors"))
            memory = await stack.enter_async_context(turnlog.connect(api.url, key=api.token("ann")))
        await memory.thread("t", user="ann").add("user", "My corgi is called Sesame. My sister Mia lives in Lisbon.")
        await memory.settled("ann")
        assert any("Sesame" in remembered.content for remembered in await memory.memories("ann"))
        assert "Mia" in {entity.name for entity in await memory.entities("ann", "person")}


async def test_settled_fails_if_no_process_extracts(given: dict[str, Any]) -> None:
    async with turnlog.open(**given | {"extract": True}, roles=("projectors",)) as memory:
        await memory.thread("t", user="ann").add("user", "My corgi is called Sesame.")
        with pytest.raises(NotSettled, match=r"1 turn .* `reactors`"):
            await memory.settled("ann", timeout_s=0.1)
