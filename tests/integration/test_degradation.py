"""The degradation table lists what fails and what still works.

no DATABASE_URL                  embedded servers start and keep the data: here
the LLM's summary fails          the old summary stays in use: test_memory_reactor.py
the embedding model is away      recall by words: test_embedder.py, and said on the command line: test_cli.py
a summary is too long            it is compressed: test_memory_reactor.py
tokens are counted inexactly     a tenth of the window is left: here
"""

from pathlib import Path

import pytest
from helpers.sample_events import turn
from helpers.servers import processes_left_in
from helpers.stage import on_stage

from turnlog.agent.context import ContextInput, build_context, counter_for
from turnlog.agent.settings import Settings
from turnlog.projectors.models.conversation.message import Message, thread_messages


async def test_without_any_url_servers_start_and_the_next_start_finds_the_data(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", nats_url=None, database_url=None)
    async with on_stage(settings, ["projectors"]) as stage:
        assert set(stage.runtime.started) == {"nats", "postgres"}
        await stage.runtime.log.append(turn("I stay."))
        await stage.runtime.wait_until_projected()
    assert processes_left_in(tmp_path) == []
    async with on_stage(settings, ["projectors"]) as stage, stage.runtime.pool.connection() as conn:
        assert [m.content for m in await thread_messages(conn, "default", "t")] == ["I stay."]


@pytest.mark.parametrize("window", [2_000, 8_000, 32_000])
def test_a_model_that_counts_a_tenth_more_tokens_than_we_do_still_has_room_for_its_answer(window: int) -> None:
    sample = turn("x")
    messages = [
        Message(n, sample.id, "user" if n % 2 else "assistant", f"Message {n} " + "说了很多 words " * 40, sample.time)
        for n in range(1, 400)
    ]
    context = build_context(ContextInput(messages, "gpt-4o", "You are kind.", window=window))
    counter = counter_for("gpt-4o")
    counted = sum(counter.wire(message) for message in context.messages)
    reserve = min(16_000, window // 4)
    assert counted * 1.1 + reserve <= window
    assert counted > 0.5 * (window - reserve)
