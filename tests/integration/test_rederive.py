"""Memories are derived again with other rules, prompts or models into a trial derivation.

It is compared with the current memories, and then promoted or dropped.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from helpers.extraction import FIRST_TURN_AT, ExtractingServer, memory, user_turn
from helpers.servers import rows

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.extraction.extraction_run import extraction_of, locked
from turnlog.agent.memory.extraction.stages import UserConversation
from turnlog.agent.memory.memory_changes import fields_by_rules
from turnlog.agent.memory.rederiving import Compared, all_shadows, compare, derive, drop, promote
from turnlog.agent.models.factory import make_models
from turnlog.agent.retry_later import NotNow, at_once
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import Answer
from turnlog.events.errors import InvalidToken, NotFound
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.memories.lookup import StoredMemory, conflicts
from turnlog.projectors.models.memories.shadows import all_memories
from turnlog.projectors.models.registry import BY_NAME
from turnlog.projectors.rebuild.rebuild import rebuild_several

pytestmark = pytest.mark.slow

ANN = memory_thread("ann")
TEXTS = ("My name is Ann.", "我住在北京。", "I take cello lessons every Tuesday.")
CELLO = """
[rule.instrument]
name = "Instrument"
type = "PREFERENCE"
category = "music"
importance = 0.6
en = ['''i take (?P<value>\\w+) lessons''']
content = "Instrument: {value}"
dedupe_key = "instrument"
"""


@pytest.fixture
def server() -> Iterator[ExtractingServer]:
    with ExtractingServer() as made:
        yield made


@pytest.fixture
async def runtime(nats_url: str, database_url: str) -> AsyncIterator[Runtime]:
    """Yields a runtime in which only rules have read ann's turns."""
    async with opened(Settings(nats_url=nats_url, database_url=database_url)) as made, projecting(made):
        await made.log.append_many([user_turn(text, n) for n, text in enumerate(TEXTS)])
        await made.wait_until_projected()
        extraction = extraction_of(made, make_models(made.settings))
        async with made.pool.connection() as conn:
            await extraction.by_rules(conn, UserConversation("default", "ann", "t"), finish=True)
        await made.wait_until_projected()
        yield made


def nothing(done: float, total: float | None) -> None:
    """Ignores the progress."""


async def with_settings(runtime: Runtime, **changed: object) -> Runtime:
    settings = runtime.settings.model_copy(update=changed)
    return Runtime(settings, runtime.nats_url, runtime.database_url, runtime.log, runtime.pool)


async def with_cello(runtime: Runtime, tmp_path: Path) -> Runtime:
    file = tmp_path / "rules.toml"
    file.write_text(CELLO)
    return await with_settings(runtime, rules_file=file)


async def real(runtime: Runtime) -> list[StoredMemory]:
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        return await all_memories(conn, "default", ANN)


async def valid(runtime: Runtime) -> set[str]:
    return {row.content for row in await real(runtime) if row.status == "valid"}


async def the_difference(runtime: Runtime) -> Compared:
    [comparison] = await compare(runtime, "default", "next")
    return comparison


async def test_the_same_extractor_makes_no_difference(runtime: Runtime) -> None:
    assert await derive(runtime, "default", "next", [], nothing) == 1
    difference = (await the_difference(runtime)).found
    assert difference.nothing
    assert difference.kept == len(await valid(runtime)) >= 2


async def test_an_additional_rule_adds_a_memory_only_after_promotion(runtime: Runtime, tmp_path: Path) -> None:
    before = await real(runtime)
    await derive(await with_cello(runtime, tmp_path), "default", "next", [], nothing)
    difference = (await the_difference(runtime)).found
    assert [row.content for row in difference.added] == ["Instrument: cello"]
    assert (difference.changed, difference.gone) == ((), ())
    assert await real(runtime) == before


async def test_promoting_adds_new_memories_and_ends_missing_ones(runtime: Runtime, tmp_path: Path) -> None:
    await derive(await with_cello(runtime, tmp_path), "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    assert "Instrument: cello" in await valid(runtime)
    await derive(runtime, "default", "next", [], nothing)
    assert [row.content for row in (await the_difference(runtime)).found.gone] == ["Instrument: cello"]
    await promote(runtime, "default", "next", nothing)
    assert "Instrument: cello" not in await valid(runtime)
    ended = [row for row in await real(runtime) if row.closed_reason == "rederived"]
    assert [row.content for row in ended] == ["Instrument: cello"]


async def test_a_memory_ended_by_a_promotion_is_valid_again_when_found_again(runtime: Runtime, tmp_path: Path) -> None:
    cello = await with_cello(runtime, tmp_path)
    for running in (cello, runtime, cello):
        await derive(running, "default", "next", [], nothing)
        await promote(runtime, "default", "next", nothing)
    assert "Instrument: cello" in await valid(runtime)
    assert len([row for row in await real(runtime) if "cello" in row.content]) == 1


async def test_after_promoting_there_is_no_difference_and_no_trial(runtime: Runtime, tmp_path: Path) -> None:
    cello = await with_cello(runtime, tmp_path)
    await derive(cello, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    assert await all_shadows(runtime, "default") == []
    async with runtime.pool.connection() as conn:
        left = await rows(conn, "SELECT count(*) FROM memories WHERE thread_id LIKE 'shadow/%%'")
    assert left == [(0,)]
    await derive(cello, "default", "next", [], nothing)
    assert (await the_difference(runtime)).found.nothing


async def test_dropping_leaves_everything_as_it_was(runtime: Runtime, tmp_path: Path) -> None:
    before = await real(runtime)
    await derive(await with_cello(runtime, tmp_path), "default", "next", [], nothing)
    assert await drop(runtime, "default", "next") == 1
    assert await real(runtime) == before
    with pytest.raises(NotFound, match="no trial"):
        await compare(runtime, "default", "next")


async def test_manual_changes_are_in_no_difference(runtime: Runtime, tmp_path: Path) -> None:
    memories = Memories(runtime.log, runtime.pool)
    first, *_ = [row for row in await real(runtime) if row.status == "valid"]
    await memories.forget("default", "ann", first.id)
    await memories.remember("default", "ann", "Plays the piano on Sundays")
    await derive(await with_cello(runtime, tmp_path), "default", "next", [], nothing)
    difference = (await the_difference(runtime)).found
    assert [row.content for row in difference.added] == ["Instrument: cello"]
    assert difference.gone == ()


async def test_other_words_do_not_bring_back_a_forgotten_memory(runtime: Runtime, server: ExtractingServer) -> None:
    [home] = [row for row in await real(runtime) if "北京" in row.content]
    await Memories(runtime.log, runtime.pool).forget("default", "ann", home.id)
    server.extracts = {"memories": [memory("她的家在首都北京", "我住在北京", turn=2)], "entities": []}
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    assert not [text for text in await valid(runtime) if "北京" in text]


async def test_a_persons_correction_is_not_contradicted_by_the_replaced_memory(runtime: Runtime) -> None:
    before = await valid(runtime)
    await Memories(runtime.log, runtime.pool).remember(
        "default", "ann", "My name is Bob", **fields_by_rules(runtime.settings, "My name is Bob", datetime.now(UTC))
    )
    by_hand = await valid(runtime)
    assert len(by_hand) == len(before) and by_hand != before
    await derive(runtime, "default", "next", [], nothing)
    assert (await the_difference(runtime)).found.nothing
    await promote(runtime, "default", "next", nothing)
    assert await valid(runtime) == by_hand


def in_2023(runtime: Runtime) -> Memories:
    """Returns Memories whose clock shows the time of the first turn, when no memory has expired."""
    return Memories(runtime.log, runtime.pool, lambda: FIRST_TURN_AT)


@pytest.mark.parametrize("answer", ["new", "old", "both"])
async def test_the_answer_to_a_question_survives_a_promotion(runtime: Runtime, answer: Answer) -> None:
    birthdays = ("I was born on March 3, 1990.", "I was born on April 4, 1991.")
    await runtime.log.append_many([user_turn(text, len(TEXTS) + n) for n, text in enumerate(birthdays)])
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        extraction = extraction_of(runtime, make_models(runtime.settings))
        await extraction.by_rules(conn, UserConversation("default", "ann", "t"), finish=True)
        await runtime.wait_until_projected()
        [question] = await conflicts(conn, "default", ANN)
    await in_2023(runtime).answer("default", "ann", question.conflict_id, answer)
    by_hand = await valid(runtime)
    await derive(runtime, "default", "next", [], nothing)
    assert (await the_difference(runtime)).found.nothing
    await promote(runtime, "default", "next", nothing)
    assert await valid(runtime) == by_hand


async def test_other_words_for_a_memory_written_by_hand_are_not_added(
    runtime: Runtime, server: ExtractingServer
) -> None:
    memories = Memories(runtime.log, runtime.pool)
    await memories.remember("default", "ann", "Takes lessons on the cello on Tuesdays")
    quote = "I take cello lessons every Tuesday"
    found = [memory("Takes cello lessons", quote, turn=3), memory("Likes music", quote, turn=3)]
    server.extracts = {"memories": found, "entities": []}
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    assert [row.content for row in (await the_difference(runtime)).found.added] == ["Likes music"]


async def test_other_words_for_an_edited_memory_without_a_key_are_not_added(
    runtime: Runtime, server: ExtractingServer, tmp_path: Path
) -> None:
    quote = "I take cello lessons every Tuesday"
    server.extracts = {"memories": [memory("Takes cello lessons", quote, turn=3)], "entities": []}
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    [cello] = [row for row in await real(runtime) if row.content == "Takes cello lessons"]
    await Memories(runtime.log, runtime.pool).edit("default", "ann", cello.id, "Takes viola lessons")
    by_hand = await valid(runtime)
    server.extracts = {"memories": [memory("Learns to play the cello", quote, turn=3)], "entities": []}
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("You extract what a musician wants to know.")
    await derive(await with_settings(asked, extract_prompt_file=prompt), "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    assert await valid(runtime) == by_hand >= {"Takes viola lessons"}


async def moved(runtime: Runtime, seq: int) -> StoredMemory:
    """Lets ann say that she lives in Shanghai now; returns the memory of her home in Beijing."""
    await runtime.log.append_many([user_turn("我住在上海。", seq)])
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        extraction = extraction_of(runtime, make_models(runtime.settings))
        await extraction.by_rules(conn, UserConversation("default", "ann", "t"), finish=True)
    [home] = [row for row in await real(runtime) if "北京" in row.content]
    assert home.closed_reason == "superseded"
    return home


async def test_a_memory_that_the_user_reverted_to_stays_valid(runtime: Runtime) -> None:
    home = await moved(runtime, len(TEXTS))
    await in_2023(runtime).revert("default", "ann", home.id)
    by_hand = await valid(runtime)
    await derive(runtime, "default", "next", [], nothing)
    assert (await the_difference(runtime)).found.nothing
    await promote(runtime, "default", "next", nothing)
    assert await valid(runtime) == by_hand >= {home.content}


async def test_a_reverted_memory_stays_valid_if_its_replacement_was_forgotten_before(runtime: Runtime) -> None:
    home, memories = await moved(runtime, len(TEXTS)), in_2023(runtime)
    assert home.replaced_by is not None
    await memories.forget("default", "ann", home.replaced_by)
    await memories.revert("default", "ann", home.id)
    by_hand = await valid(runtime)
    await derive(runtime, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    assert await valid(runtime) == by_hand >= {home.content}


async def test_a_memory_that_was_reverted_after_a_promotion_survives_the_next_one(
    runtime: Runtime, tmp_path: Path
) -> None:
    for running in (await with_cello(runtime, tmp_path), runtime):
        await derive(running, "default", "next", [], nothing)
        await promote(runtime, "default", "next", nothing)
    [cello] = [row for row in await real(runtime) if "cello" in row.content]
    assert cello.closed_reason == "rederived"
    await in_2023(runtime).revert("default", "ann", cello.id)
    await derive(runtime, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    assert cello.content in await valid(runtime)


async def test_turns_after_the_run_are_neither_missing_nor_undone(runtime: Runtime) -> None:
    await derive(runtime, "default", "next", [], nothing)
    await runtime.log.append_many([user_turn("我住在上海。", len(TEXTS))])
    await runtime.wait_until_projected()
    async with runtime.pool.connection() as conn:
        extraction = extraction_of(runtime, make_models(runtime.settings))
        await extraction.by_rules(conn, UserConversation("default", "ann", "t"), finish=True)
    told = await valid(runtime)
    assert [text for text in told if "上海" in text] and not [text for text in told if "北京" in text]
    assert (await the_difference(runtime)).found.nothing
    await promote(runtime, "default", "next", nothing)
    assert await valid(runtime) == told


async def test_a_trial_does_not_wait_for_other_extractions_of_the_conversation(runtime: Runtime) -> None:
    conversation = UserConversation("default", "ann", "t")
    async with runtime.pool.connection() as conn, locked(conn, conversation):
        assert await derive(runtime, "default", "next", [], nothing) == 1
        async with runtime.pool.connection() as other:
            with pytest.raises(NotNow, match="another worker"), at_once():
                async with locked(other, conversation):
                    raise AssertionError("two at once")


async def test_a_models_memories_cost_what_the_difference_says_and_the_same_run_again_costs_nothing(
    runtime: Runtime, server: ExtractingServer
) -> None:
    server.extracts = {
        "memories": [memory("Takes cello lessons", "I take cello lessons every Tuesday", turn=3)],
        "entities": [],
    }
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    comparison = await the_difference(runtime)
    assert [row.content for row in comparison.found.added] == ["Takes cello lessons"]
    assert comparison.cost.calls == 1 and comparison.cost.tokens > 0
    await drop(runtime, "default", "next")
    await derive(asked, "default", "next", [], nothing)
    assert len(server.extractions()) == 1


async def test_another_prompt_asks_the_model_again_and_its_other_results_are_changes(
    runtime: Runtime, server: ExtractingServer, tmp_path: Path
) -> None:
    quote = "I take cello lessons every Tuesday"
    server.extracts = {"memories": [memory("Takes cello lessons", quote, turn=3)], "entities": []}
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    server.extracts = {"memories": [memory("Takes cello lessons on Tuesday", quote, turn=3)], "entities": []}
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("You extract what a musician wants to know.")
    await derive(await with_settings(asked, extract_prompt_file=prompt), "default", "next", [], nothing)
    [(old, new)] = (await the_difference(runtime)).found.changed
    assert (old.content, new.content) == ("Takes cello lessons", "Takes cello lessons on Tuesday")
    await promote(runtime, "default", "next", nothing)
    [ended] = [row for row in await real(runtime) if row.content == "Takes cello lessons"]
    assert (ended.closed_reason, ended.replaced_by) == ("rederived", new.id)
    assert len(server.extractions()) == 2


async def test_without_a_model_the_models_memories_stay(runtime: Runtime, server: ExtractingServer) -> None:
    server.extracts = {"memories": [memory("Takes cello lessons", "I take cello lessons", turn=3)], "entities": []}
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    await derive(runtime, "default", "rules-only", [], nothing)
    [comparison] = await compare(runtime, "default", "rules-only")
    assert comparison.found.gone == ()


async def test_a_rebuild_asks_no_model_and_gives_the_same_rows(runtime: Runtime, server: ExtractingServer) -> None:
    server.extracts = {"memories": [memory("Takes cello lessons", "I take cello lessons", turn=3)], "entities": []}
    asked = await with_settings(runtime, api_base_url=server.url, model="test-model")
    await derive(asked, "default", "next", [], nothing)
    await promote(runtime, "default", "next", nothing)
    before, calls = await real(runtime), len(server.requests)
    await rebuild_several(runtime.log, runtime.database_url, [BY_NAME["memories"]])
    assert await real(runtime) == before
    assert len(server.requests) == calls


async def test_an_invalid_name_and_a_user_without_turns_are_reported(runtime: Runtime) -> None:
    with pytest.raises(InvalidToken, match="cannot be the name of a trial"):
        await derive(runtime, "default", "next one", [], nothing)
    with pytest.raises(NotFound, match="no turn has a user"):
        await derive(runtime, "default", "next", ["nobody"], nothing)
