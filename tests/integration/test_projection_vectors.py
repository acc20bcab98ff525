"""The read model `memory_vectors` has the chunks of every turn with topics and vectors, and episodes."""

from helpers.projection_spec import Spec, seq, stored
from helpers.sample_events import BLOCKS, derivation, event, turn

from turnlog.events.contracts import ChunksEmbedded, Event, ThreadDeleted, TopicsTagged
from turnlog.events.stored import recorded
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.chunking import chunks
from turnlog.projectors.models.chunks.projection import VECTORS

CHUNKS = "SELECT seq, seqs, speaker, chunk FROM memory_vectors ORDER BY seq, piece"
TOPICS = "SELECT chunk, topics FROM memory_vectors ORDER BY seq"
CHAT = ("Hi.", "Hello.", "What about the essay?", "due 8 May", "In May.", "Thanks.")
VECTOR_ROWS = "SELECT chunk, embedding::text, embedding_model FROM memory_vectors ORDER BY seq"
EPISODES = (
    "SELECT q.chunk, a.chunk FROM memory_episodes e JOIN memory_vectors q ON q.id = e.question_chunk "
    "JOIN memory_vectors a ON a.id = e.answer_chunk ORDER BY e.question_seq"
)
CACHED = (
    "DELETE FROM embedding_cache; INSERT INTO embedding_cache (model, text_hash, embedding) SELECT m, "
    "sha256(convert_to('[8 May 2023] user: I run', 'UTF8')), e::halfvec FROM (VALUES ('small', '[1,0,0]'), "
    "('large', '[0,1,0,0]')) AS v (m, e)"
)


def chunk_id(turn_event: Event) -> str:
    return chunks(recorded(stored(turn_event, 1)))[0].id


def embedded(model: str, *ids: str, dimensions: int = 3) -> Event:
    return event(ChunksEmbedded(model=model, dimensions=dimensions, chunk_ids=ids))


def tagged(first: int, last: int, *topics: str) -> Event:
    return event(TopicsTagged(topics=dict.fromkeys(topics, 1), derivation=derivation(first, last)))


async def test_each_turn_with_words_is_a_chunk_of_its_speaker(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("Be kind.", "system"), turn("I run", name="Ann", source_id="D1:1", user="ann"), turn("  "))
        .when(turn([block.model_dump() for block in BLOCKS], "assistant"))
        .then(
            CHUNKS,
            [
                (seq(2), [seq(2)], "Ann", "I run"),
                (seq(4), [seq(4)], "assistant", "It is on 8 May. 五月八日。\n8 May"),
            ],
        )
    )


async def test_the_same_words_on_one_day_are_one_chunk_that_names_every_turn(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("ok", source_id="a"), turn("I run", source_id='odd "id"'), turn("ok"))
        .when(turn("ok", source_id="d", minutes=5), turn("ok", minutes=24 * 60), turn("ok", thread="u"))
        .then(
            "SELECT thread_id, seqs, source_ids FROM memory_vectors ORDER BY seq",
            [
                ("t", [seq(1), seq(3), seq(4)], ["a", None, "d"]),
                ("t", [seq(2)], ['odd "id"']),
                ("t", [seq(5)], [None]),
                ("u", [seq(6)], [None]),
            ],
        )
    )


async def test_a_chunk_of_often_repeated_words_names_the_first_hundred_turns(db: Connection) -> None:
    often = [turn("ok", "user" if n % 2 else "assistant") for n in range(1, 231)]
    users = [seq(n) for n in range(1, 200, 2)]
    answers = [seq(n + 1) for n in range(1, 200, 2)]
    spec = Spec(db, VECTORS, sizes=(31, 200, 460)).given(*often)
    await spec.then(
        "SELECT seqs, cardinality(event_ids) FROM memory_vectors ORDER BY seq", [(users, 100), (answers, 100)]
    )
    await spec.then(
        "SELECT count(*), max(question_seq), max(answer_seq) FROM memory_episodes", [(115, seq(229), seq(230))]
    )


async def test_an_answer_that_comes_in_a_later_batch_finds_its_question(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("Why?"), turn("", "assistant"), turn("looking it up", "assistant"), turn("8 May", "tool"))
        .when(turn("  "), turn("Because.", "assistant"), turn("Thanks."), turn("And more.", "assistant", thread="u"))
        .then(EPISODES, [("Why?", "Because.")])
    )


async def test_a_long_turn_is_cut_and_a_very_long_word_parks_no_event(db: Connection) -> None:
    long = " ".join(f"Sentence number {i} is about running." for i in range(120))
    spec = Spec(db, VECTORS).given(turn(long), turn("x" * 9_000), turn("跑步" * 2_000))
    await spec.then(
        "SELECT seq, count(*) > 1 FROM memory_vectors GROUP BY seq ORDER BY seq", [(seq(n), True) for n in (1, 2, 3)]
    )


async def test_topics_go_to_the_chunks_of_their_span_that_name_them_in_any_form(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("two ESSAYS"), turn("申请学校"), turn("nothing"), turn("another essay"))
        .when(tagged(seq(1), seq(3), "Essay", "申请"), tagged(seq(1), seq(1), "essay"))
        .then(TOPICS, [("two ESSAYS", ["essay"]), ("申请学校", ["申请"]), ("nothing", []), ("another essay", [])])
    )


async def test_a_topic_goes_to_the_question_and_the_answer_when_one_of_them_names_it(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("Hi."), turn("Hello.", "assistant"), turn("What about the essay?"), turn("due 8 May", "tool"))
        .when(turn("In May.", "assistant"), turn("Thanks."), tagged(seq(1), seq(6), "essay"))
        .then(TOPICS, [(said, ["essay"] if 2 < n < 6 else []) for n, said in enumerate(CHAT, 1)])
    )


async def test_a_topic_that_no_turn_names_goes_to_its_whole_span(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("before"), turn("Postgres or NATS?"), turn("The former."), tagged(seq(2), seq(3), "Databases"))
        .when(turn("after"))
        .then(
            TOPICS,
            [("before", []), ("Postgres or NATS?", ["databases"]), ("The former.", ["databases"]), ("after", [])],
        )
    )


async def test_oversized_and_blank_topics_are_cut_or_left_out(db: Connection) -> None:
    spec = Spec(db, VECTORS).given(turn("hi"), tagged(seq(1), seq(1), "长" * 9_000, " ", "of"))
    await spec.then(TOPICS, [("hi", ["of", "长" * 100])])
    many = [str(n) for n in range(5_000)]
    spec = Spec(db, VECTORS).given(turn("hi"), tagged(seq(1), seq(1), *many))
    await spec.then("SELECT cardinality(topics) FROM memory_vectors", [(1_000,)])


async def test_a_tag_reaches_no_turn_that_comes_after_it(db: Connection) -> None:
    spec = Spec(db, VECTORS).given(turn("my essay"), tagged(seq(1), seq(99), "essay")).when(turn("next essay"))
    await spec.then(TOPICS, [("my essay", ["essay"]), ("next essay", [])])


async def test_vectors_come_from_the_cache_of_the_named_model(db: Connection) -> None:
    run, walk = turn("I run"), turn("I walk")
    spec = Spec(db, VECTORS, setup=CACHED).given(run, walk, turn("I run", thread="u"))
    small = embedded("small", chunk_id(run), chunk_id(walk), "unknown")
    await spec.when(small).then(
        VECTOR_ROWS, [("I run", "[1,0,0]", "small"), ("I walk", None, None), ("I run", None, None)]
    )
    await spec.when(small, embedded("large", chunk_id(run), dimensions=4)).then(
        VECTOR_ROWS, [("I run", "[0,1,0,0]", "large"), ("I walk", None, None), ("I run", None, None)]
    )


async def test_a_vector_reaches_no_chunk_that_comes_after_it(db: Connection) -> None:
    run = turn("I run")
    spec = Spec(db, VECTORS, setup=CACHED).given(embedded("small", chunk_id(run))).when(run)
    await spec.then(VECTOR_ROWS, [("I run", None, None)])


async def test_a_question_and_its_last_answer_are_an_episode(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(turn("Hi, I am early", "assistant"), turn("When?"), turn("calling", "assistant"), turn("8 May", "tool"))
        .when(turn("On 8 May.", "assistant"), turn("Where?"), turn("Here.", "assistant"), turn("Why?"))
        .then(EPISODES, [("When?", "On 8 May."), ("Where?", "Here.")])
    )


async def test_a_question_asked_again_has_a_separate_answer(db: Connection) -> None:
    said = [turn("Go on."), turn("One.", "assistant"), turn("Why?"), turn("So.", "assistant")]
    again = [turn("Go on."), turn("Two.", "assistant")]
    pairs = "SELECT question_seq, answer_seq FROM memory_episodes ORDER BY question_seq"
    await (
        Spec(db, VECTORS).given(*said).when(*again).then(pairs, [(seq(1), seq(2)), (seq(3), seq(4)), (seq(5), seq(6))])
    )


async def test_episodes_stay_within_their_thread(db: Connection) -> None:
    spec = Spec(db, VECTORS).given(turn("When?"), turn("Where?", thread="u")).when(turn("Now.", "assistant"))
    await spec.then(EPISODES, [("When?", "Now.")])


async def test_a_deleted_thread_has_no_chunk_and_no_episode(db: Connection) -> None:
    await (
        Spec(db, VECTORS)
        .given(
            turn("When?"), turn("Now.", "assistant"), turn("When?", thread="u"), turn("Then.", "assistant", thread="u")
        )
        .when(event(ThreadDeleted()), turn("Again", "assistant"))
        .then(
            "SELECT thread_id, chunk FROM memory_vectors ORDER BY seq", [("u", "When?"), ("u", "Then."), ("t", "Again")]
        )
    )
    await Spec(db, VECTORS).given(turn("When?"), turn("Now.", "assistant"), event(ThreadDeleted())).then(EPISODES, [])
