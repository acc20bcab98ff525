"""Builds all names of streams, subjects and durables. For security, subjects are built only here.

Producers publish on     turnlog.<tenant>.<thread>.<type>
the stream stores        turnlog.log.<partition>.<tenant>.<thread>.<type>   (transformed by the server)
token streams use        turnlog.progress.<tenant>.<thread>.<request>       (core NATS, never stored)
users' keys are on       turnlog.keys.<key id>                              (a separate stream)
processes are asked on   turnlog.processes   for metrics, traces and circuit breakers (core NATS)
they report on           turnlog.breakers    which breakers open and close, and failed calls (core NATS)
and on                   turnlog.answering   which model servers they want answers from (core NATS)
and on                   turnlog.turns       which conversations the next request may answer (core NATS)
workers stop answers on  turnlog.cancel.<tenant>.<thread>.<request>         (core NATS)
hot sessions are in      the bucket turnlog_sessions under <tenant>.<thread>
tickets are in           the buckets turnlog_tickets, turnlog_sign_in and turnlog_oauth_codes under their digests
issued receipts are in   the bucket turnlog_receipts under <tenant>.<user>.<id>
tenants' durables are    sub~<tenant>~<name> of subscribers and hook~<tenant>~<name> of webhooks
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from turnlog.events.errors import InvalidToken

STREAM = "TURNLOG"
PUBLISHED = "turnlog.*.*.*"
STORED_PREFIX = "turnlog.log"
PROGRESS_PREFIX = "turnlog.progress"
CANCEL_PREFIX = "turnlog.cancel"
SESSION_BUCKET = "turnlog_sessions"
TICKET_BUCKET = "turnlog_tickets"
SIGN_IN_BUCKET = "turnlog_sign_in"
OAUTH_BUCKET = "turnlog_oauth_codes"
RECEIPT_BUCKET = "turnlog_receipts"
KEYS_STREAM = "TURNLOG_KEYS"
KEYS = "turnlog.keys.*"
PROCESSES = "turnlog.processes"
ANSWERING = "turnlog.answering"
BREAKERS = "turnlog.breakers"
THREAD_TURNS = "turnlog.turns"
SUBSCRIBER = "sub"
WEBHOOK = "hook"
# The JetStream domain by which subscribers in separate accounts reach the API of their durable.
DOMAIN = "turnlog"
# The prefixes of turnlog's own threads. Conversations must not use them; otherwise deleting a conversation could delete
# a user's memories.
OWN_THREADS = ("memories/", "shadow/", "store/", "jobs/", "erasures/", "limits/", "access/", "agents/")
MEMORIES, SHADOW, STORE, JOBS, ERASURES, LIMITS, ACCESS, AGENTS = OWN_THREADS
REDACTIONS = ERASURES + "redactions"

# Events that only operators and turnlog itself may publish.
OPERATOR_TYPES = (
    *("limits_changed", "agent_configured", "agent_switched", "api_key_created", "api_key_revoked"),
    *(
        "job_ran",
        "thread_archived",
        "thread_restored",
        "user_erased",
        "event_redacted",
        "turn_redacted",
        "turns_expired",
    ),
)

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_ENCODED = re.compile(r"[~=A-Za-z0-9_-]{1,160}\Z")
MAX_ID_BYTES = 512
MAX_NAME_BYTES = MAX_ID_BYTES - 128
_OF_USERS = re.compile(r"(memories/|access/|shadow/[A-Za-z0-9_-]{1,64}/memories/)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StoredSubject:
    """The parts of a stored subject; `thread_token` is the encoded thread id."""

    partition: int
    tenant: str
    thread_token: str
    type: str


def check_tenant(tenant: str) -> str:
    """Returns the tenant if it is a safe subject token. Raises InvalidToken."""
    if not _TENANT.match(tenant):
        raise InvalidToken(f"tenant {tenant[:80]!r} is no valid name: use 1 to 64 of letters, digits, '_' and '-'")
    return tenant


def check_id(kind: str, value: str) -> str:
    """Returns the thread or user id if every store can hold it. Raises InvalidToken.

    Postgres index rows are limited to 2,704 bytes, so ids are limited to MAX_ID_BYTES of UTF-8.
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidToken(f"{kind} id contains a lone surrogate; send valid Unicode") from None
    if size == 0:
        raise InvalidToken(f"{kind} id is empty; give at least one character")
    if size > MAX_ID_BYTES:
        raise InvalidToken(
            f"{kind} id is {size} bytes of UTF-8, more than {MAX_ID_BYTES}; use a shorter id, such as a hash of it"
        )
    if "\x00" in value:
        raise InvalidToken(f"{kind} id contains a NUL character, which Postgres cannot store; remove it")
    return value


def check_conversation(thread: str) -> str:
    """Returns the id if it is valid for a conversation, that is, not one of turnlog's own threads. Raises
    InvalidToken."""
    if check_id("thread", thread).startswith(OWN_THREADS):
        raise InvalidToken(
            f"thread id {thread[:80]!r} cannot be a conversation's: names that begin with "
            f"{', '.join(OWN_THREADS[:-1])} or {OWN_THREADS[-1]} are turnlog's own; choose another"
        )
    return thread


def check_place(tenant: str, thread: str | None = None, user: str | None = None) -> None:
    """Checks each id that is not None. thread: the id of a conversation. Raises InvalidToken."""
    check_tenant(tenant)
    if thread is not None:
        check_conversation(thread)
    if user is not None:
        check_id("user", user)


@lru_cache(maxsize=16_384)
def thread_token(thread: str) -> str:
    """Returns the thread id as one subject token: the id itself if it is safe, else '~' + base64url, or '~~' + SHA-256.

    Different ids have different tokens, because plain tokens and base64url text never begin with '~'.
    """
    if _PLAIN.match(thread):
        return thread
    raw = check_id("thread", thread).encode()
    if len(raw) > 96:
        return "~~" + hashlib.sha256(raw).hexdigest()
    return "~" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@lru_cache(maxsize=4_096)
def publish_subject(tenant: str, thread: str, type_: str) -> str:
    return f"turnlog.{check_tenant(tenant)}.{thread_token(thread)}.{_type_token(type_)}"


def watch_subject(tenant: str, thread: str) -> str:
    """Returns the subject of events published on one thread, before they are stored; they may still be refused."""
    return f"turnlog.{check_tenant(tenant)}.{thread_token(thread)}.*"


def watch_type(tenant: str, type_: str) -> str:
    """Returns the subject of published events of one type on any thread of a tenant."""
    return f"turnlog.{check_tenant(tenant)}.*.{_type_token(type_)}"


def watch_type_anywhere(type_: str) -> str:
    """Returns the subject of published events of one type on any thread of any tenant."""
    return f"turnlog.*.*.{_type_token(type_)}"


def thread_filter(tenant: str, thread: str, type_: str | None = None) -> str:
    """Returns the filter for the stored events of one thread, in any partition. type_: only events of this type."""
    last = "*" if type_ is None else _type_token(type_)
    return f"{STORED_PREFIX}.*.{check_tenant(tenant)}.{thread_token(thread)}.{last}"


def thread_filters(tenant: str, thread: str, type_: str | None = None) -> list[str]:
    """Returns filters for the stored events of a thread and, if the thread has a former id, for the events under that
    id."""
    former = former_thread(thread)
    return [thread_filter(tenant, thread_id, type_) for thread_id in (thread, former) if thread_id is not None]


def tenant_filter(tenant: str) -> str:
    return f"{STORED_PREFIX}.*.{check_tenant(tenant)}.*.*"


def tenant_type_filter(tenant: str, type_: str) -> str:
    return f"{STORED_PREFIX}.*.{check_tenant(tenant)}.*.{_type_token(type_)}"


def partition_filter(partition: int) -> str:
    return f"{STORED_PREFIX}.{partition:d}.>"


def turns_filter(tenant: str, partition: int) -> str:
    """Returns the filter for stored turns of one partition, on any thread of a tenant."""
    return f"{STORED_PREFIX}.{partition:d}.{check_tenant(tenant)}.*.turn_recorded"


def type_filter(type_: str) -> str:
    """Returns the filter for stored events of one type on any thread of any tenant."""
    return f"{STORED_PREFIX}.*.*.*.{_type_token(type_)}"


def redactions_filter() -> str:
    """Returns the filter for the redactions of every tenant. Each tenant has one thread for them, so that the server
    need not search other threads."""
    return f"{STORED_PREFIX}.*.*.{thread_token(REDACTIONS)}.*"


def matches(subject: str, filter_: str) -> bool:
    """Returns whether a stored subject matches a filter with NATS wildcards."""
    tokens, wanted = subject.split("."), filter_.split(".")
    if wanted[-1] == ">":
        tokens, wanted = tokens[: len(wanted) - 1], wanted[:-1]
    return len(tokens) == len(wanted) and all(want in ("*", token) for token, want in zip(tokens, wanted, strict=True))


def stored_transform(partitions: int) -> tuple[str, str]:
    """Returns (source, destination) of the stream's subject transform; tenant and thread choose the partition."""
    destination = f"{STORED_PREFIX}.{{{{partition({partitions},1,2)}}}}"
    return PUBLISHED, destination + ".{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}"


def parse_stored(subject: str) -> StoredSubject:
    """Splits a stored subject into its parts. Raises InvalidToken for a subject that the transform cannot have made."""
    parts = subject.split(".")
    if len(parts) != 6 or not parts[2].isdigit():
        raise InvalidToken(f"subject {subject!r} does not belong to this stream")
    return StoredSubject(int(parts[2]), parts[3], parts[4], parts[5])


def progress_subject(tenant: str, thread: str, request: str) -> str:
    return f"{PROGRESS_PREFIX}.{check_tenant(tenant)}.{thread_token(thread)}.{_type_token(request)}"


def cancel_subject(tenant: str, thread: str, request: str) -> str:
    """Returns the subject on which a worker is asked to stop an answer; the worker confirms the request."""
    return f"{CANCEL_PREFIX}.{check_tenant(tenant)}.{thread_token(thread)}.{_type_token(request)}"


def memory_thread(user: str, shadow: str | None = None) -> str:
    """Returns the thread of a user's memory events. shadow: the name of a trial derivation, whose memories, made by
    another extractor, are on a thread of their own."""
    name = _name_of(user)
    return MEMORIES + name if shadow is None else shadow_prefix(shadow) + MEMORIES + name


def access_thread(user: str) -> str:
    """Returns the thread of a user's API keys."""
    return ACCESS + _name_of(user)


def _name_of(user: str) -> str:
    """Returns the user's part of a thread id: the user id or, if it is longer than MAX_NAME_BYTES, its hash, padded to
    be longer than any id that is used unchanged."""
    raw = check_id("user", user).encode()
    return user if len(raw) <= MAX_NAME_BYTES else _hash(raw).rjust(MAX_NAME_BYTES + 1, "~")


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def present_thread(thread: str, user: str | None) -> str:
    """Returns the current thread id of a user's event. Threads of long user ids were once named by the bare hash, which
    could also be another user's id."""
    if user is None or len(user) <= MAX_NAME_BYTES // 4 or len(raw := user.encode()) <= MAX_NAME_BYTES:
        return thread
    match = _OF_USERS.fullmatch(thread)
    return match[1] + _name_of(user) if match is not None and match[2] == _hash(raw) else thread


def former_thread(thread: str) -> str | None:
    """Returns the former id under which events of this thread may be stored (see present_thread); None for most
    threads."""
    match = _OF_USERS.fullmatch(thread)
    return match[1] + match[2].lstrip("~") if match is not None and len(match[2].encode()) > MAX_NAME_BYTES else None


def is_memory_thread(thread: str, user: str) -> bool:
    """Returns whether a thread contains the user's memories; False for the user "", which read models store if there is
    no user."""
    return bool(user) and thread == memory_thread(user)


def shadow_prefix(shadow: str) -> str:
    """Returns the prefix of all memory threads of a trial derivation."""
    return f"{SHADOW}{check_tenant(shadow)}/"


def subscriber_durable(tenant: str, name: str) -> str:
    """Returns the durable of a tenant's subscriber, which is also the name of its NATS user and account. Raises
    InvalidToken."""
    if not _TENANT.match(name):
        raise InvalidToken(f"subscriber {name[:80]!r} is no valid name: use 1 to 64 of letters, digits, '_' and '-'")
    return f"{SUBSCRIBER}~{check_tenant(tenant)}~{name}"


def subscriber_of(durable: str) -> tuple[str, str] | None:
    """Returns (tenant, name), or None if the durable is not a tenant's subscriber. Neither part contains '~'."""
    parts = durable.split("~")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == SUBSCRIBER else None


def webhook_durable(tenant: str, name: str) -> str:
    """Returns the durable of a tenant's webhook. Raises InvalidToken."""
    if not _TENANT.match(name):
        raise InvalidToken(f"webhook {name[:80]!r} is no valid name: use 1 to 64 of letters, digits, '_' and '-'")
    return f"{WEBHOOK}~{check_tenant(tenant)}~{name}"


def webhook_of(durable: str) -> tuple[str, str] | None:
    """Returns (tenant, name), or None if the durable is not a webhook's."""
    parts = durable.split("~")
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == WEBHOOK else None


def subscriber_services(durable: str) -> list[tuple[str, str]]:
    """Returns all subjects that a subscriber may send to: (the name in turnlog's account, the name in the subscriber's
    account).

    Events are published on subjects of four tokens; `turnlog.<tenant>.>` would let a tenant named `keys` write users'
    keys.
    """
    subscriber = subscriber_of(durable)
    assert subscriber is not None
    api = [f"CONSUMER.{what}.{STREAM}.{durable}" for what in ("INFO", "MSG.NEXT")]
    same = [f"$JS.ACK.{STREAM}.{durable}.>", f"turnlog.{subscriber[0]}.*.*"]
    renamed = [(f"$JS.API.{request}", f"$JS.{DOMAIN}.API.{request}") for request in api]
    return renamed + [(subject, subject) for subject in same]


def operator_subjects(durable: str) -> list[str]:
    """Returns the subjects that a subscriber must not publish on, because only operators and turnlog itself may publish
    these events."""
    subscriber = subscriber_of(durable)
    assert subscriber is not None
    return [f"turnlog.{subscriber[0]}.*.{type_}" for type_ in OPERATOR_TYPES]


def key_subject(key_id: str) -> str:
    """Returns the subject of the states of one user's key. It has three tokens; the log's subjects have four."""
    return KEYS.replace("*", _type_token(key_id))


def session_key(tenant: str, thread: str) -> str:
    """Returns the session's key in SESSION_BUCKET."""
    return session_key_of(tenant, thread_token(thread))


def session_key_of(tenant: str, token: str) -> str:
    """Returns the session's key for a thread token. Keys may contain '=' but not '~', so '=' replaces '~'."""
    return f"{check_tenant(tenant)}.{token.replace('~', '=')}"


def receipt_key(tenant: str, user: str, id_: str) -> str:
    """Returns the key of a user's receipt in RECEIPT_BUCKET."""
    return f"{session_key_of(tenant, thread_token(user))}.{id_}"


def _type_token(value: str) -> str:
    if not _ENCODED.match(value):
        raise InvalidToken(f"{value[:80]!r} is no valid subject token")
    return value
