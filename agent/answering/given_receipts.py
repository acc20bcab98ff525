"""Receipts that a server gave with a context, so that a client hands back their ids alone.

They are in a JetStream bucket in memory whose entries end by themselves. A cache: where an entry is gone, the client
sends the receipt itself.
"""

import contextlib
import logging
from uuid import UUID, uuid4

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from turnlog.agent.runtime import Runtime
from turnlog.events.errors import TurnlogError
from turnlog.events.log import nats_errors
from turnlog.events.subjects import RECEIPT_BUCKET, receipt_key

RECEIPT_S = 15 * 60
MAX_BYTES = 900_000
MAX_BUCKET_BYTES = 64 * 1024 * 1024
logger = logging.getLogger("turnlog.receipts")


class ReceiptGone(TurnlogError):
    """A receipt was named by an id that the server does not have, or no longer."""

    code = "receipt-gone"


class GivenReceipts:
    """Kept by one process and found by any, under the tenant and user that they were given to."""

    def __init__(self, runtime: Runtime) -> None:
        self._log, self._replicas = runtime.log, runtime.settings.replicas
        self._kv: KeyValue | None = None

    async def keep(self, tenant: str, user: str, receipt: bytes) -> UUID | None:
        """The id to find it by; None where it cannot be kept."""
        if len(receipt) > MAX_BYTES:
            return None
        id_ = uuid4()
        try:
            await (await self._bucket()).create(receipt_key(tenant, user, id_.hex), receipt)
        except (NatsError, OSError, TimeoutError) as error:  # the bucket is full, or NATS is away
            logger.info("a receipt is not kept: %r", error)
            self._kv = None
            return None
        return id_

    async def find(self, tenant: str, user: str, id_: UUID) -> bytes:
        """Raises ReceiptGone, LogUnavailable."""
        with nats_errors("cannot ask NATS for a receipt"):
            try:
                return (await (await self._bucket()).get(receipt_key(tenant, user, id_.hex))).value or b""
            except KeyNotFoundError:
                raise ReceiptGone(
                    f"there is no receipt {id_} of yours; one is kept for {RECEIPT_S // 60} minutes. Send the receipt "
                    "itself, as it came with the context"
                ) from None

    async def forget(self, tenant: str, user: str) -> None:
        """Removes all of a user. Raises LogUnavailable."""
        with nats_errors("cannot remove receipts from NATS"), contextlib.suppress(NotFoundError):
            js, subject = self._log.nc.jetstream(), f"$KV.{RECEIPT_BUCKET}.{receipt_key(tenant, user, '*')}"
            await js.purge_stream(f"KV_{RECEIPT_BUCKET}", subject=subject)

    async def _bucket(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._log.nc.jetstream().create_key_value(
                KeyValueConfig(
                    bucket=RECEIPT_BUCKET,
                    description="turnlog: receipts given with contexts",
                    ttl=RECEIPT_S,
                    max_bytes=MAX_BUCKET_BYTES,
                    storage=StorageType.MEMORY,
                    replicas=self._replicas,
                )
            )
        return self._kv
