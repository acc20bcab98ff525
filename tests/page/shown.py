"""Fills a server with all data that the screens show: conversations, team runs, memories, usage, a dead letter."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from helpers.api import Api, server
from helpers.own_servers import own_servers
from helpers.sample_events import derivation, memory_event, memory_of
from helpers.stage import MemoryServer, Stage
from httpx2 import AsyncClient

from turnlog.agent.memory.entities import EntityInput, add_entity
from turnlog.agent.operations.importers import Defaults
from turnlog.agent.operations.importing import ImportRequest, import_conversations, prepare_import
from turnlog.agent.operations.sample import THREAD, USER, load_sample
from turnlog.agent.team.samples import load_applicant
from turnlog.events.contracts import (
    Event,
    EventData,
    Interval,
    JobRan,
    Memory,
    MemoryRecorded,
    MemorySource,
    SummaryWritten,
    TopicsTagged,
)
from turnlog.events.subjects import memory_thread

MODEL = "gpt-4o-mini"
DAYS = 13
OTHERS = (
    (
        "Essay: the robotics club",
        "Can you read the first paragraph of my essay?",
        "It opens well. Say what broke first.",
    ),
    ("周末去南京", "周末想带爸妈去南京,有什么安排?", "周六去南京博物院,周日走明城墙。"),
    (
        "Interview practice",
        "Ask me three questions an interviewer would ask.",
        "1. Why engineering? 2. A failure? 3. A book?",
    ),
    ("", "What does early decision mean?", "You promise to enrol if the college admits you, and hear earlier."),
)
ENTITIES = (
    EntityInput(
        "SCHOOL", "Harlan Institute", attributes={"priority": 1, "round": "ED"}, relations=[("located_in", "boston")]
    ),
    EntityInput("SCHOOL", "Northgate University", attributes={"priority": 2}, relations=[("located_in", "seattle")]),
    EntityInput(
        "PERSON", "Mr. Chen", description="Leads the robotics club", relations=[("teaches_at", "binjiang no. 2")]
    ),
    EntityInput("PLACE", "Boston"),
    EntityInput("PLACE", "Seattle"),
    EntityInput("SCHOOL", "Binjiang No. 2"),
    EntityInput("PERSON", "芝麻"),
    EntityInput("EVENT", "Robotics contest", relations=[("organised_by", "mr. chen")]),
)
# Age in days, kind, category, content, importance.
MEMORIES = (
    (0, "FACT", "academic", "Her average is 88.6 of 100, which is 3.72 of 4.0", 0.95),
    (1, "PREFERENCE", "application", "Wants a robotics laboratory at the college", 0.8),
    (3, "FACT", "health", "对花生过敏,随身带肾上腺素笔", 0.95),
    (6, "DECISION", "decision", "Applies to Harlan Institute early", 0.9),
    (12, "FACT", "finance", "The family can pay 52,000 USD a year", 0.85),
    (25, "FACT", "pet", "Has a corgi called Sesame (芝麻)", 0.6),
    (50, "PREFERENCE", "taste", "Likes essays that begin with a scene", 0.5),
    (80, "FACT", "activity", "Founded the school's robotics club in 2024", 0.7),
    (200, "FACT", "place", "家在杭州滨江区", 0.5),
)
# Earlier memories with their age in days: each was replaced by the next, and the last by a memory above.
EARLIER = ((120, "The family can pay 40,000 USD a year"), (45, "The family can pay 45,000 USD a year"))
REPLACED_BY = 5  # the index of that memory
SUMMARIES = (
    "Lin Wei (林薇) is a senior in Hangzhou who applies for fall 2027. Her average is 88.6, she is in the top 12 %, and"
    " she wants to study computer science or robotics. The family can pay 45,000 USD a year.",
    "Lin Wei (林薇) is a senior in Hangzhou who applies for fall 2027. Her average is 88.6, which is 3.72 of 4.0, and"
    " she wants to study robotics. The family can pay 52,000 USD a year. She has a corgi called Sesame (芝麻) and is "
    "allergic to peanuts.",
)


@asynccontextmanager
async def filled_server(home: Path) -> AsyncIterator[Api]:
    """Starts separate servers in a new folder and fills them."""
    with MemoryServer() as model:
        async with own_servers(home) as servers:
            serve = server(servers.where.nats_url, servers.where.database_url, home)
            options = {"api_base_url": model.url, "model": MODEL, "team": "advising", "topic_extraction": False}
            async with serve("agent", "analytics", **options) as api:
                filled = replace(api, tenant=api.runtime.settings.tenant)
                await fill(filled, model)
                yield filled


async def fill(api: Api, model: MemoryServer) -> None:
    prepared = prepare_import(ImportRequest(load_sample(), "jsonl", Defaults(user=USER), True))
    await import_conversations(api.runtime, prepared, unseen, unseen, unseen)
    await load_applicant(api.runtime, str(api.tenant), USER)
    async with api.client(USER, role="admin") as client:
        for at, (label, question, answer) in enumerate(OTHERS):
            await client.post("/api/threads", json={"thread": f"talk-{at}", "label": label or None})
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            await client.post(f"/api/threads/talk-{at}/turns", json={"turns": turns})
        await answer_questions(client, model)
        for content in ("My birthday is 3 May 2009.", "My birthday is 4 May 2009."):
            await client.post("/api/memories", json={"content": content})
        for label in ("Notebook", "Website"):
            await client.post("/api/operations/keys", json={"user": USER, "role": "user", "label": label})
    await append_history(api)
    await add_past(api)


def unseen(done: float, total: float | None) -> None:
    """Ignores the progress."""


async def answer_questions(client: AsyncClient, model: MemoryServer) -> None:
    """Asks questions for a run that delegates and calls two tools, a run whose tool fails, and two answers without
    tools."""
    model.reply("Your average is 88.6 of 100, which is 3.72 of 4.0.", delay=0.3)
    await ask(client, THREAD, "What is my GPA?")
    task = {"agent_type": "school", "task_description": "Which schools fit a GPA of 3.72 and 52,000 USD a year?"}
    model.reply("The school agent knows that.", tool_calls=[("delegate_to_agent", task)], delay=0.5)
    searched = [("get_profile", {}), ("search_schools", {"query": "robotics"})]
    model.reply("First the profile, then schools for robotics.", tool_calls=searched, delay=0.9)
    model.reply(
        "Three schools fit your profile:\n\n| School | Chance | Cost a year |\n|---|---|---|\n"
        "| Harlan Institute | Match | 48,200 USD |\n| Northgate University | Reach | 51,900 USD |\n"
        "| Lakeside College | Safety | 39,400 USD |\n\n**Harlan Institute** has its own robotics laboratory.",
        delay=1.2,
    )
    await ask(client, THREAD, "Which schools fit me, and what do they cost?")
    model.reply("I look at the school's page.", tool_calls=[("get_school_details", {"school": "?"})], delay=0.4)
    model.reply("I could not find that school. Which one do you mean?", delay=0.7)
    await ask(client, "talk-3", "Which universities have early decision, and until when?")
    model.reply("Sesame, your corgi.", delay=0.3)
    await ask(client, "talk-2", "What is my dog called?")
    assert model.take_replies() == []


async def ask(client: AsyncClient, thread: str, message: str) -> None:
    asked = await client.post(f"/api/threads/{thread}/answers", json={"message": message})
    assert asked.status_code == 201, asked.text


async def append_history(api: Api) -> None:
    """Appends summaries, an entity, usage of the last days, a run of a job, and an event that cannot be applied."""
    now = datetime.now(UTC)
    topics = {"schools": 9, "奖学金": 4, "essays": 3, "robotics": 2}
    await append(api, now, THREAD, TopicsTagged(topics=topics, derivation=derivation(1, 40)))
    for text, count in zip(SUMMARIES, (18, 40), strict=True):
        written = SummaryWritten(summary=text, message_count=count, covered_seq=count, derivation=derivation(1, count))
        await append(api, now, THREAD, written)
    for number, (days, kind, category, content, importance) in enumerate(MEMORIES, 1):
        shown = {"category": category, "content": content, "importance": importance}
        memory = memory_said(number, now - timedelta(days=days), **shown).model_copy(update={"kind": kind})
        await api.runtime.log.append(memory_event(memory, USER, str(api.tenant)))
    await add_earlier(api, now)
    await append(
        api, now, "jobs", JobRan(job="decay", due_at=now - timedelta(hours=9), duration_ms=412, counts={"archived": 2})
    )
    for entity in ENTITIES:
        await add_entity(api.runtime, str(api.tenant), USER, entity)
    await Stage(api.runtime).bad("turn_recorded", "talk-0")
    await api.runtime.wait_until_projected()


def memory_said(number: int, said: datetime, **shown: Any) -> Memory:
    source = MemorySource(thread=THREAD, seq=3, event_id=UUID(int=number - 1), quote=shown["content"], said_at=said)
    return memory_of(number, **shown, valid_from=said, sources=(source,))


async def add_earlier(api: Api, now: datetime) -> None:
    """Adds the earlier versions of the memory REPLACED_BY, the newest first, each already closed."""
    after, ended = REPLACED_BY, now - timedelta(days=MEMORIES[REPLACED_BY - 1][0])
    for number, (days, content) in enumerate(reversed(EARLIER), 100):
        said = now - timedelta(days=days)
        memory = memory_said(number, said, category="finance", content=content, importance=0.85)
        closed = Interval(memory_id=memory.id, valid_to=ended, replaced_by=UUID(int=after), reason="superseded")
        recorded = MemoryRecorded(memory=memory, intervals=(closed,))
        await append(api, said, memory_thread(USER), recorded)
        after, ended = number, said


async def append(api: Api, time: datetime, thread: str, *data: EventData) -> None:
    events = [Event(time=time, tenant=str(api.tenant), thread=thread, user=USER, data=each) for each in data]
    await api.runtime.log.append_many(events)


# Usage and activity are counted by the time when the log stored them, which cannot be in the past, so rows are
# inserted.
DAY = """
INSERT INTO usage SELECT %(tenant)s, current_date - %(day)s, %(user)s, %(agent)s, 'answer', 'openai', %(model)s,
  %(tokens)s / 900, %(tokens)s, %(tokens)s / 9, %(tokens)s / 4, 0, %(tokens)s, 1900"""
HOUR = """
INSERT INTO turnlog_analytics.hourly
SELECT %(tenant)s, date_trunc('hour', now()) - make_interval(hours => %(hour)s), %(type)s, %(role)s, %(events)s, 0,
  %(events)s::bigint * %(each)s, %(events)s::bigint * %(each)s / 9, %(errors)s"""


async def add_past(api: Api) -> None:
    """Adds usage of the last days and activity of the last hours."""
    chance = random.Random(3)
    async with api.runtime.pool.connection() as conn:
        for day in range(1, DAYS + 1):
            for agent, share in (("orchestrator", 1.0), ("school", 0.7), ("essay", 0.4)):
                tokens = int(chance.uniform(80_000, 300_000) * share)
                values = {
                    "tenant": api.tenant,
                    "day": day,
                    "user": USER,
                    "agent": agent,
                    "model": MODEL,
                    "tokens": tokens,
                }
                await conn.execute(DAY.encode(), values)
        for hour in range(1, 48):
            busy = max(0, int(chance.gauss(60, 30))) if 7 <= (47 - hour) % 24 <= 22 else 0
            for kind, role, each in (
                ("turn_recorded", "user", 0),
                ("turn_recorded", "assistant", 900),
                ("usage_metered", "", 0),
            ):
                errors = int(not role and busy > 90)
                values = {
                    "tenant": api.tenant,
                    "hour": hour,
                    "type": kind,
                    "role": role,
                    "events": busy,
                    "each": each,
                    "errors": errors,
                }
                await conn.execute(HOUR.encode(), values)
