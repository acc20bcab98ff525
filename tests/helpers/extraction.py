"""Makes turns of a user for the tests of extraction, and runs a model server that answers the extraction's prompt."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from helpers.openai_bodies import Step, last_user
from helpers.openai_server import Kind
from helpers.sample_events import turn
from helpers.stage import MemoryServer, Play, Stage, player

from turnlog.agent.memory.deciding.writing import SOURCE
from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.findings import ExtractionResult, Finding, Turn
from turnlog.agent.memory.extraction.rules import RuleSet, load_rules
from turnlog.consumers.workers.durable_consumer import Delivery
from turnlog.events.contracts import Event, MemoriesExtracted
from turnlog.events.stored import Stored
from turnlog.events.subjects import STORED_PREFIX, memory_thread

ANN_THREAD = memory_thread("ann")
FIRST_TURN_AT = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
NOTHING = json.dumps({"memories": [], "entities": []})


def extractor_turn(text: str, seq: int = 1, at: datetime = FIRST_TURN_AT, **more: Any) -> Turn:
    return Turn("t", seq, uuid5(NAMESPACE_OID, f"{seq}"), at, text, **more)


def apply_rules(*texts: str, rules: RuleSet | None = None) -> ExtractionResult:
    """Returns the result of the rules for turns with these texts."""
    turns = [extractor_turn(text, n, FIRST_TURN_AT + timedelta(minutes=n)) for n, text in enumerate(texts, 1)]
    return Extractor(rules or load_rules()).extract(turns)


def found(*texts: str) -> list[Finding]:
    return list(apply_rules(*texts).findings)


def contents(*texts: str) -> list[str]:
    return [finding.content for finding in found(*texts)]


def rejection_reasons(*texts: str) -> set[str]:
    return {rejection.reason for rejection in apply_rules(*texts).rejections}


class ExtractingServer(MemoryServer):
    """A model server for extraction. extracts: the answer to the extraction's prompt, a JSON value or a text; answers
    in `first["extract"]` come before it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.extracts: Any = NOTHING

    def next_step(self, kind: Kind, body: dict[str, Any]) -> Step:
        if kind != "chat" or not is_extraction(body):
            return super().next_step(kind, body)
        if self.first.get("extract"):
            return self.first["extract"].pop(0)
        extract = self.extracts
        return Step(text=extract if isinstance(extract, str) else json.dumps(extract, ensure_ascii=False))

    def extractions(self) -> list[list[str]]:
        """Returns, for each extraction request, the texts of the turns in it."""
        return [[turn["text"] for turn in turns_of(body)] for body in self.bodies("chat") if is_extraction(body)]


def extracting_roles(nats_url: str, database_url: str, model: ExtractingServer, roles: Sequence[str]) -> Play:
    """Plays the roles with this model and settings that let the model run on few words."""
    settings = {"api_base_url": model.url, "api_key": model.key, "model": "test-model", "model_timeout_s": 20.0}
    return player(nats_url, database_url, roles, **settings, enable_summary=False, extract_batch_tokens=100)


def is_extraction(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith("You extract")


def turns_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    shown = last_user(body).removeprefix("<data>\n").removesuffix("\n</data>")
    turns: list[dict[str, Any]] = json.loads(shown)["turns"]
    return turns


def memory(content: str, quote: str, **more: Any) -> dict[str, Any]:
    """Returns a memory in the form in which a model writes it."""
    return {"type": "FACT", "content": content, "quote": quote, "importance": 0.7, "turn": 1, "attribute": None, **more}


def user_turn(text: Any, minutes: int = 0, thread: str = "t", user: str = "ann", **more: Any) -> Event:
    return turn(text, more.pop("role", "user"), thread, minutes, user=user, **more)


async def stored_memories(stage: Stage) -> list[tuple[str, str]]:
    """Returns (content, status) of every memory, in the order of the log."""
    return [tuple(row) for row in await stage.rows("SELECT content, status FROM memories ORDER BY seq, content")]


async def append_texts(stage: Stage, *texts: Any, **more: Any) -> list[int]:
    events = [user_turn(text, minutes=n, **more) for n, text in enumerate(texts, 1)]
    return [done.seq for done in await stage.runtime.log.append_many(events)]


async def extractions_of_stage(stage: Stage, stage_name: str) -> list[MemoriesExtracted]:
    return [event for event in await stage.all("memories_extracted", ANN_THREAD) if event.stage == stage_name]


async def extraction_events(stage: Stage) -> list[Event]:
    return [
        event
        for event in await stage.events(ANN_THREAD)
        if event.source == SOURCE and event.type != "memories_embedded"
    ]


def delivery(seq: int) -> Delivery:
    """Returns a delivery without a body, because reactors read events from the log."""
    return Delivery(Stored(seq, f"{STORED_PREFIX}.0.default.t.turn_recorded", b"", 0, 0))
