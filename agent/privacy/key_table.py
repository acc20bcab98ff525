"""The table user_keys, asked by short blocking queries on a connection of its own.

They block, for a fraction of a millisecond and once per user, so that encoding an event stays a plain function.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from uuid_utils.compat import uuid7

from turnlog.agent.privacy.kek import Keks
from turnlog.events.errors import InvalidEvent, KeyUnavailable
from turnlog.events.sealing import UserKey
from turnlog.projectors.database import session_options

CONNECT_S, ANSWER_MS = 2, 3_000
# The server's own limit comes first; a server that hangs keeps none.
HANGS_S = 4.0
# After a failure nobody blocks for so long on a server that is away.
AWAY_S = 1.0
T = TypeVar("T")
Connection = psycopg.Connection[Any]

_KEYS = """
SELECT key_id::text, tenant, user_id, wrapped, kek_id, retired_at IS NULL AND destroyed_at IS NULL FROM user_keys
WHERE tenant = %(tenant)s AND user_id = %(user)s OR key_id = %(key_id)s ORDER BY created_at"""
_MAKE = """
INSERT INTO user_keys (key_id, tenant, user_id, wrapped, kek_id) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (tenant, user_id) WHERE retired_at IS NULL AND destroyed_at IS NULL DO NOTHING"""


@dataclass(slots=True)
class KeysOfUser:
    """keys: id → key, None for a destroyed one. current: what seals now."""

    current: UserKey | None = None
    keys: dict[str, UserKey | None] = field(default_factory=dict)


class KeyTable:
    """All methods raise KeyUnavailable when Postgres does not answer, or a KEK that is needed is not given."""

    def __init__(self, database_url: str, keks: Keks) -> None:
        self._url, self._keks, self._kek_of = database_url, keks, keks.by_id
        self._lock = threading.Lock()
        self._conn: Connection | None = None
        self._away_until = 0.0

    def keys_of(self, tenant: str, user: str, key_id: UUID | None = None) -> KeysOfUser:
        """All keys of a user. Raises InvalidEvent when key_id is another's."""
        rows = self._asked(lambda conn: self._rows(conn, tenant, user, key_id), f"the keys of user {user!r}")
        found = KeysOfUser()
        for found_id, *owner, wrapped, kek_id, is_current in rows:
            if owner != [tenant, user]:
                raise InvalidEvent(f"key {found_id} is not one of user {user!r} in tenant {tenant!r}")
            key = None if wrapped is None else self._unwrapped(wrapped, kek_id, found_id, tenant, user)
            found.keys[found_id] = key
            found.current = key if is_current else found.current
        return found

    def make(self, tenant: str, user: str) -> None:
        """A first key, unless somebody else makes one at the same time."""
        key_id = str(uuid7())
        wrapped = self._keks.current.wrap(AESGCM.generate_key(256), key_id, tenant, user)
        row = (key_id, tenant, user, wrapped, self._keks.current.id)
        self._asked(lambda conn: conn.execute(_MAKE, row), f"a key for user {user!r}")

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _rows(self, conn: Connection, tenant: str, user: str, key_id: UUID | None) -> list[Any]:
        return conn.execute(_KEYS, {"tenant": tenant, "user": user, "key_id": key_id}).fetchall()

    def _unwrapped(self, wrapped: bytes, kek_id: str, key_id: str, tenant: str, user: str) -> UserKey:
        kek = self._kek_of.get(kek_id)
        if kek is None:
            raise KeyUnavailable(
                f"key {key_id} is wrapped by key-encryption key {kek_id}, which is not given; set TURNLOG_KEK_OLD to it"
            )
        return UserKey(key_id, AESGCM(kek.unwrap(wrapped, key_id, tenant, user)))

    def _asked(self, ask: Callable[[Connection], T], what: str) -> T:
        """Asks Postgres, once more on a new connection when the old one turns out to be dead."""
        with self._lock:
            if time.monotonic() < self._away_until:
                raise KeyUnavailable(f"cannot get {what}: Postgres does not answer; it is tried again soon")
            try:
                return self._ask_twice(ask)
            except psycopg.Error as error:
                self._disconnect()
                self._away_until = time.monotonic() + AWAY_S
                cause = " ".join(str(error).split())
                raise KeyUnavailable(
                    f"cannot get {what}: Postgres does not answer ({cause}). Nothing was stored; users seen before go "
                    "on, others can when it is back. Check DATABASE_URL"
                ) from error

    def _ask_twice(self, ask: Callable[[Connection], T]) -> T:
        if self._conn is not None:
            try:
                return _in_time(ask, self._conn)
            except psycopg.Error:
                self._disconnect()
        self._conn = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            tcp_user_timeout=ANSWER_MS,
            options=f"{session_options()} -c statement_timeout={ANSWER_MS}",
        )
        return _in_time(ask, self._conn)

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                conn.close()


def _in_time(ask: Callable[[Connection], T], conn: Connection) -> T:
    """Asks, and hangs up on a server that does not answer at all: nobody else in this process goes on meanwhile."""
    with socket.socket(fileno=os.dup(conn.fileno())) as line:
        timer = threading.Timer(HANGS_S, _hang_up, [line])
        timer.daemon = True
        timer.start()
        try:
            return ask(conn)
        finally:
            timer.cancel()


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the answer came at the last moment
        line.shutdown(socket.SHUT_RDWR)
