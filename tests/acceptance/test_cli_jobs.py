"""Commands for scheduled work: jobs, jobs run, compactions, compactions undo, rederive run|list|diff|promote|drop."""

import hashlib
from pathlib import Path
from typing import Any

from helpers.cli import Cli as Cli
from helpers.cli import turnlog as turnlog
from helpers.extraction import user_turn
from helpers.openai_server import OpenAIServer
from helpers.sample_events import event, memory_event, memory_of
from helpers.similar_memories import TEA, TEA_ANGLES, TEA_FOND, TEA_MERGED, append_memories, merged_text, run_compaction
from pgvector import HalfVector
from pydantic import SecretStr

from turnlog.agent.operations.jobs.compaction import SKIPPED
from turnlog.agent.settings import Settings
from turnlog.consumers.cli.jobs import NAMES
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import MemoriesEmbedded, Memory
from turnlog.events.log import Log
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.writer import Connection

MODEL = "unit-vectors"  # for this model the cosine is the similarity
RULES = """
[rule.instrument]
name = "Instrument"
type = "PREFERENCE"
category = "music"
importance = 0.6
en = ['''i take (?P<value>\\w+) lessons''']
zh = ['我在学(?P<value>[^\\s，。]+)']
content = { en = "Takes {value} lessons", zh = "在学{value}" }
dedupe_key = "instrument-{value}"
"""


async def embed(log: Log, db: Connection, *memories: Memory) -> None:
    """Embeds the memories with the same vector, as if they said the same."""
    for memory in memories:
        key = hashlib.sha256(memory.content.encode()).digest()
        await db.execute(
            "INSERT INTO embedding_cache (model, text_hash, embedding) VALUES (%s, %s, %s::halfvec)",
            (MODEL, key, HalfVector([1.0, 0.0]).to_text()),
        )
    data = MemoriesEmbedded(model=MODEL, dimensions=2, memory_ids=tuple(memory.id for memory in memories))
    await log.append(event(data, thread=memory_thread("ann"), user="ann"))


async def test_jobs_are_listed_with_their_last_run_and_done_now(log: Log, turnlog: Cli) -> None:
    assert [line.split()[0] for line in (await turnlog("jobs")).out.splitlines()[1:]] == [*NAMES]
    await log.append(memory_event(memory_of(1, content="likes green tea"), "ann"))
    ran = (await turnlog("jobs", "run", "decay", "--now", "2030-01-01T03:00:00Z")).out
    assert ran.startswith("decay: 1 looked at, 0 archived, 1 deleted, 0 expired in ")
    listed = (await turnlog("jobs", "--json")).document
    last = {job["job"]: job["last"] for job in listed}
    assert last.pop("decay")["counts"]["deleted"] == 1
    assert set(last.values()) == {None}
    assert (await turnlog("jobs", "run", "sweep", "--json")).error == "not-found"
    assert (await turnlog("jobs", "run", "decay", "--now", "soon", "--json")).error == "invalid-time"


async def test_duplicate_memories_are_merged_and_separated_again(log: Log, db: Connection, turnlog: Cli) -> None:
    told = [memory_of(1, content="很喜欢喝绿茶"), memory_of(2, content="她非常爱喝绿茶")]
    await log.append_many([memory_event(memory, "ann") for memory in told])
    await embed(log, db, *told)
    ran = (await turnlog("jobs", "run", "compaction", "--json")).document
    assert (ran["counts"], ran["errors"]) == (SKIPPED | {"looked_at": 2, "groups": 1, "closed": 1}, 0)
    [made] = (await turnlog("compactions", "--user", "ann", "--json")).document
    assert made["event_id"] in (await turnlog("compactions", "--user", "ann")).out
    undone = await turnlog("compactions", "undo", made["event_id"], "--user", "ann")
    assert undone.out == "1 memory valid again\n"
    assert (await turnlog("compactions", "--user", "ann")).out.endswith("2 memories  dedupe  taken back\n")
    wrong = ("compactions", "undo", str(told[0].id), "--user", "ann", "--json")
    assert (await turnlog(*wrong)).error == "not-found"
    assert (await turnlog("compactions", "--json")).error == "nothing-chosen"


async def test_a_merge_by_a_model_is_shown_with_its_sources_and_undone(
    nats_url: str, database_url: str, turnlog: Cli
) -> None:
    with OpenAIServer() as server:
        about: dict[str, Any] = {"api_base_url": server.url, "api_key": SecretStr(server.key)}
        settings = Settings(nats_url=nats_url, database_url=database_url, **about)
        async with opened(settings) as runtime, projecting(runtime):
            await append_memories(runtime, TEA_ANGLES)
            server.reply(merged_text(TEA_MERGED))
            await run_compaction(runtime)
    shown = (await turnlog("memories", "show", "really fond of it", "--user", "ann")).out
    assert f"→ FACT        {TEA_MERGED}" in shown
    assert all(f"“{memory.content}”" in shown for memory in (TEA, TEA_FOND)), shown
    assert shown.count("merged, ") == 2
    listed = (await turnlog("compactions", "--user", "ann")).out.strip()
    assert listed.endswith("2 memories  merge  similarity 0.87")
    undone = await turnlog("compactions", "undo", listed.split()[0], "--user", "ann")
    assert undone.out == "2 memories valid again\n"
    held = (await turnlog("memories", "--user", "ann")).out
    assert TEA.content in held and TEA_MERGED not in held


async def test_other_rules_are_run_as_a_trial_compared_and_promoted(log: Log, turnlog: Cli, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES, "utf-8")
    await log.append_many([user_turn(text, n) for n, text in enumerate(["I take cello lessons.", "我在学钢琴。"])])
    trial = await turnlog("rederive", "run", "music", "--rules", str(tmp_path / "rules.toml"))
    assert "Takes cello lessons" in trial.out and "在学钢琴" in trial.out, trial.err
    [difference] = (await turnlog("rederive", "diff", "music", "--json")).document
    assert (difference["user"], len(difference["added"]), difference["gone"]) == ("ann", 2, [])
    assert (await turnlog("memories", "--user", "ann", "--json")).document == []
    asked = await turnlog("rederive", "promote", "music", typed="n\n")
    assert (asked.code, "[not-confirmed]" in asked.err) == (1, True)
    assert (await turnlog("rederive", "promote", "music", "--yes")).code == 0
    rows = (await turnlog("memories", "--user", "ann", "--json")).document
    assert sorted(row["content"] for row in rows) == ["Takes cello lessons", "在学钢琴"]


async def test_trial_derivations_are_listed_and_dropped(log: Log, turnlog: Cli) -> None:
    await log.append(user_turn("我住在北京。"))
    [tried] = (await turnlog("rederive", "run", "again", "--json")).document
    assert [row["content"] for row in tried["added"]] == ["住在北京"]
    assert (await turnlog("rederive", "list")).out == "again  1 user\n"
    assert (await turnlog("rederive", "drop", "again")).out == "dropped again of 1 user\n"
    assert (await turnlog("rederive", "list")).out == "no shadows\n"
    assert (await turnlog("rederive", "diff", "again", "--json")).error == "not-found"
