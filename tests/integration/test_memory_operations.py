"""The operations on long-term memory, which programs and interfaces call, on the real log and database."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from helpers.servers import unlike_a_rebuild

from turnlog.agent.memory.deciding.by_hand import InvalidMemory
from turnlog.agent.memory.deciding.revisions import MemoryNotInUse
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.memories import (
    AmbiguousMemory,
    MemoryFilter,
    find_memory,
    list_conflicts,
    list_memories,
    memory_history,
)
from turnlog.agent.memory.memory_changes import (
    AmbiguousConflict,
    ForgottenAsAsked,
    MemoryInput,
    answer_conflict,
    archive_memory,
    edit_memory,
    forget_as_asked,
    forget_memory,
    rate_memory,
    remember,
    revert_memory,
)
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import MemorySource
from turnlog.events.errors import InvalidToken, NotFound
from turnlog.projectors.models.memories.projection import MEMORIES

ANN = ("default", "ann")
SOON = datetime.now(UTC) + timedelta(days=3)


@pytest.fixture
async def runtime(nats_url: str, database_url: str) -> AsyncIterator[Runtime]:
    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as made, projecting(made):
        yield made


async def contents(runtime: Runtime, limit: int = 100, **which: Any) -> list[str]:
    return sorted(memory.content for memory in await list_memories(runtime, *ANN, MemoryFilter(**which), limit))


async def test_manual_values_take_precedence_over_the_rules(runtime: Runtime) -> None:
    memory_input = MemoryInput(
        "My GPA is 3.8", "DECISION", "school", 0.25, SOON, {"from": "form 7", "学期": [1, None], "to": None}
    )
    made = await remember(runtime, *ANN, memory_input)
    [view] = await list_memories(runtime, *ANN)
    assert (view.id, view.kind, view.category, view.importance) == (made.memory_id, "DECISION", "school", 0.25)
    assert (view.expires_at, view.value, view.status, view.user) == (SOON, "3.80", "valid", "ann")
    assert view.metadata == {"from": "form 7", "学期": [1, None], "to": None}
    assert await contents(runtime, as_of=SOON) == []  # although no job has closed it
    assert view.score.tier in ("WORKING", "SHORT", "LONG", "ARCHIVE")
    again = await remember(runtime, *ANN, memory_input, made.memory_id)
    assert (again.what, again.memory_id) == ("known", made.memory_id)


async def test_memories_are_filtered_by_kind_category_and_importance(runtime: Runtime) -> None:
    for text, kind, category, importance in (
        ("The key is under the pot", "FACT", "home", 0.9),
        ("The bin goes out on Monday", "FACT", "home", 0.2),
        ("Tea is better than coffee", "PREFERENCE", "food", 0.7),
    ):
        await remember(runtime, *ANN, MemoryInput(text, kind, category, importance))  # type: ignore[arg-type]
    assert await contents(runtime, kinds=("PREFERENCE",)) == ["Tea is better than coffee"]
    assert len(await contents(runtime, category="home")) == 2
    assert await contents(runtime, category="home", min_importance=0.5) == ["The key is under the pot"]
    assert await contents(runtime, limit=1, min_importance=0.8) == ["The key is under the pot"], "not of the last one"
    assert await contents(runtime, kinds=("FACT",), category="food") == []


async def test_a_change_appears_in_the_next_list_and_in_the_history(runtime: Runtime) -> None:
    await remember(runtime, *ANN, "I have two cats")
    edited = await edit_memory(runtime, *ANN, "two cats", "I have three cats")
    assert (edited.before, await contents(runtime)) == ("I have two cats", ["I have three cats"])
    history = await memory_history(runtime, "default", None, str(edited.memory))
    assert [memory.content for memory in history.history] == ["I have two cats", "I have three cats"]
    rated = await rate_memory(runtime, *ANN, "three cats", 0.25)
    assert (await find_memory(runtime, *ANN, str(rated.memory)[:8])).importance == 0.25
    reverted = await revert_memory(runtime, *ANN, str(edited.replaced))
    assert (reverted.memory, await contents(runtime)) == (edited.replaced, ["I have two cats"])
    gone = await forget_memory(runtime, *ANN, "two cats")
    assert edited.replaced in gone.forgotten
    assert await contents(runtime) == []


async def test_a_memory_is_archived_with_a_reason_and_comes_back(runtime: Runtime) -> None:
    await remember(runtime, *ANN, "The key is under the pot")
    made = await archive_memory(runtime, *ANN, "the pot", "  We have\nmoved. ")
    assert (made.reason, await contents(runtime)) == ("We have moved.", [])
    [view] = await list_memories(runtime, *ANN, MemoryFilter(every=True))
    assert (view.id, view.status, view.archived_reason) == (made.memory, "archived", "We have moved.")
    before = await runtime.log.head()
    await archive_memory(runtime, *ANN, str(made.memory), "We have moved.")
    assert await runtime.log.head() == before, "a repeated call changes nothing"
    await revert_memory(runtime, *ANN, "the pot")
    [view] = await list_memories(runtime, *ANN)
    assert (view.status, view.archived_at, view.archived_reason) == ("valid", None, None)
    for reason in ("", "x" * 501):
        with pytest.raises(InvalidMemory):
            await archive_memory(runtime, *ANN, "the pot", reason)
    edited = await edit_memory(runtime, *ANN, "the pot", "The key is in the shed")
    with pytest.raises(MemoryNotInUse):
        await archive_memory(runtime, *ANN, str(edited.replaced), "We have moved.")


async def test_an_open_question_is_listed_and_answered(runtime: Runtime) -> None:
    with pytest.raises(NotFound):
        await answer_conflict(runtime, *ANN, "new")
    await ask_user(runtime, "gpa", "My GPA is 3.8", "My GPA is 3.9")
    [question] = await list_conflicts(runtime, *ANN)
    await ask_user(runtime, "home", "I live in Oslo", "I live in Rome")
    with pytest.raises(AmbiguousConflict):
        await answer_conflict(runtime, *ANN, "new")
    answered = await answer_conflict(runtime, *ANN, "new", str(question.conflict_id)[:13])
    assert (answered.conflict, answered.question) == (question.conflict_id, question.question)
    assert await contents(runtime) == ["I live in Oslo", "My GPA is 3.9"]
    await answer_conflict(runtime, *ANN, "both")
    assert [conflict.answer for conflict in await list_conflicts(runtime, *ANN, answered=True)] == ["new", "both"]


async def test_invalid_input_is_refused_with_the_reason(runtime: Runtime) -> None:
    await remember(runtime, *ANN, "I like tea")
    await remember(runtime, *ANN, "I like cake")
    with pytest.raises(AmbiguousMemory, match="I like tea"):
        await find_memory(runtime, *ANN, "I like")
    with pytest.raises(NotFound):
        await find_memory(runtime, "default", "bob", "tea")
    with pytest.raises(NotFound):
        await memory_history(runtime, "acme", None, str(UUID(int=7)))
    with pytest.raises(InvalidMemory, match="WISH"):
        await list_memories(runtime, *ANN, MemoryFilter(kinds=("WISH",)))  # type: ignore[arg-type]
    with pytest.raises(InvalidMemory, match="importance"):
        await remember(runtime, *ANN, MemoryInput("I like pie", importance=3))
    with pytest.raises(InvalidMemory, match="MEMORY_REMEMBER_SECRETS"):
        await remember(runtime, *ANN, "My wifi password is swordfish")
    with pytest.raises(InvalidMemory, match="MEMORY_REMEMBER_SECRETS"):
        await edit_memory(runtime, *ANN, "I like tea", "My card is 4111 1111 1111 1111")
    with pytest.raises(InvalidToken):
        await list_memories(runtime, "default", "")
    with pytest.raises(InvalidToken):
        await remember(runtime, "a b", "ann", "I like tea")


async def test_forgetting_takes_whole_words_and_lists_what_several_memories_share(runtime: Runtime) -> None:
    for said in ("My corgi is called Bo", "I like tea", "I like cake", "我的生日是五月三号"):
        await remember(runtime, *ANN, said)
    for part in ("corg", "ik", "生", "a", "日是", "I", "!!"):
        with pytest.raises((AmbiguousMemory, NotFound)):
            await forget_memory(runtime, *ANN, part)
    with pytest.raises(AmbiguousMemory) as shared:
        await forget_memory(runtime, *ANN, "like")
    assert {candidate["content"] for candidate in shared.value.candidates} == {"I like tea", "I like cake"}
    assert len(await contents(runtime)) == 4
    for words in ("CORGI", "生日", shared.value.candidates[0]["id"]):
        await forget_memory(runtime, *ANN, words)
    assert len(await contents(runtime)) == 1


async def ask_user(runtime: Runtime, key: str, *texts: str) -> None:
    from turnlog.agent.memory.deciding.service import Memories

    for text in texts:
        made = {"dedupe_key": key, "strategy": "ASK_USER"}
        await Memories(runtime.log, runtime.pool).remember(*ANN, text, **made)  # type: ignore[arg-type]


async def test_a_message_forgets_the_one_memory_that_it_names(runtime: Runtime) -> None:
    for said in (
        "My birthday is May 5",
        "I live in Rome",
        "My cat is called Tom",
        "My cat Ben is old",
        "我的生日是五月三号",
    ):
        await remember(runtime, *ANN, said)
    asked = {
        text: await forget_as_asked(runtime, *ANN, text)
        for text in (
            "Forget my birthday!",
            "把我的生日忘了吧",
            "Forget my cat",
            "Forget my age",
            "Don't forget my cat Tom",
        )
    }
    done = [answer.named[0][1] for answer in asked.values() if answer and answer.done]
    assert done == ["My birthday is May 5", "我的生日是五月三号"]
    several, none, other = list(asked.values())[2:]
    assert several is not None
    assert sorted(content for _, content in several.named) == ["My cat Ben is old", "My cat is called Tom"]
    assert none is not None
    assert (none.words, none.named, none.done) == ("age", (), False)
    assert other is None
    await runtime.wait_until_projected()
    assert await contents(runtime) == ["I live in Rome", "My cat Ben is old", "My cat is called Tom"]
    assert await forget_as_asked(runtime, "default", "bob", "Forget my cat Tom") is not None
    assert "My cat is called Tom" in await contents(runtime)
    gone = await forget_as_asked(runtime, *ANN, "please forget that I live in Rome.")
    assert gone is not None
    assert gone.done


async def test_the_usual_name_of_a_thing_names_its_memory(runtime: Runtime) -> None:
    now, memories = datetime.now(UTC), Memories(runtime.log, runtime.pool)
    for who, said, phone, email in (
        ("ann", "My phone number is +393471 and my email is a@x.org", "Phone: +393471", "Email: a@x.org"),
        ("mei", "我的电话号码是13800，邮箱是m@x.org", "电话：13800", "邮箱：m@x.org"),
    ):
        source = MemorySource(thread="t", seq=1, event_id=uuid4(), quote=said, said_at=now)
        for key, content in (("phone", phone), ("email", email)):
            await memories.remember("default", who, content, dedupe_key=key, sources=(source,))
    for who, text in (("ann", "Forget my phone number"), ("mei", "忘记我的手机号"), ("ann", "Forget my email address")):
        gone = await forget_as_asked(runtime, "default", who, text)
        assert gone is not None
        assert gone.done, gone


async def test_a_sentence_does_not_forget_everything(runtime: Runtime) -> None:
    await remember(runtime, *ANN, "I live in Rome")
    for text in ("Please forget everything about me", "请忘记关于我的一切"):
        assert await forget_as_asked(runtime, *ANN, text) == ForgottenAsAsked(None, (), False)
    await runtime.wait_until_projected()
    assert await contents(runtime) == ["I live in Rome"]


async def test_metadata_is_forgotten_with_the_words_and_edited_along(runtime: Runtime) -> None:
    await remember(runtime, *ANN, MemoryInput("Likes rowing", metadata={"by": "coach Lee"}))
    await edit_memory(runtime, *ANN, "rowing", "Likes sculling")
    await runtime.wait_until_projected()
    assert [memory.metadata for memory in await list_memories(runtime, *ANN)] == [{"by": "coach Lee"}]
    await forget_memory(runtime, *ANN, "sculling")
    await runtime.wait_until_projected()
    assert {memory.metadata for memory in await list_memories(runtime, *ANN, MemoryFilter(every=True))} == {None}
    assert await unlike_a_rebuild(runtime.log, runtime.database_url, [MEMORIES]) == {}


@pytest.mark.parametrize("metadata", [["a"], {"a": float("nan")}, {"a": "x" * 4_000}, {"a": object()}])
async def test_metadata_is_a_small_json_object(runtime: Runtime, metadata: Any) -> None:
    with pytest.raises(InvalidMemory, match="metadata"):
        await remember(runtime, *ANN, MemoryInput("Likes tea", metadata=metadata))
