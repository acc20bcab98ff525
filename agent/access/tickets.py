"""Issues single-use tickets: for WebSockets, because a browser cannot send a header there, for links to the web page,
and for signing in to MCP.

A ticket is random text; its claims are in a JetStream bucket under its digest, where entries expire by themselves.
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
from turnlog.events.subjects import SIGN_IN_BUCKET, TICKET_BUCKET

TICKET_S = 60
SIGN_IN_S = 600
MAX_BUCKET_BYTES = 16 * 1024 * 1024
WRONG_LAST_SEQUENCE = (10071, 10164)
_IDENTITIES = TypeAdapter(Identity)


class Tickets:
    """Tickets that one process issues and any process redeems. Methods raise LogUnavailable if NATS does not answer."""

    def __init__(
        self, log: Log, replicas: int, bucket: str = TICKET_BUCKET, seconds: int = TICKET_S, use: str = "WebSockets"
    ) -> None:
        self._log, self._replicas, self._bucket_name, self._seconds, self._use = log, replicas, bucket, seconds, use
        self._kv: KeyValue | None = None

    async def issue(self, identity: Identity) -> str:
        ticket = secrets.token_urlsafe(32)
        try:
            await (await self._bucket()).create(_digest(ticket), _IDENTITIES.dump_json(identity))
        except (NatsError, TimeoutError) as error:
            raise LogUnavailable(f"no ticket can be issued now: {cause(error)}") from error
        return ticket

    async def redeem(self, ticket: str) -> Identity:
        """Returns the identity that the ticket was made for, and deletes the ticket. Raises Unauthenticated."""
        key = _digest(ticket)
        try:
            kv = await self._bucket()
            entry = await kv.get(key)
            await kv.delete(key, last=entry.revision)
        except KeyNotFoundError:
            raise self._spent() from None
        except APIError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:  # another process was first
                raise self._spent() from None
            raise LogUnavailable(f"tickets cannot be read now: {cause(error)}") from error
        except (NatsError, TimeoutError) as error:
            raise LogUnavailable(f"tickets cannot be read now: {cause(error)}") from error
        return _IDENTITIES.validate_json(entry.value or b"")

    async def _bucket(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._log.nc.jetstream().create_key_value(
                KeyValueConfig(
                    bucket=self._bucket_name,
                    description=f"turnlog: tickets for {self._use}",
                    ttl=self._seconds,
                    max_bytes=MAX_BUCKET_BYTES,
                    storage=StorageType.MEMORY,
                    replicas=self._replicas,
                )
            )
        return self._kv

    def _spent(self) -> Unauthenticated:
        return Unauthenticated(f"the ticket was used or is older than {self._seconds} s; get a new one")


def _digest(ticket: str) -> str:
    return sha256(ticket.encode(errors="replace")).hexdigest()


def sign_in_tickets(log: Log, replicas: int) -> Tickets:
    """Returns the Tickets that sign users in to the web page by a link."""
    return Tickets(log, replicas, SIGN_IN_BUCKET, SIGN_IN_S, "the web page")
