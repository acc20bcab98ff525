"""Hybrid history contains the newest turns and older episodes that are relevant to the question."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from conftest import Settled
from helpers.openai_server import OpenAIServer
from helpers.questions import Place, answer_to
from helpers.sample_events import event, turn
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.context import context_as_of, context_of
from turnlog.agent.answering.receipts import rebuilt
from turnlog.agent.answering.thread_context import thread_context
from turnlog.agent.answering.turns import NewTurn, add_turns
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.prompts import DOUBT, DOUBT_ZH
from turnlog.agent.recall.episodes import relevant_episodes, relevant_seqs
from turnlog.agent.recall.hybrid import HybridHistory, InvalidRecall, hybrid_history
from turnlog.agent.recall.search import Recall
from turnlog.agent.settings import Settings
from turnlog.events.contracts import Event, HistoryPruned, ToolCall, ToolResultBlock
from turnlog.events.log import Log
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.chunks.lookup import Scope

T = Scope("default", "t")
DIRECTOR = ("Who directed Stalker?", "The director of Stalker is Andrei Tarkovsky.")
SMALL_TALK = [(f"How is day {n} of the week?", f"Quite windy, the {n}th so far.") for n in range(10)]


def said(pairs: list[tuple[str, str]], thread: str = "t") -> list[Event]:
    texts = [text for pair in pairs for text in pair]
    return [turn(text, ("user", "assistant")[n % 2], thread, n) for n, text in enumerate(texts)]


def looked_up(results_of: str) -> list[Event]:
    """Returns an exchange with two rounds of a tool. results_of: the role of the results, a tool or a user with
    blocks."""
    events = [turn("Look it up.")]
    for number in ("c1", "c2"):
        events.append(turn("", "assistant", tool_calls=(ToolCall(id=number, name="films", arguments="{}"),)))
        if results_of == "tool":
            events.append(turn("Stalker, 1979", "tool", tool_call_id=number))
        else:
            events.append(turn((ToolResultBlock(tool_use_id=number, content="Stalker, 1979"),)))
    return [*events, turn("It is from 1979.", "assistant")]


def texts(history: HybridHistory) -> list[object]:
    return [message.content for message in history.messages]


async def hybrid(db: Connection, query: str, **more: int) -> HybridHistory:
    return await hybrid_history(db, Recall(None), "default", "t", query, **more)


@pytest.mark.usefixtures("running_projectors")
class TestWithWords:
    async def test_a_director_mentioned_ten_turns_ago_is_there_with_the_newest_turns(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many(said([DIRECTOR, *SMALL_TALK]))
        await settled()
        history = await hybrid(db, "Which director did we mention?", top_k=1)
        assert texts(history) == [*DIRECTOR, *(text for pair in SMALL_TALK[-3:] for text in pair)]
        assert (history.recalled, len(history.recent)) == ((1, 2), 6)
        assert history.chunk_ids

    async def test_an_episode_that_repeats_the_newest_turns_is_left_out(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many(said([DIRECTOR, *SMALL_TALK[:6], DIRECTOR, SMALL_TALK[6]]))
        await settled()
        history = await hybrid(db, "Which director did we mention?", top_k=3)
        assert texts(history).count(DIRECTOR[0]) == texts(history).count(DIRECTOR[1]) == 1
        assert not {1, 2}.intersection(history.recalled)

    async def test_a_short_answer_to_another_question_is_kept_with_its_question(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many(said([("Is Tarkovsky a director?", "Yes."), *SMALL_TALK, ("Shall we go?", "Yes.")]))
        await settled()
        history = await hybrid(db, "Tarkovsky, the director", top_k=1)
        assert texts(history)[:2] == ["Is Tarkovsky a director?", "Yes."]

    async def test_everything_is_in_log_order_and_appears_once(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        films = [(f"A film about the sea, number {n}?", f"Number {n} is called Sea {n}.") for n in range(4)]
        await log.append_many(said([pair for both in zip(films, SMALL_TALK, strict=False) for pair in both]))
        await settled()
        history = await hybrid(db, "the films about the sea", top_k=3)
        seqs = [message.seq for message in history.messages]
        assert seqs == sorted(set(seqs))
        assert seqs == [*history.recalled, *history.recent]
        assert len(history.recalled) >= 4

    async def test_a_thread_shorter_than_the_window_is_given_whole_and_an_empty_one_is_empty(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        assert await hybrid(db, "anything") == HybridHistory([], (), (), (), None)
        await log.append_many(said([DIRECTOR]))
        await settled()
        assert texts(await hybrid(db, "Which director?")) == list(DIRECTOR)

    async def test_a_question_already_on_the_log_is_not_in_its_history(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many(said([DIRECTOR, *SMALL_TALK]))
        asked = await log.append(turn("Which director did we mention?", minutes=99))
        await settled()
        history = await hybrid(db, "Which director did we mention?", before_seq=asked.seq)
        assert {1, 2} <= set(history.recalled)
        assert asked.seq not in {message.seq for message in history.messages}

    async def test_chinese_is_recalled_by_its_words(self, log: Log, db: Connection, settled: Settled) -> None:
        film = ("你喜欢哪位导演？", "我喜欢的导演是克里斯托弗·诺兰。")
        weather = [(f"第{n}天天气怎么样？", f"第{n}天有点冷。") for n in range(10)]
        await log.append_many(said([film, *weather]))
        await settled()
        history = await hybrid(db, "刚才说的那个导演是谁", top_k=1)
        assert texts(history)[:2] == list(film)

    @pytest.mark.parametrize("results_of", ["tool", "user"])
    async def test_the_window_holds_whole_exchanges_from_the_question_on_with_every_tool_round(
        self, log: Log, db: Connection, settled: Settled, results_of: str
    ) -> None:
        await log.append_many([turn for _ in range(5) for turn in looked_up(results_of)])
        await settled()
        length = len(looked_up(results_of))
        for count in (1, 3, 5, 9):
            shown = min(5, count) * length
            history = await hybrid(db, "hello", recent_turns=count, top_k=0)
            assert [message.seq for message in history.messages] == list(range(5 * length - shown + 1, 5 * length + 1))
            assert history.messages[0].content == "Look it up."

    async def test_people_who_all_speak_as_users_have_two_turns_each(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many([turn(f"number {n}", name=("Ann", "Bob")[n % 2], minutes=n) for n in range(9)])
        await settled()
        assert (await hybrid(db, "hello", recent_turns=2, top_k=0)).recent == (6, 7, 8, 9)

    async def test_a_greeting_before_the_first_question_is_there_as_long_as_there_is_room(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many([turn("Welcome!", "assistant"), *said(SMALL_TALK[:4])])
        await settled()
        for before, recent in ((4, (1, 2, 3)), (8, (2, 3, 4, 5, 6, 7)), (10, (4, 5, 6, 7, 8, 9))):
            assert (await hybrid(db, "hello", top_k=0, before_seq=before)).recent == recent

    @pytest.mark.parametrize("name", ["recent_turns", "top_k"])
    async def test_a_negative_number_is_refused_and_zero_returns_nothing(
        self, log: Log, db: Connection, settled: Settled, name: str
    ) -> None:
        await log.append_many(said([DIRECTOR, *SMALL_TALK]))
        await settled()
        with pytest.raises(InvalidRecall, match=f"{name} is -1; give 0 or more"):
            await hybrid(db, "director", **{name: -1})
        history = await hybrid(db, "director", **{name: 0})
        assert not (history.recent if name == "recent_turns" else history.recalled)

    async def test_episodes_contain_question_and_answer_or_a_turn_alone(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many([*said([DIRECTOR]), turn("A director lives here.", "assistant", minutes=9)])
        await log.append_many([turn("The director is away.", name="Ann", thread="two"), turn("Oh.", thread="two")])
        await settled()
        [episode] = await relevant_episodes(db, Recall(None), T, "director", 3)
        assert episode.seqs[:2] == (1, 2)
        assert set(episode.found) <= set(episode.seqs)
        [alone] = await relevant_episodes(db, Recall(None), Scope("default", "two"), "director", 1)
        assert len(alone.seqs) == 1

    async def test_turns_after_an_answer_are_not_in_its_episode(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many([*said([DIRECTOR]), turn("A lighthouse keeper lives next door.", minutes=9)])
        await settled()
        [after, *_] = await relevant_episodes(db, Recall(None), T, "lighthouse keeper", 2)
        assert after.seqs == (3,)

    async def test_the_best_episode_comes_first_and_k_limits_their_number(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many(said([("A boat?", "A ship."), DIRECTOR, ("A director?", "Someone."), *SMALL_TALK]))
        await settled()
        episodes = await relevant_episodes(db, Recall(None), T, "Who is the director of Stalker?", 2)
        assert [episode.seqs for episode in episodes] == [(3, 4), (5, 6)]
        assert episodes[0].score > episodes[1].score
        assert relevant_seqs(episodes) == [3, 4, 5, 6]
        assert await relevant_episodes(db, Recall(None), T, "director", 0) == []
        older = await relevant_episodes(db, Recall(None), T, "director", 5, before_seq=5)
        # the second is found by the words of its neighbour
        assert [episode.seqs for episode in older] == [(3, 4), (1, 2)]

    async def test_a_sentence_said_before_and_in_the_window_is_recalled_from_before_it_alone(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        await log.append_many(said([DIRECTOR, *SMALL_TALK, DIRECTOR]))
        await settled()
        episodes = await relevant_episodes(db, Recall(None), T, "Who is the director of Stalker?", 3, before_seq=23)
        assert episodes[0].seqs == (1, 2)
        assert all(seq < 23 for episode in episodes for seq in episode.seqs)

    async def test_another_tenant_and_another_thread_stay_out(self, log: Log, db: Connection, settled: Settled) -> None:
        foreign = turn("The director is secret.", tenant="acme")
        await log.append_many([foreign, *said([DIRECTOR], "other"), *said(SMALL_TALK)])
        await settled()
        history = await hybrid(db, "Who is the director of Stalker?")
        assert not [text for text in texts(history) if "director" in str(text)]

    async def test_a_pruned_episode_comes_back_into_a_context_that_has_no_room_for_all(
        self, log: Log, db: Connection, settled: Settled
    ) -> None:
        long = [(f"{question} {'and so on ' * 30}", answer) for question, answer in SMALL_TALK]
        await log.append_many(said([DIRECTOR, *long]))
        await log.append(event(HistoryPruned(through_seq=4, removed=4, remaining=18)))
        await settled()
        relevant = relevant_seqs(await relevant_episodes(db, Recall(None), T, "director of Stalker", 1))
        settings = Settings(model="gpt-4o", context_window=1_000, _env_file=None)
        without = await thread_context(db, settings, "default", "t")
        context = await thread_context(db, settings, "default", "t", relevant=relevant)
        assert {1, 2}.isdisjoint(item.seq for tier in without.tiers[1:] for item in tier.items)
        [middle] = [tier for tier in context.receipt.tiers if tier.tier == "2"]
        assert middle.turns.spans[:2] == ((1, 1), (2, 2))


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: OpenAIServer) -> Play:
    settings = {"embed_poll_s": 0.1, "embedding_base_url": model.url, "embedding_model": "small"}
    return player(nats_url, database_url, ("projectors", "reactors"), **settings)


@asynccontextmanager
async def asked(stage: Stage, query: str) -> AsyncIterator[HybridHistory]:
    embedder = make_embedder(stage.runtime.settings)
    async with stage.runtime.pool.connection() as conn:
        yield await hybrid_history(conn, Recall(embedder), "default", "t", query, top_k=1)
    await embedder.close()


async def test_an_agents_context_contains_relevant_turns_and_can_be_rebuilt_from_its_receipt(
    play: Play, model: OpenAIServer
) -> None:
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "context_window": 1_500}
    place = Place(user="ann")
    long = [(f"Day {n} was windy {'and so on ' * 20}", f"The {n}th, yes.") for n in range(30)]
    async with play("projectors", "agent", **settings) as stage:
        await stage.runtime.log.append_many(said([DIRECTOR, *long]))
        await answer_to(stage.runtime, place, "Which director did we mention?")
        [receipt] = await stage.all("answer_receipt")
        async with stage.runtime.pool.connection() as conn:
            seq = receipt.as_of_seq
            again = await rebuilt(conn, stage.runtime.log, Settings(_env_file=None), "default", "t", seq)
    asked = [message["content"] for message in model.bodies("chat")[0]["messages"]]
    assert asked[1:3] == list(DIRECTOR)
    assert receipt.relevant[:2] == (1, 2)
    assert again.matches


@pytest.mark.parametrize(
    ("question", "line"),
    [
        ("Which university did my sister attend?", DOUBT),
        ("我妹妹上的是哪所大学？", DOUBT_ZH),
        ("Which director did we mention?", None),
        ("My sister attends a university.", None),
    ],
)
async def test_an_agent_is_warned_when_no_turn_answers_and_its_context_can_be_rebuilt(
    play: Play, model: OpenAIServer, question: str, line: str | None
) -> None:
    options = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "context_window": 1_500}
    long = [(f"Day {n} was windy {'and so on ' * 20}", f"The {n}th, yes.") for n in range(30)]
    async with play("projectors", "agent", **options) as stage:
        await stage.runtime.log.append_many(said([DIRECTOR, *long]))
        await answer_to(stage.runtime, Place(user="ann"), question)
        [receipt] = await stage.all("answer_receipt")
        async with stage.runtime.pool.connection() as conn:
            settings = Settings(_env_file=None)
            again = await rebuilt(conn, stage.runtime.log, settings, "default", "t", receipt.as_of_seq)
    asked = [message["content"] for message in model.bodies("chat")[0]["messages"]]
    assert receipt.doubt == line
    assert asked[-2] == line if line else not {DOUBT, DOUBT_ZH}.intersection(asked)
    assert again.matches
    assert again.context.messages[-2]["content"] == asked[-2]


async def test_the_warning_is_in_a_context_of_a_question_that_is_not_on_the_log_yet(play: Play) -> None:
    asked = "Which university did my sister attend?"
    async with play() as stage:
        long = [(f"Day {n} was windy {'and so on ' * 20}", f"The {n}th, yes.") for n in range(30)]
        await stage.runtime.log.append_many(said([DIRECTOR, *long]))
        made = await context_of(stage.runtime, "default", "t", query=asked, window=2_000)
        answered = NewTurn("assistant", "I do not know that.")
        await add_turns(stage.runtime, "default", "t", [answered], receipt=made.receipt)
        [receipt] = await stage.all("answer_receipt")
        again = await context_as_of(stage.runtime, "default", "t", receipt.as_of_seq)
    assert [message["content"] for message in made.context.messages[-2:]] == [DOUBT, asked]
    assert again.matches


async def test_relevant_turns_are_searched_only_if_not_everything_fits(play: Play, model: OpenAIServer) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many(said([DIRECTOR, *SMALL_TALK]))
        await stage.until("chunks_embedded", 1)
        before = len(model.bodies("embeddings"))
        whole = await context_of(stage.runtime, "default", "t", query="Who directed Stalker?", window=8_000)
        assert len(model.bodies("embeddings")) == before
        small = await context_of(stage.runtime, "default", "t", query="Who directed Stalker?", tokens=150)
    assert whole.context.receipt.relevant == ()
    assert small.context.receipt.relevant[:2] == (1, 2)
    assert len(model.bodies("embeddings")) > before


async def test_with_an_embedding_model_vectors_take_part_and_without_it_words_find_the_same(
    play: Play, model: OpenAIServer
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many(said([DIRECTOR, *SMALL_TALK]))
        await stage.until("chunks_embedded", 1)
        async with asked(stage, "Who directed Stalker?") as history:
            assert history.degraded is None
            assert history.recalled == (1, 2)
        model.stop()
        async with asked(stage, "Who directed Stalker?") as history:
            assert (history.degraded or "").startswith("keyword search only: ")
            assert history.recalled == (1, 2)


@pytest.mark.parametrize("blank", ["", " \n\t"])
async def test_a_blank_question_recalls_nothing_although_some_vector_is_always_the_nearest(
    play: Play, blank: str
) -> None:
    async with play() as stage:
        await stage.runtime.log.append_many(said([DIRECTOR, *SMALL_TALK]))
        await stage.until("chunks_embedded", 1)
        async with asked(stage, blank) as history:
            assert (history.recalled, history.chunk_ids, history.degraded) == ((), (), None)
            assert texts(history) == [text for pair in SMALL_TALK[-3:] for text in pair]
