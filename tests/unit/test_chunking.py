"""Turns are cut into chunks."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from helpers.nightly import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from turnlog.events.contracts import (
    Content,
    Event,
    ImageBlock,
    Recorded,
    Role,
    TextBlock,
    ThinkingBlock,
    ThreadOpened,
    ToolResultBlock,
    ToolUseBlock,
    TurnRecorded,
)
from turnlog.projectors.models.chunks import chunking as pieces
from turnlog.projectors.models.chunks.chunking import (
    MAX_PIECES,
    PIECE_TOKENS,
    chunks,
    estimated_tokens,
    fold,
    index_texts,
)
from turnlog.projectors.models.conversation.speech import TOOL_RESULT_CHARS

MAY_8 = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def turn(content: Content, role: Role = "user", seq: int = 1, thread: str = "t", **more: object) -> Recorded:
    days = more.pop("days", 0)
    assert isinstance(days, int)
    tenant = str(more.pop("tenant", "default"))
    data = TurnRecorded.model_validate({"role": role, "content": content, **more})
    event = Event(id=UUID(int=seq), time=MAY_8 + timedelta(days=days), thread=thread, tenant=tenant, data=data)
    return Recorded(event=event, seq=seq, partition=0, stored_at=event.time)


def test_a_turn_is_one_chunk_indexed_with_date_and_speaker() -> None:
    (chunk,) = chunks(turn("I ran 5 km.", name="Ann", source_id="D1:1", seq=7))
    assert chunk.text == "I ran 5 km."
    assert chunk.index_text == "[8 May 2023] Ann: I ran 5 km."
    assert (chunk.seqs, chunk.source_ids, chunk.terms) == ((7,), ("D1:1",), ("ran", "5", "km"))


def test_without_a_name_the_role_speaks() -> None:
    assert chunks(turn("Hello there", "assistant"))[0].index_text == "[8 May 2023] assistant: Hello there"


def test_thinking_images_tool_calls_and_system_prompts_make_no_chunk() -> None:
    blocks = (ThinkingBlock(thinking="secret"), ImageBlock(url="data:x"), ToolUseBlock(id="1", name="bash"))
    assert chunks(turn(blocks, "assistant")) == []
    assert chunks(turn("You are helpful", "system")) == []
    assert chunks(turn("  \x00\n ")) == []
    assert chunks(turn((*blocks, TextBlock(text="the answer")), "assistant"))[0].text == "the answer"


def test_turns_that_only_repeat_memory_make_no_chunk() -> None:
    result = turn('{"items": [{"text": "Ann: I have a corgi"}]}', role="tool", name="recall_memory", tool_call_id="c1")
    quoted = turn("[offline, no language model configured] I found:", role="assistant", model="offline-extractive")

    assert chunks(result) == chunks(quoted) == []
    assert index_texts(result.event) == index_texts(quoted.event) == []
    assert chunks(turn("12 degrees", role="tool", name="weather", tool_call_id="c2"))


def test_events_other_than_turns_make_no_chunk() -> None:
    event = turn("x").event.model_copy(update={"data": ThreadOpened(label="words")})
    assert chunks(Recorded(event=event, seq=1, partition=0, stored_at=event.time)) == []


def test_only_the_beginning_of_a_tool_result_is_kept() -> None:
    output = "line of output. " * 1000
    block = ToolResultBlock(tool_use_id="1", content=(TextBlock(text=output),))
    for recorded in (turn(output, "tool"), turn((block,), "user"), turn((block,), "tool")):
        text = "".join(chunk.text for chunk in chunks(recorded))
        assert text.startswith("line of output") and len(text) <= TOOL_RESULT_CHARS


def test_the_same_words_on_the_same_day_are_one_chunk_with_all_their_turns() -> None:
    said = [turn("Thanks!", seq=n, source_id=f"D1:{n}") for n in (1, 5)]
    (chunk,) = fold(chunk for recorded in (*said, said[0]) for chunk in chunks(recorded))
    assert (chunk.seqs, chunk.source_ids) == ((1, 5), ("D1:1", "D1:5"))
    assert chunk.event_ids == (UUID(int=1), UUID(int=5))


def test_another_day_speaker_thread_or_tenant_is_another_chunk() -> None:
    alike = [
        turn("I ran"),
        turn("I ran", days=1),
        turn("I ran", name="Ann"),
        turn("I ran", thread="u"),
        turn("I ran", tenant="b"),
    ]
    assert len(fold(chunk for recorded in alike for chunk in chunks(recorded))) == len(alike)


def test_a_long_turn_is_cut_at_sentence_borders_with_overlap() -> None:
    sentences = [f"This is sentence number {n} of a long story." for n in range(200)]
    made = chunks(turn(" ".join(sentences)))
    assert len(made) > 3 and [chunk.piece for chunk in made] == list(range(len(made)))
    assert all(chunk.text.startswith("This") and chunk.text.endswith("story.") for chunk in made)
    for before, after in pairwise(made):
        assert after.text[:30] in before.text
    assert all(any(sentence in chunk.text for chunk in made) for sentence in sentences)


def test_chinese_is_cut_at_its_own_full_stops() -> None:
    made = chunks(turn("今天天气很好，我们去了公园。" * 100))
    assert len(made) > 2 and all(chunk.text.endswith("。") for chunk in made)


@settings(max_examples=examples(100))
@given(st.text(min_size=1, max_size=6000) | st.text("ab. 。\n", min_size=2000, max_size=6000))
def test_no_piece_is_too_long_and_no_character_is_lost(text: str) -> None:
    made = chunks(turn(text))
    assert all(estimated_tokens(chunk.text) <= PIECE_TOKENS for chunk in made)
    assert set("".join(chunk.text for chunk in made)) >= set("".join(text.replace("\x00", "").split()))
    assert chunks(turn(text)) == made


def test_each_of_many_short_sentences_is_counted_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def count(text: str) -> float:
        nonlocal counted
        counted += len(text)
        return estimated_tokens(text)

    monkeypatch.setattr(pieces, "estimated_tokens", count)
    text = "短句。" * 10_000
    assert len(pieces.pieces(text)) > 50
    assert counted < 6 * len(text)


def test_a_long_text_without_any_border_is_cut_too() -> None:
    made = chunks(turn("x" * 100_000))
    assert sum(len(chunk.text) for chunk in made) >= 100_000


@pytest.mark.parametrize(
    "sentence",
    [
        "I ran 5 km with Ann. ",
        "没有句号的话",
        *(
            pytest.param(text, marks=pytest.mark.nightly)
            for text in ("no end of it ", "x", "我喜欢喝绿茶。", "中文 and English ")
        ),
    ],
)
def test_only_a_bounded_beginning_of_a_huge_turn_is_chunked(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is counted: seven megabytes need as much as one megabyte, with or without sentence ends."""
    measured: list[int] = []

    def measuring(text: str) -> float:
        measured.append(len(text))
        return estimated_tokens(text)

    monkeypatch.setattr(pieces, "estimated_tokens", measuring)
    text = sentence * (7_000_000 // len(sentence.encode()))
    made = pieces.pieces(text)
    assert len(made) == MAX_PIECES
    assert text.startswith(made[0])
    assert max(map(estimated_tokens, made)) <= PIECE_TOKENS
    assert sum(measured) < 20 * MAX_PIECES * 4 * PIECE_TOKENS


def test_a_large_turn_is_chunked_to_its_end() -> None:
    text = "I ran 5 km with Ann. " * 40_000 + "The end."
    made = pieces.pieces(text)
    assert len(made) <= MAX_PIECES
    assert made[-1].endswith("The end.")
