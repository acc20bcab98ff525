"""Reads runs of agents and their steps."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from turnlog.projectors.engine.writer import Connection


@dataclass(frozen=True, slots=True)
class AgentRun:
    """A run of an agent. agent: the agent that spoke last. status: running, solved or failed. code: the error of a
    failed run. cost_usd: the cost of its model calls. price_known: False if a call used tokens of a model without a
    price; for older events without this field, False if it used tokens at no cost. started_at: when its first step was
    recorded. took_ms: the time from the beginning of the first step to the end of the run; None while it runs."""

    run_id: UUID
    thread: str
    user: str | None
    agent: str
    status: str
    code: str | None
    started_at: datetime
    ended_at: datetime | None
    took_ms: int | None
    tokens_in: int
    tokens_out: int
    cost_usd: float
    price_known: bool


@dataclass(frozen=True, slots=True)
class RunStep:
    """A step of a run. kind: plan, call, result, delegation or end. name: the name of the tool, or of the agent that
    takes over. text: the plan, arguments, result, task, or the code of a failed end. calls: the calls of a plan, {"id",
    "name", "arguments", "after"} each."""

    seq: int
    kind: str
    agent: str
    depth: int
    name: str | None
    call_id: str | None
    text: str
    calls: list[dict[str, Any]] | None
    is_error: bool
    latency_ms: int | None
    tokens_in: int
    tokens_out: int
    cost_usd: float
    price_known: bool
    at: datetime


_PRICE_KNOWN = "coalesce(price_known, tokens_in + tokens_out = 0 OR cost_micro_usd > 0)"
_RUNS = f"""
SELECT run_id, thread_id AS thread, user_id AS user, agent, status, code, started_at, ended_at, tokens_in, tokens_out,
       CASE WHEN ended_at IS NOT NULL THEN
         (1000 * greatest(extract(epoch FROM ended_at - started_at), 0))::int + coalesce((
           SELECT CASE kind WHEN 'plan' THEN latency_ms END FROM agent_run_steps s
           WHERE (s.tenant, s.thread_id, s.run_id) = (r.tenant, r.thread_id, r.run_id) ORDER BY seq LIMIT 1), 0)
       END AS took_ms,
       cost_micro_usd / 1e6::float AS cost_usd, NOT EXISTS (
         SELECT FROM agent_run_steps s WHERE (s.tenant, s.thread_id, s.run_id) = (r.tenant, r.thread_id, r.run_id)
         AND s.tokens_in + s.tokens_out > 0 AND NOT {_PRICE_KNOWN}) AS price_known
FROM agent_runs r
WHERE tenant = %(tenant)s AND (%(user)s::text IS NULL OR user_id = %(user)s)
  AND (%(thread)s::text IS NULL OR thread_id = %(thread)s)
  AND (%(low)s::uuid IS NULL OR run_id BETWEEN %(low)s AND %(high)s)
  AND (%(since)s::timestamptz IS NULL OR started_at < %(since)s
       OR (started_at = %(since)s AND run_id > %(after)s::uuid))
ORDER BY started_at DESC, run_id LIMIT %(limit)s"""
_STEPS = f"""
SELECT seq, kind, agent, CASE kind WHEN 'end' THEN max(depth) OVER () ELSE depth END AS depth, name, call_id, text,
       calls, is_error, latency_ms, tokens_in, tokens_out, cost_micro_usd / 1e6::float AS cost_usd,
       tokens_in + tokens_out = 0 OR {_PRICE_KNOWN} AS price_known, at
FROM agent_run_steps WHERE tenant = %s AND thread_id = %s AND run_id = %s ORDER BY seq"""


async def agent_runs_of(
    conn: Connection,
    tenant: str,
    user: str | None = None,
    thread: str | None = None,
    *,
    ids: tuple[UUID, UUID] | None = None,
    after: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> list[AgentRun]:
    """Returns runs, newest first. user: None for all users. ids: the lowest and the highest id to return, to search by
    a prefix. after: start and id of the last run of the previous page."""
    cursor = conn.cursor(row_factory=class_row(AgentRun))
    since, last = after or (None, None)
    values: dict[str, object] = {"tenant": tenant, "user": user, "thread": thread, "limit": limit}
    values |= {"since": since, "after": last, **dict(zip(("low", "high"), ids or (None, None), strict=True))}
    return await (await cursor.execute(_RUNS.encode(), values)).fetchall()


async def steps_of(conn: Connection, tenant: str, thread: str, run: UUID) -> list[RunStep]:
    """Returns the steps of a run in the order of the log."""
    cursor = conn.cursor(row_factory=class_row(RunStep))
    return await (await cursor.execute(_STEPS.encode(), (tenant, thread, run))).fetchall()
