"""Ranking puts the right chunks first, even with unusual input."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from numpy.typing import NDArray

from turnlog.agent.recall import Query, ScopeIndex, VectorMismatch, Weights, rank, rank_parts
from turnlog.agent.recall.scope import Chunks
from turnlog.projectors.models.terms import terms

START = datetime(2023, 5, 8, tzinfo=UTC)
ALONE = Weights(before=(), after=(), question=0)


def scope(
    *said: str,
    vectors: NDArray[np.floating] | None = None,
    threads: list[str] | None = None,
    positions: list[int] | None = None,
    roles: list[str] | None = None,
) -> ScopeIndex:
    """Returns a scope with a chunk for each `speaker: text`, one per day."""
    pairs = [line.split(": ", 1) for line in said]
    return ScopeIndex.of_chunks(
        Chunks.of(
            texts=[text for _, text in pairs],
            terms=[terms(text) for _, text in pairs],
            speakers=[speaker for speaker, _ in pairs],
            times=[START + timedelta(days=n) for n in range(len(pairs))],
            roles=roles,
            vectors=vectors,
        ),
        threads=threads,
        positions=positions,
    )


def best(query: str, index: ScopeIndex, vector: NDArray[np.floating] | None = None, k: int = 5) -> list[int]:
    return [scored.chunk for scored in rank(Query(query, vector), index, k)]


def test_the_turn_with_the_rare_word_comes_first() -> None:
    index = scope("A: the dog ran home", "B: the dog met a llama", "A: the dog slept")
    assert best("dog and llama", index)[0] == 1


def test_without_vectors_only_turns_with_something_in_common_come_back() -> None:
    filler = [f"A: nothing here {n}" for n in range(9)]
    assert best("llama", scope("A: a llama", *filler), k=10) == [0, 1, 2, 3]
    assert best("zebra", scope("A: a llama", *filler)) == []
    assert best("", scope("A: a llama")) == []


def test_the_answer_next_to_the_question_is_found_and_the_question_itself_comes_after_it() -> None:
    filler = [f"A: filler number {n}" for n in range(20)]
    index = scope(*filler, "A: Where was that?", "B: By the lake in Banff.", *filler)
    ranked = rank(Query("where was that"), index)
    assert ranked == []
    index = scope(*filler, "A: Nice! Adoption interviews, how did they go?", "B: I passed them!", *filler)
    assert set(best("adoption interviews", index, k=2)) == {20, 21}


def test_context_does_not_cross_threads() -> None:
    index = scope("A: the llama", "A: next thread", threads=["x", "y"])
    assert best("llama", index) == [0]


def test_turns_that_were_not_loaded_reduce_the_context_part() -> None:
    assert best("llama", scope("A: the llama", "A: far away", positions=[0, 50])) == [0]
    near = rank(Query("llama"), scope("A: the llama", "A: next", positions=[0, 1]))[1].parts["context"]
    gap = rank(Query("llama"), scope("A: the llama", "A: next but one", positions=[0, 2]))[1].parts["context"]
    assert near > gap > 0


def test_the_named_speakers_turn_comes_before_the_turn_that_names_the_speaker() -> None:
    index = scope("Bob: Thanks Ann, great pottery", "Ann: I love pottery")
    assert rank(Query("What does Ann love about pottery?"), index, weights=ALONE)[0].chunk == 1


def test_a_query_of_a_name_alone_still_finds_something() -> None:
    assert best("Ann", scope("Bob: hello Ann", "Cid: good morning")) == [0, 1]
    assert best("Bob", scope("Bob: hello there", "Cid: good morning")) == [0]


def test_a_role_is_still_a_word() -> None:
    index = scope("user: good morning", "assistant: file permissions of each user", "assistant: fine")
    assert rank(Query("user permissions"), index, weights=ALONE)[0].chunk == 1


def test_a_date_in_the_query_finds_the_turns_of_that_day_in_both_languages() -> None:
    index = scope(*[f"A: went for a walk {n}" for n in range(20)])
    for query in ("the walk on 11 May 2023", "2023年5月11日 walk", "walk 2023-05-11"):
        assert rank(Query(query), index, weights=ALONE)[0].chunk == 3


def test_vectors_find_what_words_do_not() -> None:
    vectors = np.eye(4, dtype=np.float32)
    index = scope("A: one", "A: two", "A: three", "A: four", vectors=vectors)
    assert rank(Query("zzz", vectors[2]), index, weights=ALONE)[0].chunk == 2


def test_chunks_without_vectors_yet_are_ranked_by_their_words() -> None:
    vectors = np.array([[1, 0], [np.nan, np.nan], [0, 1], [1, 1]], dtype=np.float32)
    index = scope("A: one", "A: the llama", "A: three", "A: four", vectors=vectors)
    ranked = rank(Query("llama", vectors[2]), index, weights=ALONE)
    assert {s.chunk for s in ranked} == {0, 1, 2, 3} and ranked[0].chunk == 1
    assert ranked[0].parts["dense"] == 0 and all(np.isfinite(s.score) for s in ranked)


def test_without_any_vector_only_keyword_search_is_used() -> None:
    texts = ("A: one", "A: the llama", "A: three")
    missing = np.full((3, 2), np.nan, dtype=np.float32)
    keyword = rank(Query("llama"), scope(*texts))
    assert rank(Query("llama", np.array([1.0, 0])), scope(*texts, vectors=missing)) == keyword
    assert rank(Query("llama"), scope(*texts, vectors=np.eye(3))) == keyword


def test_length_and_sign_of_unnormalised_vectors_do_not_matter() -> None:
    vectors = np.array([[3.0, 1], [1, 3], [2, 2]])
    query = Query("x", np.array([1.0, 0]))
    plain = [s.chunk for s in rank(query, scope("A: a1", "A: b1", "A: c1", vectors=vectors))]
    scaled = [s.chunk for s in rank(query, scope("A: a1", "A: b1", "A: c1", vectors=vectors * [[9], [1], [5]]))]
    assert plain == scaled


def test_a_query_from_another_embedding_model_is_refused_by_name() -> None:
    with pytest.raises(VectorMismatch, match="rebuild memory_vectors"):
        rank(Query("x", np.ones(3)), scope("A: a", vectors=np.ones((1, 2))))


def test_turns_that_may_not_come_back_still_lend_context() -> None:
    index = scope("A: the llama", "A: yes it was here")
    ranked = rank(Query("llama"), index, allowed=np.array([False, True]))
    assert [s.chunk for s in ranked] == [1] and ranked[0].parts["context"] > 0


def test_parts_add_up_to_the_score() -> None:
    rng = np.random.default_rng(1)
    index = scope(*[f"Ann: llama {n} walks?" for n in range(30)], vectors=rng.normal(size=(30, 8)))
    for scored in rank(Query("Ann llama 7", rng.normal(size=8)), index, k=30):
        assert scored.score == pytest.approx(sum(scored.parts.values()), abs=1e-4)


def test_ties_go_to_the_earlier_turn() -> None:
    index = ScopeIndex.of_chunks(
        Chunks.of(
            texts=["llama"] * 5,
            terms=[["llama"]] * 5,
            speakers=["A"] * 5,
            times=[START] * 5,
        ),
        threads=list("abcde"),
    )
    assert best("llama", index, k=5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["O'Brien", "Bob-Smith", "Ann Lee", "José", "李雷"])
def test_an_index_of_some_words_knows_a_speaker_by_any_word_of_the_name(name: str) -> None:
    for word in terms(name):
        index = ScopeIndex.of_chunks(
            Chunks.of(texts=["hello"], terms=[["hello"]], speakers=[name], times=[START], words={word})
        )
        assert word in index.names


def test_chinese_questions_find_chinese_turns() -> None:
    index = scope("user: 我很喜欢绘画和弹钢琴", "user: 今天学了清蒸鲈鱼", "user: 我去了绿禾公园看樱花", "user: 早上好")
    assert best("你最近学了什么菜？鲈鱼", index)[0] == 1
    assert best("公园里看到了什么花？樱花吗", index)[0] == 2


def test_an_empty_scope_has_no_answer() -> None:
    assert best("x", scope()) == []
    assert best("llama", scope("A: the llama"), k=0) == []


def test_feedback_raises_turns_that_are_similar_to_the_best() -> None:
    """The words of the two best turns lead to a similar turn that shares no word with the question."""
    said = ("A: kayaks are fun", "B: a red boat", "A: paddling on rivers", "B: tax forms", "A: soup", "B: chess")
    vectors = np.array([[1, 0, 0.1], [0.9, 0.1, 0.1], [0.8, 0, 0.3], [0, 1, 0.3], [0, 0.8, 1], [0.1, 0.9, 0.6]])
    ranked = rank(Query("kayaks boat", np.array([0.5, 0.5, 0.2])), scope(*said, vectors=vectors), 6)
    lifted = {scored.chunk: scored.parts["feedback"] for scored in ranked}
    assert lifted[2] > 0 > max(lifted[3], lifted[4], lifted[5])
    assert ranked[2].chunk == 2


def test_feedback_does_not_raise_the_best_turn_itself() -> None:
    said = ("A: a llama", "B: soup", "A: chess", "B: tax forms")
    vectors = np.array([[1, 0, 0], [0, 1, 0.2], [0, 0.9, 0.4], [0.1, 0.8, 0.1]])
    first = rank(Query("llama", np.array([0.9, 0.2, 0.1])), scope(*said, vectors=vectors), 1)[0]
    assert first.chunk == 0
    assert first.parts["feedback"] < 0


def test_of_equal_turns_the_one_in_the_thread_or_session_with_the_best_comes_first() -> None:
    said = ("Ann: my boss is fine", "Ann: my boss works in Bern", "Ann: my boss is fine", "Ann: my boss is ill")
    threads = scope(*said, threads=list("aabb"))
    assert best("boss in Bern", threads)[:2] == [1, 0]
    assert best("boss who is ill", threads)[:2] == [3, 2]
    sessions = scope(*said[::-1], *["Ann: soup"] * 4, *said[::-1])
    parts = {scored.chunk: scored.parts for scored in rank(Query("boss in Bern"), sessions, 12)}
    assert parts[2]["session"] > parts[1]["session"] > 0
    assert parts[2]["thread"] == parts[1]["thread"]


def test_the_parts_of_a_question_lead_to_the_thread_that_has_something_for_each() -> None:
    """Two threads mention a boss, but only one also mentions a phone."""
    said = ("Ann: my boss is 42", "Ann: soup", "Ann: my boss is 42", "Ann: my phone is red")
    index = scope(*said, threads=list("aabb"))
    assert best("boss aged 42", index)[0] == 0
    boss, phone = rank_parts([Query("boss aged 42"), Query("which phone")], index)
    assert [boss[0].chunk, phone[0].chunk] == [2, 3]


def test_a_turn_that_may_not_come_back_does_not_lift_its_thread() -> None:
    said = ("Ann: a llama in Bern", "Ann: a llama", "Ann: a llama")
    index = scope(*said, threads=list("aab"), positions=[1, 50, 1])
    lifted, other = rank(Query("llama in Bern"), index, allowed=np.array([False, True, True]))
    assert lifted.parts["thread"] == other.parts["thread"] > 0


def test_words_alone_have_no_feedback() -> None:
    assert "feedback" not in rank(Query("llama"), scope("A: a llama", "B: a llama too", "A: llamas"))[0].parts


def test_a_long_neighbour_lends_less_than_a_short_one() -> None:
    filler = " ".join(f"word{number}" for number in range(200))
    told = scope(
        "Ann: Sounds good", f"Bob: the webinar {filler}", "Ann: Fine", "Bob: the webinar is on", threads=list("aabb")
    )
    context = {scored.chunk: scored.parts["context"] for scored in rank(Query("webinar"), told, 4)}
    assert context[0] < context[2] / 3


def test_a_long_answer_of_the_assistant_comes_after_the_same_words_of_a_person() -> None:
    long = f"my budget is small {' '.join(f'word{number}' for number in range(80))}"
    told = scope(
        f"assistant: {long}", f"user: {long}", "assistant: the budget", "user: the budget", threads=list("abcd")
    )
    ranked = {scored.chunk: scored for scored in rank(Query("budget"), told, 4)}
    assert ranked[0].score < ranked[1].score
    assert ranked[2].score == ranked[3].score


def test_an_assistant_with_a_name_is_known_by_its_role() -> None:
    said = [f"my budget is small {' '.join(f'word{number}' for number in range(80))}", "a budget"]
    unnamed = scope(f"assistant: {said[0]}", f"user: {said[1]}")
    named = scope(f"Max: {said[0]}", f"user: {said[1]}", roles=["assistant", "user"])
    assert rank(Query("budget"), named, 2) == rank(Query("budget"), unnamed, 2)


def test_a_long_turn_is_long_beside_what_people_say_not_beside_an_assistants_answers() -> None:
    short, long = "user: my budget", f"user: my budget {'and much more ' * 20}"
    answers = [f"assistant: {'a long answer without it ' * 60}"] * 4
    among_people, beside_answers = scope(short, long), scope(short, long, *answers)
    assert among_people.statistics.length == beside_answers.statistics.length
    assert scope(*answers).statistics.length > 100


def test_turns_of_one_speaker_lend_less_to_each_other_than_turns_of_two() -> None:
    told = scope("Ann: the webinar", "Ann: fine", "Bob: the webinar", "Ann: fine", threads=list("aabb"))
    context = {scored.chunk: scored.parts["context"] for scored in rank(Query("webinar"), told, 4)}
    assert 0 < context[1] < context[3]


def test_the_form_of_a_long_turn_counts_in_talk_between_people_and_less_with_an_assistant() -> None:
    """One user has two threads. A short turn to an assistant counts as one between people."""
    told = ["user: a llama?", "user: a llama in 2019", f"user: a llama in 2019? {'much more about it ' * 50}"]
    index = scope(*told, *told, "assistant: Hello!", threads=[*["people"] * 3, *["chat"] * 4])
    parts = {scored.chunk: scored.parts for scored in rank(Query("llama"), index, 7)}
    assert parts[0]["question"] == parts[3]["question"] < 0 < parts[1]["detail"] == parts[4]["detail"]
    assert parts[2]["question"] < parts[5]["question"] < 0 < parts[5]["detail"] < parts[2]["detail"]


def test_the_weight_of_the_assistants_words_follows_the_requested_speaker() -> None:
    index = scope(f"assistant: a plan {'for your budget ' * 40}", "user: my budget", threads=["a", "b"])
    scores = {}
    for words_of in ("anyone", "people", "user"):
        scores[words_of] = {scored.chunk: scored.score for scored in rank(Query("budget", words_of=words_of), index)}
    assert scores["anyone"][0] > scores["people"][0] > scores["user"][0]
    assert scores["anyone"][1] == scores["people"][1] == scores["user"][1]
