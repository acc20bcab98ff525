"""The day of a turn follows its speaker's clock in memories, transcripts, recall and contexts."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from helpers.extraction import user_turn
from helpers.stage import Play, Stage, player

from turnlog.agent.answering.turns import NewTurn, add_turn
from turnlog.agent.context import counter_for
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.memory.memories import list_memories
from turnlog.agent.memory.memory_changes import remember
from turnlog.agent.memory.preferences import InvalidPreference, set_preferences
from turnlog.agent.recall.memory_block import memory_line
from turnlog.agent.recall.recall import recall
from turnlog.consumers.cli.remembering import source_line
from turnlog.consumers.cli.rendering import MESSAGE_COLUMNS
from turnlog.consumers.cli.text_tables import table
from turnlog.consumers.workers.reactors.extraction import NAME
from turnlog.projectors.models.chunks.projection import VECTORS
from turnlog.projectors.models.conversation.messages import MESSAGES
from turnlog.projectors.rebuild.verify import verify

HALF_PAST_MIDNIGHT = datetime(2026, 11, 20, 0, 30, tzinfo=timezone(timedelta(hours=8)))  # this is the 19th in UTC
FLIGHT = "Remember that my flight is tomorrow."


@pytest.fixture
async def play(nats_url: str, database_url: str) -> Play:
    return player(nats_url, database_url, ("projectors", "reactors"))


async def days(stage: Stage) -> list[str]:
    """Returns the days that the context shows with Ann's memories."""
    await stage.rest(NAME)
    counter = counter_for("test-model")
    memories = await list_memories(stage.runtime, "default", "ann")
    return [memory_line(memory, counter).split()[1] for memory in memories]


@pytest.mark.parametrize("setting", ["UTC", "America/New_York"])
async def test_the_utc_offset_of_a_turn_is_kept(play: Play, database_url: str, setting: str) -> None:
    async with play(timezone=setting) as stage:
        turn = NewTurn("user", FLIGHT, time=HALF_PAST_MIDNIGHT)
        await add_turn(stage.runtime, "default", "t", turn, user="ann")
        assert await days(stage) == ["2026-11-20"]
        [memory] = await list_memories(stage.runtime, "default", "ann")
        [said] = (await transcript(stage.runtime, "default", "t")).turns
        assert said.time.isoformat() == "2026-11-20T00:30:00+08:00"
        assert "2026-11-20 00:30+08:00" in [*table([said], MESSAGE_COLUMNS).lines][1]
        assert source_line(memory.sources[0]).endswith("2026-11-20 00:30+08:00")
        recalled = await recall(stage.runtime, "default", "When is my flight?", thread="t", keyword_only=True)
        assert f"{recalled.turns[0].time:%Y-%m-%d}" == "2026-11-20"
        [index_text] = await stage.rows("SELECT index_text FROM memory_vectors")
        assert index_text[0].startswith("[20 November 2026]")
        for projection in (MESSAGES, VECTORS):
            assert (await verify(stage.runtime.log, database_url, projection)).clean


async def test_a_time_in_utc_is_shown_in_the_persons_timezone(play: Play) -> None:
    async with play(timezone="America/New_York") as stage:
        await set_preferences(stage.runtime, "default", "ann", {"timezone": "Asia/Shanghai"})
        await stage.runtime.log.append(
            user_turn(FLIGHT).model_copy(update={"time": HALF_PAST_MIDNIGHT.astimezone(UTC)})
        )
        assert await days(stage) == ["2026-11-20"]
        recalled = await recall(stage.runtime, "default", "When is my flight?", user="ann", keyword_only=True)
        assert f"{recalled.turns[0].time:%Y-%m-%d}" == "2026-11-20"


async def test_tomorrow_in_a_manual_memory_follows_the_persons_clock(play: Play) -> None:
    """The two clocks differ by 26 hours, so that they never show the same day."""
    async with play("projectors") as stage:
        rows = set[object]()
        for user, zone in (("ann", "Pacific/Kiritimati"), ("bob", "Etc/GMT+12")):
            await set_preferences(stage.runtime, "default", user, {"timezone": zone})
            await remember(stage.runtime, "default", user, "I have decided to leave tomorrow")
            rows |= {memory.value for memory in await list_memories(stage.runtime, "default", user)}
        assert len(rows) == 2, rows


async def test_a_zone_that_does_not_exist_is_refused(play: Play) -> None:
    async with play("projectors") as stage:
        with pytest.raises(InvalidPreference, match="there is no time zone 'Mars/Base'"):
            await set_preferences(stage.runtime, "default", "ann", {"timezone": "Mars/Base"})
