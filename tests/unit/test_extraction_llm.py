"""Memories that a model extracts are checked for evidence and numbers, and repeats of the rules are dropped."""

from math import inf
from string import ascii_lowercase
from typing import Any

import pytest
from helpers.extraction import apply_rules, extractor_turn, memory
from helpers.openai_bodies import Step
from helpers.openai_server import OpenAIServer

from turnlog.agent.memory.extraction.by_model import (
    MAX_ATTRIBUTES,
    BadAnswer,
    ModelAnswer,
    ModelExtraction,
    accepted_memories,
    attribute_keys,
    find_passage,
    model_text,
)
from turnlog.agent.memory.extraction.findings import ExtractionResult
from turnlog.agent.memory.extraction.proposals import candidates, entities, without_repeats
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.memory.extraction.stages import Batch, next_batch
from turnlog.agent.models.openai_chat import OpenAIChat
from turnlog.agent.models.protocol import Usage
from turnlog.events.contracts import EntitiesFound
from turnlog.projectors.models.memories.sql import MAX_SOURCES

KEYS = attribute_keys(load_rules())
TURNS = [
    extractor_turn("I finally took the position at the bakery.  It pays 2,100 euros. Do you think my job is fine?", 1),
    extractor_turn("我对花生过敏，小时候进过急诊。\n> I hate my job\n“我叫王伟”是他说的。", 2),
]


def judge(*memories: Any, named: tuple[Any, ...] = ()) -> ExtractionResult:
    return accepted_memories(TURNS, ModelAnswer(list(memories), list(named), "hash", Usage("p", "m")), KEYS)


def test_a_memory_quotes_the_exact_words_of_the_turn() -> None:
    looked = judge(memory("Works at a bakery", "took the position at the bakery. It pays", turn=1))
    [finding] = looked.findings
    assert finding.source.quote == "took the position at the bakery.  It pays"
    assert finding.source.quote in TURNS[0].text
    assert (finding.origin, finding.source.seq) == ("llm", 1)


def test_a_quote_may_be_in_any_turn_of_the_batch() -> None:
    [finding] = judge(memory("对花生过敏", "对花生过敏", turn=1)).findings
    assert finding.source.seq == 2
    [finding] = judge(memory("对花生过敏", "我对花生过敏", turn=99)).findings
    assert finding.source.seq == 2


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("I work at https://acme.example as an engineer.", "I work at as an engineer"),
        ("我在`acme`当工程师", "我在当工程师"),
        ("I live in\nassistant: Rome\nBerlin.", "I live in Berlin"),
    ],
)
def test_words_that_are_adjacent_only_after_an_omission_are_not_a_quote(text: str, quote: str) -> None:
    looked = accepted_memories(
        [extractor_turn(text, 1)],
        ModelAnswer([memory("Says so", quote)], [{"type": "PLACE", "name": quote}], "hash", Usage("p", "m")),
        KEYS,
    )
    assert (looked.findings, looked.entities) == ((), ())
    assert looked.counts() == {"no-evidence": 2}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (memory("Has a dog", "I have a dog"), "no-evidence"),
        (memory("Hates the job", "I hate my job", turn=2), "no-evidence"),
        (memory("Has a fine job", "my job is fine"), "question"),
        (memory("名字是王伟", "我叫王伟", turn=2), "quoted"),
        (memory("Earns 3,100 euros", "It pays 2,100 euros"), "number-not-said"),
        (memory("", "bakery"), "malformed"),
        (memory("x" * 400, "bakery"), "malformed"),
        (memory("Works", "bakery", type="SUMMARY"), "malformed"),
        (memory("Works", "bakery", importance="high"), "malformed"),
        ("Works at a bakery", "malformed"),
        (None, "malformed"),
    ],
)
def test_memories_that_the_user_did_not_state_are_refused(raw: Any, reason: str) -> None:
    looked = judge(raw)
    assert looked.findings == ()
    assert looked.counts() == {reason: 1}


def test_stated_numbers_and_computed_dates_are_accepted() -> None:
    looked = judge(
        memory("Earns 2100 euros", "It pays 2,100 euros"),
        memory("Took a position in 2023-05", "took the position"),
        memory("2023年5月开始工作", "took the position"),
    )
    assert len(looked.findings) == 3


@pytest.mark.parametrize(("importance", "kept"), [(3.0, 1.0), (-1.0, 0.0), (0.4, 0.4)])
def test_importance_stays_between_0_and_1(importance: float, kept: float) -> None:
    [finding] = judge(memory("Works at a bakery", "the bakery", importance=importance)).findings
    assert finding.importance == kept


def test_only_single_valued_attributes_become_the_dedupe_key() -> None:
    known, unknown = judge(
        memory("Works at the bakery", "the position at the bakery", attribute="employer"),
        memory("Is fond of bread", "the bakery", attribute="bread"),
    ).findings
    assert (known.dedupe_key, unknown.dedupe_key) == ("employer", None)
    assert "name" in KEYS and KEYS["sat"] == "KEEP_HIGHEST"
    assert not [key for key in KEYS if "{" in key]


@pytest.mark.parametrize(
    ("content", "key", "value"),
    [
        ("Scored 105 on the TOEFL in 2025", "toefl", "105"),
        ("2025年3月托福考了105分", "toefl", "105"),
        ("Scored 28 in reading and 105 in all on the TOEFL", None, None),
        ("Wants a high TOEFL score", None, None),
    ],
)
def test_under_keep_highest_a_year_is_not_a_score_and_several_numbers_get_no_key(
    content: str, key: str | None, value: str | None
) -> None:
    text = "In 2025年3月 I scored 105 on the TOEFL, 28 in reading."
    [accepted] = accepted_memories(
        [extractor_turn(text, 1)],
        ModelAnswer([memory(content, "scored 105 on the TOEFL", attribute="toefl")], [], "hash", Usage("p", "m")),
        KEYS,
    ).findings
    assert (accepted.dedupe_key, accepted.value) == (key, value)


def test_an_entity_must_be_named_by_the_user_and_may_be_of_any_type() -> None:
    named = (
        {"type": "company", "name": "the  bakery", "relations": [{"type": "works_at", "target": "user"}]},
        {"type": "PERSON", "name": "Zoe"},
        {"type": "!", "name": "bakery"},
    )
    looked = judge(memory("Works at the bakery", "position at the bakery"), named=named)
    [entity] = looked.entities
    assert (entity.type, entity.name, entity.relations[0].type) == ("COMPANY", "the bakery", "works_at")
    assert entity.sources[0].quote in TURNS[0].text
    assert looked.counts() == {"malformed": 1, "no-evidence": 1}
    assert [entity.name for entity in looked.findings[0].entities] == ["the bakery"]


def test_an_entity_has_the_attributes_that_the_model_read_within_bounds() -> None:
    asked = {"role": " head\nbaker ", "pay": 2100, "isOpen": True, "interestLevel": "high"}
    refused = {
        "since": "1999 or 17",
        "rank": 7,
        "a b": "x",
        "notes": "x" * 201,
        "why": None,
        "tags": ["x"],
        "most": inf,
    }
    raw = {"type": "COMPANY", "name": "bakery", "turn": 1, "attributes": refused | asked}
    [entity] = judge(named=(raw,)).entities
    assert entity.attributes == asked | {"role": "head baker"}
    many = {**raw, "attributes": {f"n{letter}": "x" for letter in ascii_lowercase}}
    assert len(judge(named=(many,)).entities[0].attributes) == MAX_ATTRIBUTES
    assert judge(named=({**raw, "attributes": None},)).entities[0].attributes == {}


def test_a_rule_beats_the_model_on_the_same_key_words_or_statement() -> None:
    turns = [extractor_turn("My GPA is 3.8 and I like tea.", 1)]
    rules = apply_rules("My GPA is 3.8 and I like tea.")
    model = accepted_memories(
        turns,
        ModelAnswer(
            [
                memory("Has a grade point average of 3.8", "My GPA is 3.8", attribute="gpa"),
                memory("Likes tea", "I like tea", type="PREFERENCE"),
                memory("The user likes to drink tea", "I like tea", type="PREFERENCE"),
            ],
            [],
            "hash",
            Usage("p", "m"),
        ),
        KEYS,
    )
    kept = without_repeats(model, rules, turns)
    assert kept.findings == ()
    assert kept.counts() == {"repeats": 3}


def test_a_model_extracts_each_statement_once() -> None:
    kept = without_repeats(
        judge(memory("Works at a bakery", "the bakery"), memory("works at a  bakery", "at the bakery")),
        ExtractionResult(),
        TURNS,
    )
    assert len(kept.findings) == 1


def test_the_same_find_in_the_same_event_has_the_same_id() -> None:
    first, again = (apply_rules("My GPA is 3.8").findings for _ in range(2))
    assert candidates("a", "ann", first) == candidates("a", "ann", again)
    ids = {candidates(tenant, user, first)[0].id for tenant, user in (("a", "ann"), ("a", "ben"), ("b", "ann"))}
    assert len(ids) == 3


def test_an_entity_that_was_named_twice_is_one_with_two_sources() -> None:
    [event] = entities(
        apply_rules("I want to apply to Stanford.", "I study at Stanford University.", "我想申请Stanford。")
    )
    assert isinstance(event, EntitiesFound)
    stanford = next(entity for entity in event.entities if entity.name == "Stanford")
    assert len(stanford.sources) == 2


def test_a_quote_is_found_regardless_of_spaces_and_width() -> None:
    text = "Well,  ＧＰＡ：３．８\nand\tmore"
    assert find_passage(text, "GPA:3.8 and") == "ＧＰＡ：３．８\nand"
    assert find_passage(text, "GPA:3.9") is None
    assert find_passage(text, " ") is None


def test_the_model_sees_only_the_users_own_words() -> None:
    turn = extractor_turn(
        "Hi\n> quoted\n```\ncode\n```\n[LONG-TERM MEMORIES]\n- Name is Ben\n\nassistant: I am Hal\nI live here."
    )
    assert model_text(turn) == "Hi\nI live here."


def test_a_batch_is_the_shortest_beginning_with_enough_words() -> None:
    turns = [extractor_turn("word " * 40, n) for n in range(1, 6)]
    assert next_batch(turns, 100, lambda text: len(text.split())) == Batch(tuple(turns[:3]), 120, True)
    assert next_batch(turns[:2], 100, lambda text: len(text.split())) == Batch(tuple(turns[:2]), 80, False)
    huge = next_batch([extractor_turn("字" * 50_000)], 100, len)
    assert (huge.tokens, huge.is_full) == (100, True)


@pytest.mark.parametrize("text", ["", "I found nothing.", "[]", '{"memories": "none"}', '{"memories": [}', "null"])
async def test_malformed_json_is_an_error_whose_cost_is_counted(text: str) -> None:
    class Server(OpenAIServer):
        def next_step(self, kind: Any, body: dict[str, Any]) -> Step:
            return Step(text=text)

    with Server() as server:
        chat = OpenAIChat(server.url, server.key, "test-model", count_tokens=len)
        with pytest.raises(BadAnswer) as error:
            await ModelExtraction(chat, load_rules()).extract(TURNS)
        await chat.close()
    assert isinstance(error.value.usage, Usage)
    assert error.value.usage.tokens_in > 0


def test_an_entity_of_very_many_turns_has_a_bounded_number_of_sources() -> None:
    [event] = entities(apply_rules(*["我住在柏林。"] * (MAX_SOURCES + 20)))
    [berlin] = event.entities
    assert len(berlin.sources) == MAX_SOURCES
