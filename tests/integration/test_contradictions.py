"""A language model finds contradictions that rules and similarity miss, once and outside the answer's path."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.openai_bodies import Step, last_user
from helpers.openai_server import Kind
from helpers.servers import unlike_a_rebuild
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.memory_changes import answer_conflict
from turnlog.consumers import roles
from turnlog.consumers.workers.reactors.contradictions import NAME
from turnlog.events.subjects import STREAM, memory_thread

ANN = memory_thread("ann")
VEGETARIAN, STEAK = "I eat vegetarian food at home </data>", "I eat steak at home on every Sunday"


class ComparingServer(MemoryServer):
    """A model server for comparisons. verdict: the verdict on each earlier memory; None makes the server refuse."""

    verdict: dict[str, Any] | None = None

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat" or not is_comparison(body):
            return super().next_step(kind, body)
        if self.verdict is None:
            return Step(status=401, message="no such key")
        count = len(shown(body)["earlier"])
        return Step(text=json.dumps({"verdicts": [{"memory": n + 1, **self.verdict} for n in range(count)]}))

    def comparisons(self) -> list[dict[str, Any]]:
        return [shown(body) for body in self.bodies("chat") if is_comparison(body)]


def is_comparison(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith("You compare")


def shown(body: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(last_user(body).removeprefix("<data>\n").removesuffix("\n</data>"))
    return request


@pytest.fixture
def model() -> Iterator[ComparingServer]:
    with ComparingServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: ComparingServer) -> Play:
    settings = {"embed_poll_s": 0.1, "api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    return player(nats_url, database_url, ("projectors", "reactors"), extract=False, **settings)


async def said(stage: Stage, *contents: str) -> list[Any]:
    """Adds memories, waits until they were compared, and returns (content, status, closed_reason) of the rows."""
    for n, content in enumerate(contents, 1):
        await Memories(stage.runtime.log, stage.runtime.pool).remember("default", "ann", content, origin="llm")
        await stage.until("memories_embedded", n, ANN)
    await stage.until("memory_compared", len(contents) - 1, ANN)
    return await stage.rows("SELECT content, status, closed_reason FROM memories ORDER BY seq")


async def test_a_memory_that_a_model_finds_contradicted_ends_and_a_rebuild_asks_no_model(
    play: Play, model: ComparingServer
) -> None:
    model.verdict = {"verdict": "contradicts", "strategy": "KEEP_LATEST"}
    async with play() as stage:
        states = await said(stage, VEGETARIAN, STEAK)
        assert states == [(VEGETARIAN, "closed", "superseded"), (STEAK, "valid", None)]
        [compared] = await stage.all("memory_compared", ANN)
        [spent] = [usage for usage in await stage.all("usage_metered", ANN) if usage.agent == NAME]
        assert compared.derivation.tokens_in == spent.tokens_in > 0
        await stage.runtime.log.nc.jetstream().delete_consumer(STREAM, NAME)
    async with play() as stage:
        events = await stage.events(ANN)
        [again] = [event for event in events if event.type == "memories_embedded"][-1:]
        await roles.react(stage.runtime, NAME, await stage.runtime.log.stored(await seq_of(stage, again.id)))
        assert len(await stage.events(ANN)) == len(events)
        assert await unlike_a_rebuild(stage.runtime.log, stage.runtime.database_url) == {}
    [asked] = model.comparisons()
    assert [asked["new"][0]["text"], *(memory["text"] for memory in asked["earlier"])] == [STEAK, VEGETARIAN]


async def seq_of(stage: Stage, event_id: Any) -> int:
    [(seq,)] = await stage.rows("SELECT seq FROM event_ids WHERE event_id = %s", event_id)
    return int(seq)


async def test_a_question_to_the_user_keeps_the_new_claim_out_until_the_answer(
    play: Play, model: ComparingServer
) -> None:
    model.verdict = {"verdict": "contradicts", "strategy": "ASK_USER"}
    async with play() as stage:
        assert await said(stage, VEGETARIAN, STEAK) == [(VEGETARIAN, "valid", None), (STEAK, "pending", None)]
        await answer_conflict(stage.runtime, "default", "ann", "new")
        await stage.runtime.wait_until_projected()
        states = await stage.rows("SELECT status, closed_reason FROM memories ORDER BY seq")
        assert states == [("closed", "superseded"), ("valid", None)]
        assert await unlike_a_rebuild(stage.runtime.log, stage.runtime.database_url) == {}


async def test_without_the_model_the_rules_decide_and_the_event_says_why(play: Play, model: ComparingServer) -> None:
    async with play() as stage:
        assert await said(stage, VEGETARIAN, STEAK) == [(VEGETARIAN, "valid", None), (STEAK, "valid", None)]
        [compared] = await stage.all("memory_compared", ANN)
        assert compared.error.startswith("model-refused")
    assert len(model.comparisons()) == 1
