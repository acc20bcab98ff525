"""Exports a person's data as one document, clears parts of the data, erases all of it with a receipt, and exports
masked transcripts."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.agent.conversations.archive.restoring import restored_of_user
from turnlog.agent.conversations.threads import get_thread
from turnlog.agent.conversations.transcript import costs_of, transcript
from turnlog.agent.memory.entities import clear_entities, list_entities
from turnlog.agent.memory.memory_changes import forget_all
from turnlog.agent.memory.sanitiser.sanitise import SanitiseLevel, sanitise_json
from turnlog.agent.privacy.erasure import erase, rows
from turnlog.agent.privacy.erasure.erasure_plan import ErasureReach, ErasureScope, Plan, planned
from turnlog.agent.privacy.erasure.erasure_receipt import Receipt
from turnlog.agent.privacy.erasure.event_scan import person_of
from turnlog.agent.privacy.export import clean_messages, user_export
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, ThreadDeleted
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.progress import OnProgress, no_progress
from turnlog.events.subjects import OWN_THREADS, SHADOW, memory_thread
from turnlog.projectors.models.conversation.message import Cost, Message
from turnlog.projectors.models.memories.lookup import unforgotten

_ALL = 2**62


_STORED = """
SELECT (SELECT count(*) FROM thread_activity t WHERE t.tenant = %(tenant)s AND t.user_id = %(user)s),
  (SELECT count(*) FROM memories m WHERE m.tenant = %(tenant)s AND m.user_id = %(user)s
    AND m.thread_id = %(thread)s AND m.status <> 'forgotten'),
  (SELECT count(*) FROM entities e WHERE e.tenant = %(tenant)s AND e.user_id = %(user)s),
  (SELECT count(*) FROM agent_runs r WHERE r.tenant = %(tenant)s AND r.user_id = %(user)s),
  (SELECT count(*) FROM user_preferences p, jsonb_object_keys(p.preferences) WHERE p.tenant = %(tenant)s
    AND p.user_id = %(user)s),
  u.tokens_in, u.tokens_out FROM (SELECT coalesce(sum(tokens_in), 0)::bigint AS tokens_in,
    coalesce(sum(tokens_out), 0)::bigint AS tokens_out FROM usage WHERE tenant = %(tenant)s AND user_id = %(user)s) u"""


@dataclass(frozen=True, slots=True)
class StoredOfPerson:
    """Counts of a user's stored data. memories: including ended ones. tokens_in, tokens_out: of model calls for the
    user."""

    conversations: int
    memories: int
    entities: int
    runs: int
    preferences: int
    tokens_in: int
    tokens_out: int


async def stored_of_person(runtime: Runtime, tenant: str, user: str) -> StoredOfPerson:
    """Returns counts of a user's stored data; zeros for an unknown user. Raises InvalidToken."""
    person_of(tenant, user)
    values = {"tenant": tenant, "user": user, "thread": memory_thread(user)}
    async with runtime.reading("memories", "entities", "thread_activity", "agent_runs", "usage") as conn:
        row = await (await conn.execute(_STORED, values)).fetchone()
    assert row is not None
    return StoredOfPerson(*row)


async def export_person(
    runtime: Runtime,
    tenant: str,
    user: str,
    level: SanitiseLevel | None = SanitiseLevel.MODERATE,
    on_progress: OnProgress = no_progress,
) -> AsyncGenerator[str]:
    """Yields everything stored about a user: one JSON document, in pieces of text. At most one conversation is in
    memory. level: which parts are masked; None masks nothing.

    Restores archived conversations of the user first. Raises InvalidToken, LogUnavailable, GapInLog,
    KeyUnavailable, NotProjectedInTime.
    """
    person, regions = person_of(tenant, user), runtime.settings.phone_regions.split(",")
    async with runtime.reading() as conn:
        await restored_of_user(runtime, conn, tenant, user)
        async for piece in user_export(conn, runtime.log, person, level, regions, on_progress):
            yield piece


async def plan_erasure(
    runtime: Runtime,
    tenant: str,
    user: str,
    reach: ErasureReach,
    namespaces: Iterable[str] = (),
    strings: Sequence[str] = (),
) -> Plan:
    """Returns the plan of a person's erasure; changes nothing. namespaces: further namespaces of LangGraph's store that
    belong to the person, as labels joined by dots. strings: strings to search for afterwards, in addition to the
    person's own words.

    Raises InvalidToken, StringsTooShort, LogUnavailable, NotProjectedInTime, and NotFound if nothing is stored about
    the person. It does not raise NotFound if the person was erased before and there are strings to search for.
    """
    plan = await planned(ErasureScope(runtime, reach), person_of(tenant, user, namespaces), strings)
    if plan.is_empty and not (plan.last and strings):
        raise NotFound(f"there is nothing of user {user!r} in tenant {tenant!r}{_known(plan)}")
    return plan


def _known(plan: Plan) -> str:
    if plan.last is None or not plan.found_before:
        return ""
    where = ", ".join(plan.found_before)
    return (
        f"; the erasure at sequence {plan.last.seq} found their words in: {where}. `--strings FILE` with the words "
        "searches for them again"
    )


async def erase_person(
    runtime: Runtime, plan: Plan, reach: ErasureReach, reason: str | None = None, full: bool = False
) -> Receipt:
    """Destroys the person's keys, removes the person's data from read models, caches and archives, and overwrites
    readable events in the log. Then it searches for remains and reports them in Receipt.hits. reason: stored in the
    receipt. full: use VACUUM FULL, which locks each table.

    An erasure cannot be undone; one that was killed can be run again. Raises LogUnavailable, DatabaseUnavailable,
    NotProjectedInTime.
    """
    return await erase.erase(ErasureScope(runtime, reach), plan, reason, full)


class NothingNamed(TurnlogError):
    """The request to clear a person's data does not say which parts."""

    code = "nothing-named"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a person's data to clear."""

    memories: bool = False
    conversations: bool = False
    entities: bool = False


@dataclass(frozen=True, slots=True)
class Clearing:
    """Counts of data to clear, or of data that was cleared. memories: those that were not forgotten, including ended
    ones. kept: conversations that stay because other people speak in them."""

    user: str
    memories: int
    conversations: tuple[str, ...]
    entities: int
    kept: tuple[str, ...]


async def plan_clearing(runtime: Runtime, tenant: str, user: str, parts: Parts) -> Clearing:
    """Returns counts of the data that `clear_person` would remove; changes nothing. Raises NothingNamed,
    InvalidToken."""
    if parts == Parts():
        raise NothingNamed("say what to clear: memories, conversations, entities, or several of them")
    person = person_of(tenant, user)
    async with runtime.reading() as conn:
        memories = await unforgotten(conn, tenant, memory_thread(user), _ALL) if parts.memories else []
        known = await rows.known_threads(conn, person) if parts.conversations else set()
        talks = sorted(thread for thread in known if not thread.startswith(OWN_THREADS))
        shared = await rows.threads_with_others(conn, person, talks) if talks else set()
    entities = await list_entities(runtime, tenant, user, limit=_ALL) if parts.entities else []
    own = tuple(thread for thread in talks if thread not in shared)
    return Clearing(user, len(memories), own, len(entities), tuple(sorted(shared)))


async def clear_person(runtime: Runtime, tenant: str, user: str, parts: Parts) -> Clearing:
    """Removes these parts of a person's data from every read model, and returns their counts.

    The events stay in the log and can still be decrypted; only `erase_person` makes them unreadable. Memories are
    forgotten, and trial derivations of them are deleted. Conversations are deleted. Repeating the call changes nothing.
    Raises NothingNamed, InvalidToken, LogUnavailable, NotProjectedInTime.
    """
    plan = await plan_clearing(runtime, tenant, user, parts)
    gone = list(plan.conversations)
    if parts.memories:
        async with runtime.pool.connection() as conn:
            known = await rows.known_threads(conn, person_of(tenant, user))
        gone += sorted(thread for thread in known if thread.startswith(SHADOW))
    about = {"source": "turnlog/clear", "tenant": tenant, "user": user}
    if gone:
        await runtime.log.append_many([Event(thread=thread, data=ThreadDeleted(), **about) for thread in gone])
    memories = await forget_all(runtime, tenant, user) if parts.memories else 0
    entities = await clear_entities(runtime, tenant, user) if parts.entities else 0
    await runtime.wait_until_projected()
    return Clearing(user, memories, plan.conversations, entities, plan.kept)


@dataclass(frozen=True, slots=True)
class ExportedThread:
    """A thread in an export. turns: the turns, oldest first. costs: sequence of a turn → its tokens and latency."""

    label: str | None
    turns: list[Message]
    costs: dict[int, Cost]


async def export_thread(
    runtime: Runtime, tenant: str, thread: str, level: SanitiseLevel | None = SanitiseLevel.MODERATE
) -> ExportedThread:
    """Returns a thread for an export. level: the level of masking; None masks nothing. Raises NotFound,
    InvalidToken."""
    page = await transcript(runtime, tenant, thread, limit=_ALL)
    label = (await get_thread(runtime, tenant, thread)).label
    turns = clean_messages(page.turns, level, runtime.settings.phone_regions.split(","))
    costs = await costs_of(runtime, tenant, thread, turns)
    return ExportedThread(label if level is None else masked(runtime, label, level), turns, costs)


@dataclass(frozen=True, slots=True)
class OwnWords:
    """A user's part of a thread. shared: others speak in the thread too. turns: oldest first; in a shared thread, only
    the user's own turns and the answers to them."""

    turns: list[Message]
    shared: bool


async def own_words(runtime: Runtime, tenant: str, thread: str, user: str) -> OwnWords:
    """Returns the turns of a thread that belong to the user. Raises NotFound, InvalidToken."""
    turns = (await transcript(runtime, tenant, thread, limit=_ALL)).turns
    if all(turn.user in (None, user) for turn in turns):
        return OwnWords(turns, False)
    return OwnWords([turn for turn in turns if turn.user == user], True)


def masked(runtime: Runtime, document: Any, level: SanitiseLevel) -> Any:
    """Returns a JSON value with the personal data in its texts masked."""
    return sanitise_json(document, level, runtime.settings.phone_regions.split(","))
