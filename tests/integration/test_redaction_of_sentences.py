"""A redaction of a complete turn removes its long sentences where others quote them, and finds what it cannot reach."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.sample_events import turn
from helpers.stage import Stage, player

from turnlog.agent.privacy.redaction.redact import redact_turn
from turnlog.consumers.erasing import erasure_reach
from turnlog.events.read import read_to
from turnlog.events.subjects import STORED_PREFIX

pytestmark = pytest.mark.slow

END = "her door code is four four one one"
SAID = f"Hello there again. My neighbour Jane Miller who lives in Amsterdam told me that {END}."


@pytest.fixture
async def room(nats_url: str, database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """Yields a stage without keys, so that a search of the log's bytes finds unencrypted words."""
    async with player(nats_url, database_url, ["projectors"], home=tmp_path)("projectors", kek=None) as opened:
        yield opened


async def test_the_end_of_a_long_sentence_is_struck_where_it_is_quoted(room: Stage) -> None:
    log = room.runtime.log
    seq = (await log.append(turn(SAID, user="ann"))).seq
    await log.append_many(
        [
            turn(f"You said: {SAID.partition('. ')[2]}", "assistant", user="ann"),
            turn("The door code is four four one one, and tea is ready.", "assistant", user="ann"),
            turn("What is tea? Do you know who lives in Amsterdam, told me nothing?", user="ann"),
        ]
    )
    await room.runtime.wait_until_projected()
    receipt = await redact_turn(room.runtime, "default", "t", seq, erasure_reach(room.runtime.settings))
    assert await room.rows("SELECT content #>> '{}' FROM messages ORDER BY seq") == [
        ("[redacted]",),
        ("You said: [redacted]",),
        ("The [redacted], and tea is ready.",),
        ("What is tea? Do you know who lives in Amsterdam, told me nothing?",),
    ]
    assert receipt.hits == {}
    stored = [message async for message in read_to(log.nc, [f"{STORED_PREFIX}.>"], 1, as_stored=True)]
    assert not any(b"four four" in message.body for message in stored)


async def test_the_end_of_a_long_sentence_is_found_in_another_conversation(room: Stage) -> None:
    log = room.runtime.log
    seq = (await log.append(turn(SAID, user="ann"))).seq
    await log.append(turn(f"She told me that {END}.", "assistant", thread="other", user="bob"))
    await room.runtime.wait_until_projected()
    receipt = await redact_turn(room.runtime, "default", "t", seq, erasure_reach(room.runtime.settings))
    assert "the stream TURNLOG" in receipt.hits and any(where.endswith(".messages") for where in receipt.hits)
