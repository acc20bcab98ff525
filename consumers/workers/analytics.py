"""Computes usage analytics as an independent subscriber with its own durable, tables and pace.

It uses only the JSON of the events and no read model. docs/subscribe.md shows the same in twenty lines of plain
nats-py. Every message is counted once, because its sequence is stored together with the counts.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from turnlog.agent.runtime import Runtime
from turnlog.consumers.workers.app import Subscription, consuming
from turnlog.consumers.workers.durable_consumer import Delivery, DurableConsumer, Work
from turnlog.events.codec import parsed, unsealed
from turnlog.events.contracts import ERASED
from turnlog.events.errors import InvalidEvent
from turnlog.events.sealing import Keyring, key_ids_in
from turnlog.events.subjects import STORED_PREFIX

NAME = "analytics"

TABLES = """
CREATE SCHEMA IF NOT EXISTS turnlog_analytics;
CREATE TABLE IF NOT EXISTS turnlog_analytics.seen (seq bigint PRIMARY KEY);
CREATE TABLE IF NOT EXISTS turnlog_analytics.hourly (
  tenant text NOT NULL, hour timestamptz NOT NULL, type text NOT NULL, role text NOT NULL,
  events bigint NOT NULL, characters bigint NOT NULL, tokens_in bigint NOT NULL, tokens_out bigint NOT NULL,
  errors bigint NOT NULL, PRIMARY KEY (tenant, hour, type, role));
"""
_COUNT = """
WITH new AS (INSERT INTO turnlog_analytics.seen (seq) VALUES (%(seq)s) ON CONFLICT DO NOTHING RETURNING seq)
INSERT INTO turnlog_analytics.hourly AS h
SELECT %(tenant)s, date_trunc('hour', %(time)s::timestamptz), %(type)s, %(role)s, 1, %(characters)s, %(tokens_in)s,
  %(tokens_out)s, %(errors)s FROM new
ON CONFLICT (tenant, hour, type, role) DO UPDATE SET events = h.events + 1,
  characters = h.characters + excluded.characters, tokens_in = h.tokens_in + excluded.tokens_in,
  tokens_out = h.tokens_out + excluded.tokens_out, errors = h.errors + excluded.errors"""


@contextlib.asynccontextmanager
async def analytics(runtime: Runtime) -> AsyncIterator[None]:
    """Runs the subscription while the block runs."""
    async with runtime.pool.connection() as conn:
        await conn.execute(TABLES.encode())
    consumer = DurableConsumer(runtime.pool, NAME, counting(runtime), reads_bodies=True, give_way=runtime.give_way)
    async with consuming(runtime, NAME, [Subscription(consumer, f"{STORED_PREFIX}.>")]):
        yield


def counting(runtime: Runtime) -> Work:
    """Returns a function that counts deliveries, which must have bodies."""

    keyring = runtime.log.keyring

    async def work(deliveries: list[Delivery]) -> None:
        if keyring is not None:
            await keyring.prefetch(key_ids_in(delivery.stored.body for delivery in deliveries))
        async with runtime.pool.connection() as conn:
            await conn.cursor().executemany(_COUNT.encode(), [_facts(delivery, keyring) for delivery in deliveries])

    return work


def _facts(delivery: Delivery, keyring: Keyring | None) -> dict[str, Any]:
    """Returns the unencrypted facts of a message; an invalid event counts as type 'invalid'.

    Sealed fields are opened only to count characters; erased fields are not counted. Raises KeyUnavailable.
    """
    event = _opened(delivery.stored.body, keyring)
    data = event.get("data")
    data = data if isinstance(data, dict) else {}
    return {
        "seq": delivery.seq,
        "tenant": delivery.place[0],
        "time": delivery.stored.stored_at,
        "type": str(event.get("type", "invalid"))[:100].replace("\x00", ""),
        "role": str(data.get("role", ""))[:20].replace("\x00", ""),
        "characters": _length(data.get("content", "")),
        "tokens_in": _number(data.get("tokens_in")),
        "tokens_out": _number(data.get("tokens_out")),
        "errors": int(data.get("error") is not None),
    }


def _opened(body: bytes, keyring: Keyring | None) -> dict[str, Any]:
    event: dict[str, Any] = {}
    with contextlib.suppress(InvalidEvent):
        event = parsed(body)
        if "sealed" in event and keyring is not None:
            return unsealed(event, keyring)
    return event


def _length(content: object) -> int:
    if content == ERASED:
        return 0
    return len(content) if isinstance(content, str) else len(json.dumps(content, ensure_ascii=False))


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0  # a bool is also an int
