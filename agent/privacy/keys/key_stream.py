"""Stores users' keys on a separate stream, wrapped by the key-encryption key, so that no key is lost together with
Postgres.

A message states that a key was issued, or that it was destroyed. Both are sealed with the KEK: an issued key unwraps to
its bytes, a destroyed one to nothing. So nobody else can issue or destroy a key by publishing here; messages that do
not unwrap are ignored.
"""

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from pydantic_core import from_json, to_json
from uuid_utils.compat import uuid7

from turnlog.agent.privacy.keys.kek import Keks
from turnlog.events.append import MAX_BATCH
from turnlog.events.errors import GapInLog, KeyUnavailable, cause
from turnlog.events.publish import Outgoing, Refused, publish
from turnlog.events.read import read_to
from turnlog.events.stream import StreamOptions, ensured, keys_config, overwrite
from turnlog.events.subjects import KEYS, KEYS_STREAM, key_subject

ACK_S = 5.0
AT_ONCE = 32
NO_MESSAGE = 10037
# The entry of the stream's metadata with the id of the current KEK. Publishers cannot change the metadata.
KEK_IN_USE = "turnlog.kek"
# More than 8 MB of entries, after which a replica discards its Raft log. The bytes are random because the replica
# compresses them.
FILLER_BYTES, FILLERS = 512 * 1024, 20

PLACE = """
UPDATE user_keys k SET seq = placed.seq FROM unnest(%s::uuid[], %s::bigint[]) AS placed (key_id, seq)
WHERE k.key_id = placed.key_id"""
# A key taken from the stream only opens events; the user's new events get a new key. A destroyed key stays destroyed.
_TAKE_OVER = """
INSERT INTO user_keys AS k (key_id, tenant, user_id, wrapped, kek_id, seq, retired_at, destroyed_at)
VALUES (%s, %s, %s, %s, %s, %s, now(), CASE WHEN %s THEN now() END)
ON CONFLICT (key_id) DO UPDATE SET seq = greatest(k.seq, excluded.seq),
  wrapped = CASE WHEN excluded.destroyed_at IS NULL THEN k.wrapped END,
  retired_at = CASE WHEN excluded.destroyed_at IS NULL THEN k.retired_at ELSE coalesce(k.retired_at, now()) END,
  destroyed_at = coalesce(k.destroyed_at, excluded.destroyed_at)"""


class KeyRecord(NamedTuple):
    """A key on the stream. wrapped: the key, encrypted by the KEK; None for a destroyed key. seq: its sequence on the
    stream."""

    id: str
    tenant: str
    user: str
    wrapped: bytes | None
    kek_id: str
    seq: int = 0


@dataclass(frozen=True, slots=True)
class KeyStream:
    """Reads and writes the stream of keys. All methods raise KeyUnavailable if NATS does not answer."""

    nc: Client
    keks: Keks

    async def create(self, options: StreamOptions) -> None:
        """Creates the stream unless it exists. Raises StreamDrift."""
        wanted = replace(keys_config(options), metadata={KEK_IN_USE: self.keks.current.id})
        with _nats_errors("make or check"):
            info = await ensured(self.nc.jetstream(), wanted)
        if not info.state.messages:
            await self.note_kek()

    async def note_kek(self) -> None:
        """Records that the current key-encryption key is needed to start from now on."""
        js = self.nc.jetstream()
        with _nats_errors("change"):
            config = (await js.stream_info(KEYS_STREAM)).config
            if (config.metadata or {}).get(KEK_IN_USE) != self.keks.current.id:
                await js.update_stream(replace(config, metadata={KEK_IN_USE: self.keks.current.id}))

    async def head(self) -> int:
        with _nats_errors("read"):
            return int((await self.nc.jetstream().stream_info(KEYS_STREAM)).state.last_seq)

    async def put(self, records: Sequence[KeyRecord]) -> list[int]:
        """Stores the records; returns their sequences in the same order."""
        seqs: list[int] = []
        for start in range(0, len(records), MAX_BATCH):
            outs = [self._outgoing(record) for record in records[start : start + MAX_BATCH]]
            with _nats_errors("write to"):
                seqs += [done.seq for done in await publish(self.nc, outs, ACK_S)]
        return seqs

    async def since(self, seq: int, through: int) -> AsyncIterator[KeyRecord]:
        """Yields the records that turnlog wrote after `seq` and up to `through`, in order."""
        with _nats_errors("read"):
            async for stored in read_to(self.nc, [KEYS], seq + 1, through, stream=KEYS_STREAM):
                if (record := self._record(stored.body, stored.seq)) is not None:
                    yield record

    async def of_keys(self, key_ids: Collection[str]) -> list[KeyRecord]:
        """Returns the latest record of each of these keys; keys that turnlog did not issue are left out."""
        latest: list[KeyRecord] = []
        for key_id in sorted(key_ids):
            records = [
                record async for _, record in self._messages(key_id) if record is not None and record.id == key_id
            ]
            destroyed = [record for record in records if record.wrapped is None]
            latest += (destroyed or records)[-1:]
        return latest

    async def destroy(self, records: Sequence[KeyRecord]) -> list[int]:
        """Records that these keys are destroyed, and overwrites their bytes. Returns the sequences of the records.

        The record comes first: a key without any message counts as never issued, and events that it sealed would be
        parked.
        """
        seqs = await self.put([record._replace(wrapped=None, kek_id=self.keks.current.id) for record in records])
        await self.overwrite_issued({record.id for record in records})
        await self.cut_raft_logs()
        return seqs

    async def overwrite_issued(self, key_ids: Collection[str]) -> None:
        """Removes all messages about these keys except the record that they are destroyed."""
        await self.overwrite(
            [
                seq
                for key_id in sorted(key_ids)
                async for seq, record in self._messages(key_id)
                if record is None or record.wrapped is not None
            ]
        )

    async def overwrite(self, seqs: Sequence[int]) -> None:
        js = self.nc.jetstream()
        with _nats_errors("delete from"):
            for start in range(0, len(seqs), AT_ONCE):
                part = seqs[start : start + AT_ONCE]
                await asyncio.gather(*(overwrite(js, KEYS_STREAM, seq) for seq in part))

    async def cut_raft_logs(self) -> None:
        """Makes the replicas truncate their Raft logs, which still contain the bytes of deleted messages. A replica
        truncates its log when the log is large, otherwise only after some idle minutes; so fillers make it large."""
        js, subject = self.nc.jetstream(), key_subject("filler")
        with _nats_errors("write to"):
            if (await js.stream_info(KEYS_STREAM)).config.num_replicas == 1:
                return
            for _ in range(FILLERS):
                await js.publish(subject, os.urandom(FILLER_BYTES))
            await js.purge_stream(KEYS_STREAM, subject=subject)

    async def _messages(self, key_id: str) -> AsyncIterator[tuple[int, KeyRecord | None]]:
        """Yields (sequence, record) of every message on the key's subject. record: None if turnlog did not write the
        message."""
        js, subject, seq = self.nc.jetstream(), key_subject(key_id), 0
        while True:
            with _nats_errors("read"):
                try:
                    message = await js.get_msg(KEYS_STREAM, seq=seq + 1, subject=subject, next=True)
                except NotFoundError as error:
                    if error.err_code != NO_MESSAGE:  # the stream itself is missing
                        raise
                    return
            seq = int(message.seq or 0)
            yield seq, self._record(message.data or b"", seq)

    def _outgoing(self, record: KeyRecord) -> Outgoing:
        key_id, tenant, user, kek_id = record.id, record.tenant, record.user, record.kek_id
        wrapped = record.wrapped
        if wrapped is None:
            wrapped, kek_id = self.keks.current.wrap(b"", key_id, tenant, user), self.keks.current.id
        body = {"key": key_id, "tenant": tenant, "user": user, "kek": kek_id, "wrapped": base64.b64encode(wrapped)}
        return Outgoing(uuid7(), tenant, key_id, key_subject(key_id), to_json(body), None)

    def _record(self, body: bytes, seq: int) -> KeyRecord | None:
        try:
            fields = from_json(body)
            key_id, tenant, user = (str(fields[name]) for name in ("key", "tenant", "user"))
            kek_id, wrapped = str(fields["kek"]), base64.b64decode(fields["wrapped"], validate=True)
            raw = self.keks.unwrap(wrapped, kek_id, key_id, tenant, user)
        except (ValueError, TypeError, KeyError, KeyUnavailable):
            return None
        return KeyRecord(key_id, tenant, user, wrapped if raw else None, kek_id, seq)


async def kek_in_use(nc: Client) -> str | None:
    """Returns the id of the key-encryption key that the keys on the stream need; None if the stream is missing or
    empty."""
    with _nats_errors("read"):
        try:
            info = await nc.jetstream().stream_info(KEYS_STREAM)
        except NotFoundError:
            return None
    return (info.config.metadata or {}).get(KEK_IN_USE) if info.state.messages else None


@contextlib.contextmanager
def _nats_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (NatsError, Refused, GapInLog, OSError, TimeoutError) as error:
        raise KeyUnavailable(
            f"cannot {what} the stream {KEYS_STREAM}, which holds users' keys: {cause(error)}. Nothing was stored; it "
            "can be tried again when NATS is back"
        ) from error


def new_record(keks: Keks, tenant: str, user: str) -> KeyRecord:
    """Returns a new key."""
    key_id = str(uuid7())
    return KeyRecord(
        key_id, tenant, user, keks.current.wrap(AESGCM.generate_key(256), key_id, tenant, user), keks.current.id
    )


def taking_over(records: Iterable[KeyRecord]) -> tuple[str, list[tuple[Any, ...]]]:
    """Returns a statement that puts keys of the stream into the table, and its values."""
    return _TAKE_OVER, [(*record, record.wrapped is None) for record in records]
