"""Carries out a write once when it is repeated with the same Idempotency-Key; every repetition gets the same answer.

If event ids derive from the key, the log by itself stores a repeated write only once. This module does the rest: it
returns the answer of the first write, and refuses the same key with another body.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_bytes
from uuid import UUID

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from turnlog.agent.runtime import Pool, Runtime
from turnlog.events.errors import TurnlogError

KEPT = timedelta(hours=48)
LEASE_S, WAIT_S = 15.0, 60.0
FIRST_POLL_S, MAX_POLL_S = 0.01, 0.25
_NONCE = 12
# The commit does not wait for the disk: a crash of Postgres loses only the answers of the last moment.
_BEGIN = """
WITH fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO repeatable_writes AS w (tenant, id, user_id, request, begun_at, held_until)
SELECT %(tenant)s, %(id)s, %(user)s, %(request)s, now(), now() + make_interval(secs => %(lease)s) FROM fast
ON CONFLICT (tenant, id) DO UPDATE SET held_until = excluded.held_until
WHERE w.answer IS NULL AND w.held_until <= now() AND w.request = excluded.request
RETURNING 1"""
_FIND = "SELECT request, answer FROM repeatable_writes WHERE tenant = %(tenant)s AND id = %(id)s"
_ANSWER = """
WITH fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
UPDATE repeatable_writes w SET answer = %(answer)s FROM fast WHERE tenant = %(tenant)s AND id = %(id)s"""
_RENEW = """
UPDATE repeatable_writes SET held_until = now() + make_interval(secs => %(lease)s)
WHERE tenant = %(tenant)s AND id = %(id)s AND answer IS NULL"""
_NOTE_TRY = """
WITH fast AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
INSERT INTO repeatable_writes (tenant, id, user_id, request, answer, begun_at, held_until)
SELECT %(tenant)s, %(id)s, %(user)s, %(request)s, %(answer)s, now(), now() FROM fast
ON CONFLICT (tenant, id) DO UPDATE SET answer = excluded.answer, begun_at = excluded.begun_at"""
_GIVE_UP = "DELETE FROM repeatable_writes WHERE tenant = %(tenant)s AND id = %(id)s AND answer IS NULL"
EXPIRED = "DELETE FROM repeatable_writes WHERE begun_at < %(before)s"


class KeyReused(TurnlogError):
    """The Idempotency-Key was used before with another body."""

    code = "idempotency-key-reused"


class WriteUnderWay(TurnlogError):
    """A write with the same Idempotency-Key has not ended yet."""

    code = "write-under-way"
    retry_after_s = 5.0


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changes something. id: derived from its user, route and key. request: a digest of its body.
    secret: 32 bytes that encrypt the answer; they can be computed only from the key."""

    tenant: str
    user: str
    id: UUID
    request: bytes
    secret: bytes


async def begin_write(runtime: Runtime, write: Write, *, joins: bool = False) -> bytes | None:
    """Returns the answer if the write was done before; waits while it is running. None means that the caller does the
    write, and ends it with `keep_answer` or `give_up`.

    joins: repeats attach to the running request by themselves, so they do not wait here.
    Raises KeyReused, WriteUnderWay.
    """
    parameters = {"tenant": write.tenant, "id": write.id, "user": write.user, "request": write.request}
    parameters["lease"] = 0.0 if joins else LEASE_S
    deadline, pause = time.monotonic() + WAIT_S, FIRST_POLL_S
    while True:
        async with _pool(runtime).connection() as conn:
            if await (await conn.execute(_BEGIN, parameters)).fetchone():
                return None
            row = await (await conn.execute(_FIND, parameters)).fetchone()
        if row and bytes(row[0]) != write.request:
            raise KeyReused("this Idempotency-Key came with another body before; send a new key with a new write")
        if row and row[1] is not None:
            return _opened(write, bytes(row[1]))
        if time.monotonic() > deadline:
            raise WriteUnderWay("the same write is still running; send it again in a moment")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, MAX_POLL_S)


async def hold(runtime: Runtime, write: Write) -> None:
    """Renews the lease of a running write until this call is cancelled."""
    parameters = {"tenant": write.tenant, "id": write.id, "lease": LEASE_S}
    while True:
        await asyncio.sleep(LEASE_S / 3)
        with contextlib.suppress(psycopg.OperationalError):  # Postgres is unavailable; the next renewal may reach it
            async with _pool(runtime).connection() as conn:
                await conn.execute(_RENEW, parameters)


async def keep_answer(runtime: Runtime, write: Write, answer: bytes) -> None:
    """Keeps the answer for KEPT; only the Idempotency-Key decrypts it."""
    nonce = token_bytes(_NONCE)
    sealed = nonce + AESGCM(write.secret).encrypt(nonce, answer, write.id.bytes)
    async with _pool(runtime).connection() as conn:
        await conn.execute(_ANSWER, {"tenant": write.tenant, "id": write.id, "answer": sealed})


async def give_up(runtime: Runtime, write: Write) -> None:
    """Releases the key after a write that failed and changed nothing, so that the next write with the key is carried
    out."""
    async with _pool(runtime).connection() as conn:
        await conn.execute(_GIVE_UP, {"tenant": write.tenant, "id": write.id})


async def note_try(runtime: Runtime, tenant: str, user: str, request: bytes, answer: UUID, thread: str) -> None:
    """Records the answer's id and conversation for a client library's retry. request: the SHA-256 of the request, used
    instead of a key."""
    parameters = {"tenant": tenant, "id": UUID(bytes=request[:16]), "user": user, "request": request}
    async with _pool(runtime).connection() as conn:
        await conn.execute(_NOTE_TRY, {**parameters, "answer": answer.bytes + thread.encode()})


async def last_try(runtime: Runtime, tenant: str, request: bytes) -> tuple[UUID, str] | None:
    """Returns the answer's id and the conversation that `note_try` recorded for the request."""
    async with _pool(runtime).connection() as conn:
        row = await (await conn.execute(_FIND, {"tenant": tenant, "id": UUID(bytes=request[:16])})).fetchone()
    if row is None or bytes(row[0]) != request or row[1] is None:
        return None
    return UUID(bytes=bytes(row[1])[:16]), bytes(row[1])[16:].decode()


def _opened(write: Write, sealed: bytes) -> bytes:
    """Decrypts a kept answer. This cannot fail: with another TURNLOG_API_SECRET the digest of the request differs, and
    the request has been refused."""
    return AESGCM(write.secret).decrypt(sealed[:_NONCE], sealed[_NONCE:], write.id.bytes)


def _pool(runtime: Runtime) -> Pool:
    """Returns the system's pool, because a tenant's connections may only read."""
    return (runtime.system or runtime).pool
