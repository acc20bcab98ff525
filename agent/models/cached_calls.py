"""Calls a model only once per question: the answer is cached for its owner before it is used."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg.types.json import Json

from turnlog.agent import metrics
from turnlog.agent.models.errors import EmptyAnswer
from turnlog.agent.models.protocol import Usage
from turnlog.agent.models.spending_limit import Ledger
from turnlog.projectors.engine.writer import Connection


@dataclass(frozen=True, slots=True)
class Owner:
    """The thread and user whose words a model reads; erasing the user deletes the cached answers."""

    tenant: str
    thread: str
    user: str | None

    @property
    def place(self) -> str:
        """Returns a key unique to the thread; a tenant contains no slash."""
        return f"{self.tenant}/{self.thread}"


def key_of(owner: Owner, model: str, parts: Sequence[str]) -> bytes:
    return hashlib.sha256("\x00".join((owner.place, model, *parts)).encode(errors="replace")).digest()


async def once(
    conn: Connection, ledger: Ledger, owner: Owner, key: bytes, estimate: int, work: Callable[[], Awaitable[Any]]
) -> dict[str, Any]:
    """Returns the cached answer for a key as a dict. If there is none, it calls `work` and caches the result.

    work: returns a dataclass with `usage`. Raises its errors, and RetryLater if the spending limit is reached.
    """
    answer = (await cached(conn, [key])).get(key)
    metrics.cache_read("model-answers", answer is not None, answer is None)
    if answer is not None:
        return answer
    await ledger.admit(conn, estimate)
    try:
        made = await work()
    except EmptyAnswer as error:  # the call has no result, but its usage counts
        if isinstance(error.usage, Usage):
            await ledger.book(conn, error.usage)
        raise
    await conn.execute(
        "INSERT INTO model_cache (request_hash, response, tenant, user_id, thread_id) VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT DO NOTHING",
        (key, Json(asdict(made)), owner.tenant, owner.user, owner.thread),
    )
    await ledger.book(conn, made.usage)
    return asdict(made)


async def forget_answers(conn: Connection, keys: Sequence[bytes]) -> None:
    """Deletes cached answers whose source was removed, because they contain its words."""
    await conn.execute("DELETE FROM model_cache WHERE request_hash = ANY(%s)", (list(keys),))


async def cached(conn: Connection, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
    rows = await conn.execute(
        "SELECT request_hash, response FROM model_cache WHERE request_hash = ANY(%s)", (list(keys),)
    )
    return {bytes(key): dict(response) for key, response in await rows.fetchall()}
