"""Analysts read a tenant's own rows by SQL and Parquet, without texts unless they request them."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.cli import Cli, commands, environment_of
from helpers.key_rings import KEK
from helpers.sample_events import event, memory_of

from turnlog.agent.answering.turns import NewTurn, add_turns
from turnlog.agent.memory.memory_changes import remember
from turnlog.agent.operations.analysis import InvalidSql, export_log, query, views, with_views
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import load_settings
from turnlog.consumers.runtime import opened, projecting
from turnlog.events.contracts import MemoryRecorded, UsageMetered
from turnlog.events.subjects import memory_thread


@pytest.fixture
async def runtime(nats_url: str, database_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    settings = load_settings(nats_url=nats_url, database_url=database_url, home=tmp_path, kek=KEK)
    async with opened(settings) as runtime, projecting(runtime):
        await add_turns(runtime, "default", "t", [NewTurn("user", "My corgi is called 芝麻.")], user="ann")
        await remember(runtime, "default", "ann", "Ann plays the cello.")
        yield runtime


@pytest.fixture
def turnlog(nats_url: str, database_url: str, tmp_path: Path) -> Cli:
    return commands(environment_of(nats_url, database_url, tmp_path) | {"TURNLOG_KEK": KEK})


async def test_a_query_reads_the_views_of_its_tenant(runtime: Runtime) -> None:
    result = await query(runtime, "default", "SELECT thread_id, user_id, role, text FROM turns")
    assert (result.columns, result.rows) == (
        ["thread_id", "user_id", "role", "text"],
        [("t", "ann", "user", "My corgi is called 芝麻.")],
    )
    with_own = "WITH own AS (SELECT content FROM memories) SELECT * FROM own, (VALUES (1), (2)) AS n ORDER BY 2"
    result = await query(runtime, "default", with_own, limit=1)
    assert result.rows == [("Ann plays the cello.", 1)] and result.more and not result.hides
    assert set(await views(runtime, "default")) == {"turns", "memories", "usage", "runs"}
    counting = "with recursive n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT sum(i) FROM n"
    assert (await query(runtime, "default", counting)).rows == [(6,)]


async def test_memories_of_a_trial_derivation_are_not_counted(runtime: Runtime) -> None:
    trial = MemoryRecorded(memory=memory_of(1))
    await runtime.log.append(event(trial, memory_thread("ann", shadow="trial"), user="ann"))
    for table, rows in (("memories", 1), ("turnlog.memories", 2)):
        assert (await query(runtime, "default", f"SELECT count(*) FROM {table}")).rows == [(rows,)]


async def test_a_query_says_that_rows_of_other_tenants_are_hidden(runtime: Runtime) -> None:
    await add_turns(runtime, "acme", "s", [NewTurn("user", "A secret.")], user="bob")
    for table in ("turns", "turnlog.messages"):
        result = await query(runtime, "default", f"SELECT count(*) FROM {table}")
        assert result.rows == [(1,)] and result.hides
    assert (await query(runtime, "nobody", "SELECT * FROM turns")).rows == []


async def test_hidden_rows_are_noticed_in_each_table_that_a_query_names(runtime: Runtime) -> None:
    await remember(runtime, "acme", "bob", "Bob likes tea.")
    for table, hides in (("memories", True), ("turnlog.memories", True), ("turns", False), ("turnlog.messages", False)):
        assert (await query(runtime, "default", f"SELECT count(*) FROM {table}")).hides is hides, table
    usage = UsageMetered(purpose="answer", provider="p", model="m", calls=1, tokens_in=7, tokens_out=3)
    await runtime.log.append(event(usage, tenant="acme"))
    for tenant, hides in (("default", True), ("acme", False)):
        assert (await query(runtime, tenant, "TABLE usage")).hides is hides


async def test_queries_other_than_one_permitted_select_are_refused(runtime: Runtime) -> None:
    for sql in (
        "DELETE FROM turnlog.messages",
        "SELECT 1; SELECT 2",
        "SELECT * FROM turnlog.user_keys",
        "SELECT nothing FROM turns",
        "SELECT",
        "COMMIT",
        "",
    ):
        with pytest.raises(InvalidSql):
            await query(runtime, "default", sql)
    assert (await query(runtime, "default", "SELECT count(*) FROM turns")).rows == [(1,)]


def test_definitions_of_views_come_before_those_of_the_query() -> None:
    assert with_views("WITH a AS (SELECT 1) SELECT * FROM a").startswith("WITH turns AS (")
    assert with_views(" with recursive a AS (SELECT 1) SELECT 1").endswith("), a AS (SELECT 1) SELECT 1")


async def test_the_log_is_written_by_day_without_words_unless_they_are_asked_for(
    runtime: Runtime, tmp_path: Path
) -> None:
    made = await export_log(runtime, "default", tmp_path / "log")
    files = sorted((tmp_path / "log").glob("day=*/events.parquet"))  # two files if midnight has passed
    table = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert (made.days, made.events) == (len(files), len(table))
    assert [row["seq"] for row in table] == sorted(row["seq"] for row in table)
    (turn,) = (row for row in table if row["type"] == "turnlog.turn_recorded")
    assert (turn["tenant"], turn["thread"], turn["user"]) == ("default", "t", "ann")
    assert "corgi" not in str(table)
    await export_log(runtime, "default", tmp_path / "log", words=True)
    (turn,) = (
        row
        for file in files
        for row in pq.ParquetFile(file).read().to_pylist()
        if row["type"] == "turnlog.turn_recorded"
    )
    assert json.loads(turn["data"])["content"] == "My corgi is called 芝麻."
    tomorrow = datetime.now(UTC).date() + timedelta(days=2)
    assert (await export_log(runtime, "default", tmp_path / "later", since=tomorrow)).events == 0


async def test_commands_show_rows_and_hours(runtime: Runtime, turnlog: Cli) -> None:
    usage = UsageMetered(purpose="answer", provider="p", model="m", calls=1, tokens_in=7, tokens_out=3)
    answered = [NewTurn("assistant", "芝麻.")]
    await add_turns(runtime, "default", "t", answered, user="ann", usage=usage)
    said = await turnlog("sql", "SELECT role, text FROM turns ORDER BY seq")
    assert said.out.splitlines() == ["role       text", "user       My corgi is called 芝麻.", "assistant  芝麻."]
    assert (await turnlog("sql", "SELECT model, tokens_in FROM usage", "--csv")).out == "model,tokens_in\nm,7\n"
    assert (await turnlog("sql", "SELECT 1 AS n", "--json")).document == [{"n": 1}]
    assert (await turnlog("sql", "DROP TABLE x", "--json")).error == "invalid-sql"
    assert "no events were counted" in (await turnlog("activity")).out
