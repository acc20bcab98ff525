"""A language model writes a profile text that states no more than the lines of the profile."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.memory_events import memory_id, recorded
from helpers.openai_bodies import Step, last_user
from helpers.openai_server import Kind
from helpers.servers import unlike_a_rebuild
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.memory.memory_changes import edit_memory, forget_memory
from turnlog.agent.recall.profile import profile
from turnlog.agent.recall.profile_text import NAME
from turnlog.consumers.cli.remembering import profile_lines
from turnlog.events.subjects import memory_thread

ANN = memory_thread("ann")
LINES = ("Lives in Berlin", "Works at Siemens", "Likes tea", "Plays the cello", "Speaks Polish", "Has a dog called Rex")
HOME = ("They live in Berlin and work at Siemens.", LINES[:2])
TEA = ("They like tea.", LINES[2:3])


class WritingServer(MemoryServer):
    """A model server for profiles. says: sentences with the lines that they name; a number that is too large names no
    line."""

    says: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat" or not str(body["messages"][0]["content"]).startswith("You write who a user is"):
            return super().next_step(kind, body)
        data = json.loads(last_user(body).removeprefix("<data>\n").removesuffix("\n</data>"))
        numbers = {line["text"]: line["line"] for line in data["lines"]}
        said = [{"text": text, "lines": [numbers.get(line, 99) for line in lines]} for text, lines in self.says]
        return Step(text=json.dumps({"sentences": said}))


@pytest.fixture
def model() -> Iterator[WritingServer]:
    with WritingServer() as server:
        yield server


@pytest.fixture
async def play(nats_url: str, database_url: str, model: WritingServer) -> Play:
    settings = {"embed_poll_s": 0.1, "api_base_url": model.url, "api_key": model.key, "model": "test-model"}
    roles = ("projectors", "reactors")
    return player(nats_url, database_url, roles, extract=False, compare_memories=False, **settings)


async def shown(stage: Stage) -> list[tuple[str, tuple[str, ...]]] | None:
    """Returns the sentences with the lines that they state; None without a text."""
    told = await profile(stage.runtime, "default", "ann")
    lines = {line.memory: line.text for group in told.groups for line in group.lines}
    if told.written is None:
        return None
    return [(sentence.text, tuple(lines[id_] for id_ in sentence.memories)) for sentence in told.written.sentences]


async def test_a_text_states_only_its_lines_and_is_shown_while_they_are_valid(play: Play, model: WritingServer) -> None:
    invented = [
        ("They are married to Bob.", LINES[:1]),
        ("They live in Berlin since 2019.", LINES[:1]),
        ("They love long walks and old films.", LINES[2:3]),
        ("They do not like tea.", LINES[2:3]),
        ("They play the cello.", ("Plays the cello in Rome",)),
        ("They speak Polish.", ()),
    ]
    model.says = (HOME, *invented, TEA)
    async with play() as stage:
        await stage.runtime.log.append_many([recorded(line) for line in LINES])
        [written] = await stage.until("profile_written", 1, ANN)
        assert await shown(stage) == [HOME, TEA]
        told = await profile(stage.runtime, "default", "ann")
        assert profile_lines(told)[0] == "They live in Berlin and work at Siemens. [5, 6] They like tea. [4]"
        spent = [usage for usage in await stage.all("usage_metered", ANN) if usage.agent == NAME]
        assert [usage.tokens_in for usage in spent] == [written.derivation.tokens_in] and spent[0].tokens_in > 0
        assert await stage.rows("SELECT count(*) FROM model_cache") == [(0,)]

        model.says = tuple(invented)
        await edit_memory(stage.runtime, "default", "ann", str(memory_id("Lives in Berlin")), "Lives in Rome")
        assert await shown(stage) is None, "what it says no longer holds"
        await stage.until("usage_metered", 2, ANN)
        assert len(await stage.all("profile_written", ANN)) == 1, "no text is kept where every sentence is invented"

        model.says = (("They live in Rome.", ("Lives in Rome",)), TEA)
        await stage.runtime.log.append(recorded("Likes hiking"))
        await stage.until("profile_written", 2, ANN)
        assert await shown(stage) == list(model.says)
        await forget_memory(stage.runtime, "default", "ann", str(memory_id("Likes tea")))
        assert await shown(stage) is None
        assert await stage.rows("SELECT * FROM profile_texts") == []
        assert await unlike_a_rebuild(stage.runtime.log, stage.runtime.database_url) == {}
