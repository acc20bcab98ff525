"""Runs another extractor over recorded history: its memories go to a shadow, which is compared with the present ones,
then promoted or dropped.

The shadow is a separate memory thread, written by the same code and projected by the same projector, so that it shows
what would be remembered after all conflicts are decided. A model call that was made before is answered from the
cache; a rebuild of the read models makes no model calls.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from uuid_utils.compat import uuid7

from turnlog.agent.conversations.archive.restoring import restored_of_user
from turnlog.agent.memory.deciding.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.memory.extraction.evidence import roles
from turnlog.agent.memory.extraction.extraction_run import extraction_of, locked
from turnlog.agent.memory.extraction.rederive import Difference, difference, replacement_events
from turnlog.agent.memory.extraction.stages import UserConversation
from turnlog.agent.models.factory import make_models
from turnlog.agent.retry_later import at_once
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.append import MAX_BATCH
from turnlog.events.contracts import Event, MemoriesExtracted, ThreadDeleted, UsageMetered
from turnlog.events.errors import InvalidToken, NotFound
from turnlog.events.progress import OnProgress
from turnlog.events.subjects import check_id, check_tenant, memory_thread
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.extraction_lookup import conversations_of
from turnlog.projectors.models.memories.lookup import is_memory_off
from turnlog.projectors.models.memories.shadows import (
    all_memories,
    extractors,
    looked_at,
    shadow_users,
    shadows,
    users_who_spoke,
)

READS = ("messages", "memories", "thread_activity")
RUN_DIGITS = 8
_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}\Z")


@dataclass(frozen=True, slots=True)
class OtherExtractor:
    """The extractor of a trial derivation. A field that is None stands for the value in the settings
    (MEMORY_RULES_FILE, TURNLOG_MODEL, MEMORY_EXTRACT_PROMPT_FILE)."""

    rules: Path | None = None
    model: str | None = None
    prompt: Path | None = None

    def of(self, settings: Settings) -> Settings:
        changes = {"rules_file": self.rules, "model": self.model, "extract_prompt_file": self.prompt}
        return settings.model_copy(update={key: value for key, value in changes.items() if value is not None})


AS_SET = OtherExtractor()


@dataclass(frozen=True, slots=True)
class Shadow:
    """A trial derivation. shadow: its name. users: how many users it has."""

    shadow: str
    users: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a shadow's model calls."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    user: str
    found: Difference
    cost: Cost


async def derive(
    runtime: Runtime,
    tenant: str,
    shadow: str,
    users: Sequence[str],
    on_progress: OnProgress,
    extractor: OtherExtractor = AS_SET,
) -> int:
    """Runs the extractor over the users' turns; returns the number of conversations.

    users: an empty sequence means all users of the tenant. Archived conversations of these users are restored. An
    interrupted run is continued. Raises ModelError, NotNow, InvalidRules, InvalidPrompt, InvalidToken, NotFound if
    there is no turn to extract from.
    """
    check_tenant(tenant)
    for user in users:
        check_id("user", user)
    runtime = replace(runtime, settings=extractor.of(runtime.settings))
    models = make_models(runtime.settings)
    try:
        async with runtime.reading(*READS) as conn:
            run = await _run_of(conn, tenant, shadow) or _new_run(shadow)
            extraction = extraction_of(runtime, models, run)
            for user in users:
                await restored_of_user(runtime, conn, tenant, user)
            if not users:
                await restored_of_user(runtime, conn, tenant, None)
            conversations = await _conversations(conn, tenant, users, roles(runtime.settings.extract_tool_results))
            if not conversations:
                raise NotFound("no turn has a user who may be remembered; `turnlog threads` lists them")
            for number, conversation in enumerate(conversations):
                on_progress(number, len(conversations))
                with at_once():
                    async with locked(conn, conversation, run):
                        await extraction.by_rules(conn, conversation, finish=True)
                        await extraction.by_model(conn, conversation, flush=True)
        on_progress(len(conversations), len(conversations))
    finally:
        await models.close()
    return len(conversations)


async def compare(runtime: Runtime, tenant: str, shadow: str) -> list[Compared]:
    """Returns the differences between the shadow and the present memories for each of its users. Raises InvalidToken,
    NotFound."""
    check_tenant(tenant)
    async with runtime.reading(*READS) as conn:
        run, users = await _the_run(conn, tenant, shadow)
        differences = [(user, await _difference(conn, Place(tenant, user, run))) for user in users]
    return [Compared(user, changes, await _cost(runtime, Place(tenant, user, run))) for user, changes in differences]


async def promote(runtime: Runtime, tenant: str, shadow: str, on_progress: OnProgress) -> list[Compared]:
    """Replaces the users' memories with those of the shadow, one user after the other, then drops the shadow; returns
    the differences.

    If it was interrupted, another call does the rest. Raises InvalidToken, NotFound.
    """
    compared = await compare(runtime, tenant, shadow)
    async with runtime.pool.connection() as conn:
        run, _ = await _the_run(conn, tenant, shadow)
    writer = MemoryWriter(runtime.log, runtime.pool)
    for number, comparison in enumerate(compared):
        on_progress(number, len(compared))
        await _take_over(writer, Place(tenant, comparison.user, run))
    await drop(runtime, tenant, shadow)
    return compared


async def drop(runtime: Runtime, tenant: str, shadow: str) -> int:
    """Removes the shadow; returns how many users it had. Raises NotFound."""
    async with runtime.reading(*READS) as conn:
        run, users = await _the_run(conn, tenant, shadow)
    about = {"tenant": tenant, "time": datetime.now(UTC), "source": "turnlog/rederive", "data": ThreadDeleted()}
    await runtime.log.append_many([Event(thread=Place(tenant, user, run).thread, user=user, **about) for user in users])
    await runtime.wait_until_projected(names=READS)
    return len(users)


async def _take_over(writer: MemoryWriter, shadow: Place) -> None:
    """Writes the new memories in batches, because the size of an append is limited. Memories that are written already
    are not part of the next difference."""
    now, place = datetime.now(UTC), Place(shadow.tenant, shadow.user)

    async def decide(rows: Rows) -> Decided[int]:
        changes = await _difference(rows.conn, shadow)
        real = await all_memories(rows.conn, place.tenant, place.thread)
        events = replacement_events(changes, real, place.thread, now)
        return Decided(events[: MAX_BATCH - 1], max(0, len(events) - MAX_BATCH + 1))

    while await writer.write(place, decide):
        pass
    await _note_extractors(writer, shadow)


async def _note_extractors(writer: MemoryWriter, shadow: Place) -> None:
    """Records that the new extractor has read these turns."""

    async def look(rows: Rows) -> list[MemoriesExtracted]:
        return await extractors(rows.conn, shadow.tenant, shadow.thread)

    made = await writer.read(shadow, look)
    await writer.append(Place(shadow.tenant, shadow.user), [(uuid7(), event) for event in made])


async def _difference(conn: Connection, shadow: Place) -> Difference:
    looked = await looked_at(conn, shadow.tenant, shadow.thread)
    real = await all_memories(conn, shadow.tenant, Place(shadow.tenant, shadow.user).thread)
    return difference(real, await all_memories(conn, shadow.tenant, shadow.thread), looked)


def _new_run(shadow: str) -> str:
    """Returns a new name for a run. The name is part of the ids of its threads and events: the events of a dropped run
    are still on the log, so new events with the same ids would be ignored as duplicates.

    Raises InvalidToken.
    """
    if not _NAME.fullmatch(shadow):
        raise InvalidToken(f"{shadow!r} cannot be the name of a trial: use 1 to 50 letters, digits, '_' and '-'")
    return f"{shadow}-{uuid4().hex[:RUN_DIGITS]}"


async def _run_of(conn: Connection, tenant: str, shadow: str) -> str | None:
    return next((run for run, _ in await shadows(conn, tenant) if run[: -RUN_DIGITS - 1] == shadow), None)


async def _the_run(conn: Connection, tenant: str, shadow: str) -> tuple[str, list[str]]:
    """Returns the run's name and its users. Raises NotFound."""
    run = await _run_of(conn, tenant, shadow)
    if run is None:
        raise NotFound(f"there is no trial {shadow!r}; `turnlog rederive list` lists trials")
    return run, await shadow_users(conn, tenant, run)


async def all_shadows(runtime: Runtime, tenant: str) -> list[Shadow]:
    """Returns the shadows of a tenant. Raises InvalidToken."""
    check_tenant(tenant)
    async with runtime.reading("memories") as conn:
        return [Shadow(run[: -RUN_DIGITS - 1], users) for run, users in await shadows(conn, tenant)]


async def _conversations(
    conn: Connection, tenant: str, users: Sequence[str], kinds: Sequence[str]
) -> list[UserConversation]:
    """Returns the users' conversations. kinds: roles whose words are evidence. Users who do not allow memories are left
    out."""
    chosen = users or await users_who_spoke(conn, tenant)
    return [
        UserConversation(tenant, user, thread)
        for user in chosen
        if not await is_memory_off(conn, tenant, memory_thread(user))
        for thread in await conversations_of(conn, tenant, user, kinds)
    ]


async def _cost(runtime: Runtime, shadow: Place) -> Cost:
    events = runtime.log.read_thread(shadow.tenant, shadow.thread, types=("usage_metered",))
    spent = [event.event.data async for event in events if isinstance(event.event.data, UsageMetered)]
    return Cost(
        sum(usage.calls for usage in spent),
        sum(usage.tokens_in + usage.tokens_out for usage in spent),
        sum(usage.cost_usd for usage in spent),
    )
