"""Tickets: what opens one WebSocket within a minute, where a browser can send no header. Each is good once.

A ticket is random text; its claims are in a JetStream bucket whose entries end by themselves, under its digest.
"""

import secrets
from hashlib import sha256

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import APIError, KeyNotFoundError
from nats.js.kv import KeyValue
from pydantic import TypeAdapter

from turnlog.agent.access.identity import Identity, Unauthenticated
from turnlog.events.errors import LogUnavailable, cause
from turnlog.events.log import Log
from turnlog.events.subjects import TICKET_BUCKET

TICKET_S = 60
MAX_BUCKET_BYTES = 16 * 1024 * 1024
WRONG_LAST_SEQUENCE = (10071, 10164)
_IDENTITIES = TypeAdapter(Identity)


class Tickets:
    """Issued by one process and redeemed by any. Raises LogUnavailable when NATS does not answer."""

    def __init__(self, log: Log, replicas: int) -> None:
        self._log, self._replicas = log, replicas
        self._kv: KeyValue | None = None

    async def issue(self, identity: Identity) -> str:
        ticket = secrets.token_urlsafe(32)
        try:
            await (await self._bucket()).create(_digest(ticket), _IDENTITIES.dump_json(identity))
        except (NatsError, TimeoutError) as error:
            raise LogUnavailable(f"no ticket can be issued now: {cause(error)}") from error
        return ticket

    async def redeem(self, ticket: str) -> Identity:
        """Raises Unauthenticated."""
        key = _digest(ticket)
        try:
            kv = await self._bucket()
            found = await kv.get(key)
            await kv.delete(key, last=found.revision)
        except KeyNotFoundError:
            raise _spent() from None
        except APIError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:  # another process was first
                raise _spent() from None
            raise LogUnavailable(f"tickets cannot be read now: {cause(error)}") from error
        except (NatsError, TimeoutError) as error:
            raise LogUnavailable(f"tickets cannot be read now: {cause(error)}") from error
        return _IDENTITIES.validate_json(found.value or b"")

    async def _bucket(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._log.nc.jetstream().create_key_value(
                KeyValueConfig(
                    bucket=TICKET_BUCKET,
                    description="turnlog: tickets for WebSockets",
                    ttl=TICKET_S,
                    max_bytes=MAX_BUCKET_BYTES,
                    storage=StorageType.MEMORY,
                    replicas=self._replicas,
                )
            )
        return self._kv


def _digest(ticket: str) -> str:
    return sha256(ticket.encode(errors="replace")).hexdigest()


def _spent() -> Unauthenticated:
    return Unauthenticated(f"the ticket was used or is older than {TICKET_S} s; get a new one")
