"""Tests how `make eval` counts, and how it corrects the references in its data."""

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from evaluation import confidence
from evaluation.document import DOCUMENT, put_section
from evaluation.fitting import Case, fit
from evaluation.genres import diary_turns
from evaluation.locomo import read_evidence, turn_events
from evaluation.routing import KINDS, labelled_questions, section
from evaluation.truth import Talk, answered, distinct, drawn, judgements, memories

from turnlog.agent.recall.ranking import Weights
from turnlog.agent.team.teams import bundled_team
from turnlog.events.contracts import TurnRecorded

KNOWN = {"D8:6", "D9:17", "D11:26", "D30:5"}


def test_malformed_references_are_repaired_and_counted() -> None:
    assert read_evidence(["D8:6"], KNOWN) == read_evidence(["D8:6", "D8:6"], KNOWN)
    evidence = read_evidence(["D8:6; D9:17", "D:11:26", "D30:05", "D", "D99:1"], KNOWN)
    assert evidence.turns == KNOWN
    assert (evidence.repaired, evidence.unusable) == (4, 2)


def test_captions_are_left_out_when_text_alone_is_asked_for() -> None:
    turn = {
        "speaker": "Ann",
        "dia_id": "D1:1",
        "text": "Look!",
        "blip_caption": "a red boat",
        "img_url": ["http://x/1"],
    }
    sample = {"sample_id": "c", "conversation": {"session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": [turn]}}
    said = {}
    for captions in (False, True):
        [event] = [e for e in turn_events(sample, captions) if isinstance(e.data, TurnRecorded)]
        assert event.time == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
        said[captions] = str(event.data)
    assert "red boat" in said[True] and "red boat" not in said[False]


def test_fitting_finds_the_weights_that_made_the_evidence() -> None:
    rng = np.random.default_rng(5)
    truth = np.array([2.0, 3.0, 0.5, 0.4, 1.0, -0.8, 0.6, 0.2])
    made = []
    for _ in range(800):
        columns = rng.normal(size=(20, 8))
        score = columns @ truth
        chance = np.exp(score - score.max())
        evidence = np.zeros(20)
        evidence[rng.choice(20, p=chance / chance.sum())] = 1
        made.append(Case(columns, evidence, 1.0))
    weights = fit(made, Weights())
    fitted = [
        weights.words,
        weights.dense,
        weights.near,
        weights.speaker,
        -weights.question,
        weights.opens,
        weights.detail,
    ]
    assert np.allclose(fitted, truth[1:] / truth[0], atol=0.2)


def test_the_fit_of_the_confidence_finds_the_weights_that_made_the_answers() -> None:
    rng = np.random.default_rng(7)
    truth = np.array([-0.5, 3.0, 6.0])
    features = np.column_stack([np.ones(8_000), rng.random(8_000), rng.normal(0, 0.2, 8_000)])
    chance = 1 / (1 + np.exp(-features @ truth))
    answered = rng.random(8_000) < chance
    kinds = np.where(answered, confidence.ANSWERED, "abstention")
    made = [confidence.Case("BEAM", "c", str(kind), tuple(row)) for kind, row in zip(kinds, features, strict=True)]
    assert np.allclose(confidence.fit(made)[1:], truth[1:], rtol=0.15)
    line = confidence.measured(made, chance)
    low = confidence.measured(made, 1 - chance)
    assert line.auroc["abstention"] > 0.7 > 0.3 > low.auroc["abstention"]


def test_a_section_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.md"
    put_section(path, "Turns", "old")
    put_section(path, "Memories", "kept")
    put_section(path, "Turns", "new")
    assert path.read_text().count("## Turns") == 1
    assert "old" not in path.read_text() and "new\n\n## Memories\n\nkept\n" in path.read_text()


@pytest.mark.nightly
def test_without_the_conversations_nothing_is_measured_and_it_says_what_is_needed(tmp_path: Path) -> None:
    before = DOCUMENT.read_bytes()
    run = [sys.executable, "-m", "tests.evaluation"]
    environment = {**os.environ, "TURNLOG_EVALUATION_DATA": str(tmp_path)}
    told = subprocess.run(run, cwd=DOCUMENT.parents[1], env=environment, capture_output=True, text=True, check=True)
    assert "not evaluated" in told.stderr and "TURNLOG_EVALUATION_DATA" in told.stderr
    assert DOCUMENT.read_bytes() == before


def _diary(*said: str) -> Talk:
    messages = [{"id": n, "time": "2024年03月01日 星期五 09:00", "text": text} for n, text in enumerate(said)]
    turns = diary_turns({"kind": "simple", "tid": 1, "messages": messages})
    return Talk("simple-1", turns, [frozenset({"simple-1:0", "simple-1:1"}), frozenset({"simple-1:2"})])


def test_memories_are_drawn_once_each_and_the_same_with_the_same_seed() -> None:
    talk = _diary("我喜欢喝茶。", "我喜欢喝茶。我住在上海。", "今天下雨。")
    extracted = memories([talk])
    assert [memory.finding.content for memory in distinct(extracted)] == ["住在上海", "喜欢喝茶"]
    assert drawn(distinct(extracted), 7) == drawn(distinct(extracted), 7)
    assert answered(extracted, [talk]) == (1, 2)


def test_a_memory_made_differently_has_another_key_and_a_judgement_has_no_words_of_the_data() -> None:
    tea, coffee = (distinct(memories([_diary(text)]))[0] for text in ("我喜欢喝茶。", "我喜欢喝咖啡。"))
    assert tea.key != coffee.key and len(tea.key) == 16
    for judgement in judgements().values():
        assert set(judgement) <= {"genre", "key", "turn", "rule", "true", "why"}
        assert judgement["true"] == ("why" not in judgement)


def test_two_hundred_questions_are_labelled_half_of_them_misleading() -> None:
    questions = labelled_questions()
    assert Counter((asked.kind, asked.language) for asked in questions) == {
        (kind, language): 50 for kind in KINDS for language in ("zh", "en")
    }
    assert len({asked.question for asked in questions}) == 200
    assert {asked.agent for asked in questions} == set(bundled_team().agents)


def test_the_document_states_the_accuracy_of_the_router() -> None:
    assert section().strip() in DOCUMENT.read_text("utf-8")
