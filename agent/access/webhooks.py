"""Manages webhooks, which send a tenant's events to a URL, signed according to standard-webhooks 1.0.

The durable in JetStream is the record of a webhook; its secret derives from TURNLOG_API_SECRET and a salt in that
record, so the secret is not stored. An event that could not be delivered in ATTEMPTS attempts becomes a failure, which
can be sent again or dropped.
"""

import asyncio
import base64
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, LiteralString
from uuid import UUID

import httpx2
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from turnlog.agent.access.secret import secret_of
from turnlog.agent.models.openai_http import tls_context
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import InvalidSetting, Settings
from turnlog.events.codec import parsed, unsealed
from turnlog.events.errors import InvalidEvent, NotFound, TurnlogError
from turnlog.events.log import nats_errors
from turnlog.events.redactions import replacement
from turnlog.events.sealing import key_ids_in
from turnlog.events.stored import Stored
from turnlog.events.subjects import STREAM, check_tenant, parse_stored, tenant_type_filter, webhook_durable, webhook_of

logger = logging.getLogger("turnlog.agent")
RECORD = "turnlog_webhook"
_UNICAST, _6TO4 = ip_network("2000::/3"), ip_network("2002::/16")
TYPES = ("turn_recorded", "memory_recorded", "memory_forgotten", "thread_deleted", "user_erased")
REDACTED = "event_redacted"  # the type of an event that replaces an earlier one, which may not have been sent yet
TIMEOUT_S = 15.0
# Seconds until the next attempt. After the last attempt, a day and a half after the first, the event is a failure.
BACK_OFF_S = (5, 30, 120, 600, 3_600, 14_400, 43_200, 64_800)
ATTEMPTS = len(BACK_OFF_S) + 1
TABLE = """
CREATE SCHEMA IF NOT EXISTS turnlog_webhooks;
CREATE TABLE IF NOT EXISTS turnlog_webhooks.failures (
  tenant text NOT NULL, webhook text NOT NULL, seq bigint NOT NULL, error text NOT NULL, failed_at timestamptz NOT NULL
  DEFAULT now(), PRIMARY KEY (tenant, webhook, seq))"""


class WebhookExists(TurnlogError):
    """The tenant already has a webhook of this name."""

    code = "webhook-exists"


class RefusedTarget(TurnlogError):
    """turnlog may not send to this URL."""

    code = "refused-target"


class NotDelivered(Exception):
    """The target did not accept an event; the message contains no words of the event or of the response."""


class CannotBeSent(NotDelivered):
    """The event is malformed, so that another attempt is useless."""


@dataclass(frozen=True, slots=True)
class _About:
    """Settings of a webhook. types: the types of events to send. content: whether to send users' words, which are
    encrypted in the log."""

    name: str
    url: str
    types: tuple[str, ...]
    content: bool


@dataclass(frozen=True, slots=True)
class Webhook(_About):
    """A webhook as stored in its durable. salt: from which its secret is derived."""

    salt: str


@dataclass(frozen=True, slots=True)
class NewWebhook(_About):
    """A new webhook. secret: for verifying signatures; it is shown only once."""

    secret: str


@dataclass(frozen=True, slots=True)
class WebhookInfo(_About):
    """A webhook and its unsent events. pending: how many were not sent yet. retrying: how many wait for their next
    attempt. failures: how many were given up and need a person's decision."""

    pending: int
    retrying: int
    failures: int


@dataclass(frozen=True, slots=True)
class Failure:
    webhook: str
    seq: int
    error: str
    failed_at: datetime


async def create_webhook(
    runtime: Runtime, tenant: str, name: str, url: str, types: Sequence[str] = TYPES, content: bool = False
) -> NewWebhook:
    """Creates a webhook for the tenant's future events. Raises InvalidToken, WebhookExists, RefusedTarget,
    InvalidSetting, LogUnavailable."""
    durable = webhook_durable(tenant, name)
    await pinned(runtime.settings, url)
    if await _durable(runtime, durable) is not None:
        raise WebhookExists(f"there is a webhook {name!r} already; remove it first, or choose another name")
    hook = Webhook(name, url, tuple(dict.fromkeys(types)), content, secrets.token_urlsafe(16))
    config = ConsumerConfig(
        durable_name=durable,
        filter_subjects=[tenant_type_filter(tenant, type_) for type_ in dict.fromkeys((*hook.types, REDACTED))],
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.NEW,
        ack_wait=4 * TIMEOUT_S,
        max_deliver=-1,
        metadata={RECORD: json.dumps(asdict(hook))},
    )
    with nats_errors(f"NATS did not make the durable {durable}"):
        await runtime.log.nc.jetstream().add_consumer(STREAM, config)
    return NewWebhook(name, url, hook.types, content, secret_text(runtime.settings, tenant, hook))


async def list_webhooks(runtime: Runtime, tenant: str) -> list[WebhookInfo]:
    """Returns the tenant's webhooks, by name. Raises InvalidToken, LogUnavailable."""
    check_tenant(tenant)
    query = "SELECT webhook, count(*) FROM turnlog_webhooks.failures WHERE tenant = %s GROUP BY 1"
    counts = dict(await _rows(runtime, query, (tenant,)))
    infos = [
        WebhookInfo(
            *(hook.name, hook.url, hook.types, hook.content),
            *(info.num_pending or 0, info.num_ack_pending or 0, counts.get(hook.name, 0)),
        )
        for owner, hook, info in await all_webhooks(runtime)
        if owner == tenant
    ]
    return sorted(infos, key=lambda webhook: webhook.name)


async def remove_webhook(runtime: Runtime, tenant: str, name: str) -> str:
    """Removes a webhook and its failures; returns its name. Raises InvalidToken, NotFound, LogUnavailable."""
    durable = webhook_durable(tenant, name)
    with nats_errors(f"NATS did not remove the durable {durable}"):
        try:
            await runtime.log.nc.jetstream().delete_consumer(STREAM, durable)
        except NotFoundError:
            raise _unknown(name) from None
    await _rows(runtime, "DELETE FROM turnlog_webhooks.failures WHERE tenant = %s AND webhook = %s", (tenant, name))
    return name


async def list_failures(runtime: Runtime, tenant: str, name: str | None = None) -> list[Failure]:
    """Returns at most 1,000 events that were given up, in the order of the log."""
    query = (
        "SELECT webhook, seq, error, failed_at FROM turnlog_webhooks.failures WHERE tenant = %s "
        "AND coalesce(webhook = %s, true) ORDER BY seq, webhook LIMIT 1000"
    )
    return [Failure(*row) for row in await _rows(runtime, query, (check_tenant(tenant), name))]


async def retry_failure(runtime: Runtime, tenant: str, name: str, seq: int) -> bool:
    """Sends a given-up event again now; returns whether the target accepted it. Raises InvalidToken, NotFound,
    LogUnavailable, KeyUnavailable."""
    info = await _durable(runtime, webhook_durable(tenant, name))
    if info is None:
        raise _unknown(name)
    query = "SELECT 1 FROM turnlog_webhooks.failures WHERE tenant = %s AND webhook = %s AND seq = %s"
    if not await _rows(runtime, query, (tenant, name, seq)):
        raise _no_failure(name, seq)
    try:
        await deliver(runtime, tenant, _record(info), await runtime.log.stored(seq))
    except NotDelivered as error:
        await give_up(runtime, tenant, name, seq, str(error))
        return False
    await _forget(runtime, tenant, name, seq)
    return True


async def drop_failure(runtime: Runtime, tenant: str, name: str, seq: int) -> None:
    """Forgets a given-up event, which is never sent. Raises NotFound."""
    if not await _forget(runtime, tenant, name, seq):
        raise _no_failure(name, seq)


async def give_up(runtime: Runtime, tenant: str, name: str, seq: int, error: str) -> None:
    await _rows(
        runtime,
        "INSERT INTO turnlog_webhooks.failures (tenant, webhook, seq, error) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (tenant, webhook, seq) DO UPDATE SET error = excluded.error, failed_at = now()",
        (tenant, name, seq, error),
    )


async def deliver(runtime: Runtime, tenant: str, hook: Webhook, stored: Stored) -> None:
    """Sends one event. Its webhook-id is the event's id, so that a receiver recognises repetitions. For a redaction, it
    sends the redacted event, if its type is one to send. Raises NotDelivered, KeyUnavailable, InvalidSetting."""
    if parse_stored(stored.subject).type == REDACTED and REDACTED not in hook.types:
        replacing = replacement(stored.seq, stored.subject, stored.body, runtime.log.signer)
        if replacing is None or parse_stored(replacing.subject).type not in hook.types:
            return
        if stored.keyring is not None:
            await stored.keyring.prefetch(key_ids_in([replacing.body]))
        stored = replace(stored, seq=replacing.seq, subject=replacing.subject, body=replacing.body)
    content, event_id = _body(hook, stored)
    at = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "turnlog-webhook",
        "webhook-id": event_id,
        "webhook-timestamp": at,
        "webhook-signature": signature(secret_bytes(runtime.settings, tenant, hook), event_id, at, content),
    }
    try:
        async with asyncio.timeout(TIMEOUT_S):
            target, url = await pinned(runtime.settings, hook.url), httpx2.URL(hook.url)
            headers["Host"], more = url.netloc.decode(), {"sni_hostname": url.raw_host.decode()}
            async with httpx2.AsyncClient(verify=tls_context(), timeout=TIMEOUT_S, trust_env=False) as http:
                request = http.build_request("POST", target, content=content, headers=headers, extensions=more)
                response = await http.send(request, stream=True)
                await response.aclose()
    except RefusedTarget as error:
        raise NotDelivered(str(error)) from None
    except (httpx2.HTTPError, TimeoutError) as error:
        raise NotDelivered(type(error).__name__) from None
    if not response.is_success:
        raise NotDelivered(f"the target answered {response.status_code}")


def _body(hook: Webhook, stored: Stored) -> tuple[bytes, str]:
    """Returns {type, timestamp, seq, data: the event} and the event's id. Without `content`, the event contains no
    words. Raises CannotBeSent."""
    try:
        event = parsed(stored.body)
        if hook.content and "sealed" in event:
            event = unsealed(event, stored.keyring)
        shown = {name: value for name, value in event.items() if name not in ("sealed", "sealedkey")}
        sent = {"type": str(event.get("type")), "timestamp": event.get("time"), "seq": stored.seq, "data": shown}
        return json.dumps(sent, ensure_ascii=False).encode(), str(UUID(str(event.get("id"))))
    except (InvalidEvent, ValueError):
        raise CannotBeSent("the event cannot be read") from None


def signature(key: bytes, event_id: str, at: str, body: bytes) -> str:
    """Returns the value of the header webhook-signature: version 1, HMAC-SHA256 of id, timestamp and body."""
    made = hmac.digest(key, f"{event_id}.{at}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(made).decode()}"


def secret_bytes(settings: Settings, tenant: str, hook: Webhook) -> bytes:
    seed = repr(("webhook", tenant, hook.name, hook.salt)).encode()
    return hmac.digest(secret_of(settings).pepper, seed, "sha256")


def secret_text(settings: Settings, tenant: str, hook: Webhook) -> str:
    return "whsec_" + base64.b64encode(secret_bytes(settings, tenant, hook)).decode()


async def pinned(settings: Settings, url: str) -> httpx2.URL:
    """Returns the URL with the checked address in place of the host name, so that a later DNS answer cannot change the
    target. All of the host's addresses must be allowed. Raises RefusedTarget, InvalidSetting.

    Public addresses are allowed with https; other addresses, and http, only in TURNLOG_WEBHOOK_NETWORKS.
    """
    try:
        networks = [ip_network(text.strip()) for text in (settings.webhook_networks or "").split(",") if text.strip()]
    except ValueError as error:
        raise InvalidSetting(f"TURNLOG_WEBHOOK_NETWORKS: {error}") from None
    try:
        target = httpx2.URL(url)
        if target.scheme not in ("https", "http") or not target.raw_host or target.userinfo:
            raise RefusedTarget("give a URL with https and a host, and no user or password in it")
        host, port = target.raw_host.decode(), target.port or 443
        records = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError, httpx2.InvalidURL) as error:
        raise RefusedTarget(f"the host of the URL cannot be found ({type(error).__name__})") from None
    resolved = list(dict.fromkeys(str(record[4][0]).partition("%")[0] for record in records))
    for address in map(ip_address, resolved):
        is_allowed = any(address in network for network in networks if network.version == address.version)
        if not is_allowed and not (target.scheme == "https" and _is_public(address)):
            raise RefusedTarget(
                f"{host} is {address}: turnlog sends to public addresses by https, and to others only if "
                "TURNLOG_WEBHOOK_NETWORKS has their network"
            )
    return target.copy_with(host=resolved[0])


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Returns whether the address leads only to the public internet. IPv6 has forms that contain private IPv4
    addresses: NAT64 (RFC 6052), 6to4 (RFC 3056) and others."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    is_direct = address.version == 4 or (address in _UNICAST and address not in _6TO4)
    return is_direct and address.is_global and not address.is_multicast


async def all_webhooks(runtime: Runtime) -> list[tuple[str, Webhook, ConsumerInfo]]:
    """Returns the webhooks of all tenants, each with its tenant and durable. Raises LogUnavailable."""
    infos: list[ConsumerInfo] = []
    with nats_errors("cannot ask NATS for its durables"):
        while page := await runtime.log.nc.jetstream().consumers_info(STREAM, len(infos)):
            infos += page
    hooks = [(webhook_of(info.name), info) for info in infos if RECORD in (info.config.metadata or {})]
    return [(hook[0], _record(info), info) for hook, info in hooks if hook is not None]


def _record(info: ConsumerInfo) -> Webhook:
    kept = json.loads((info.config.metadata or {})[RECORD])
    return Webhook(**{**kept, "types": tuple(kept["types"])})


async def _durable(runtime: Runtime, durable: str) -> ConsumerInfo | None:
    with nats_errors(f"cannot ask NATS for the durable {durable}"):
        try:
            info: ConsumerInfo = await runtime.log.nc.jetstream().consumer_info(STREAM, durable)
            return info
        except NotFoundError:
            return None


async def _forget(runtime: Runtime, tenant: str, name: str, seq: int) -> bool:
    """Forgets a failure; returns whether it existed."""
    query = "DELETE FROM turnlog_webhooks.failures WHERE tenant = %s AND webhook = %s AND seq = %s RETURNING seq"
    return bool(await _rows(runtime, query, (tenant, name, seq)))


async def _rows(runtime: Runtime, statement: LiteralString, values: Sequence[object]) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement on the failures; their table is created at first use."""
    async with runtime.pool.connection() as conn, conn.transaction():
        row = await (await conn.execute("SELECT to_regclass('turnlog_webhooks.failures')")).fetchone()
        if row == (None,):
            await conn.execute("SELECT pg_advisory_xact_lock(hashtext('turnlog_webhooks'))")
            await conn.execute(TABLE)
        cursor = await conn.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []


def _no_failure(name: str, seq: int) -> NotFound:
    return NotFound(f"webhook {name!r} has no failure at sequence {seq}; `turnlog webhooks failures` lists them")


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no webhook {name!r}; `turnlog webhooks list` shows them")
