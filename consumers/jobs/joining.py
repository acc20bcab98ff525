"""Memories that a language model makes one, within the night's calls: asked once, judged, written (M6).

An answer is cached before it is used, under its user, so that a run that broke off asks nothing twice; what was refused
stays there without its words, and is not asked again.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid5

from turnlog.agent.context import counter_for
from turnlog.agent.memories.joint_memory import compacted
from turnlog.agent.memories.joint_prompt import Made, make_one, prompt_hash
from turnlog.agent.memories.joints import Joint
from turnlog.agent.memories.policy import Policy
from turnlog.agent.memories.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.models.errors import ModelError, ModelRefused
from turnlog.agent.models.factory import make_chat
from turnlog.agent.models.protocol import ChatModel, Usage
from turnlog.consumers.inbox import Later
from turnlog.consumers.reactors.budget import Ledger, ledger
from turnlog.consumers.reactors.once import Owner, cached, key_of, once
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import EventData, UsageMetered
from turnlog.events.frozen import Derivation
from turnlog.projectors.memory_lookup import StoredMemory, memories_by_id
from turnlog.projectors.writer import Connection

logger = logging.getLogger("turnlog.consumers")
NAME = "compaction"
OF_JOINING = UUID("6f2f1c0a-9d1b-4a5c-8d57-0f5d3e6f7a10")
IN_A_ROW = 3  # refused requests
NAMES = {"merge": "merged", "summary": "summarised"}  # what the job counts


@dataclass(slots=True)
class Joiner:
    """One for a run. calls: made so far. failures: in a row. stopped: why no more are made; what is left waits."""

    runtime: Runtime
    writer: MemoryWriter
    policy: Policy
    chat: ChatModel
    ledger: Ledger
    calls: int = 0
    failures: int = 0
    stopped: str = ""
    count: Callable[[str], int] = field(init=False)

    def __post_init__(self) -> None:
        self.count = counter_for(self.chat.model).text

    async def join(self, place: Place, joints: Sequence[Joint]) -> tuple[Counter[str], set[UUID]]:
        """What became of the groups, by number, and the memories that ended. Raises TurnlogError."""
        counts, ended = Counter[str](), set[UUID]()
        for joint in joints:
            made = await self._made(place, joint, counts)
            if made is not None and await self._write(place, joint, made):
                ended |= {one.id for one in joint.members}
                counts += Counter({NAMES[joint.method]: 1, "closed": len(joint.members)})
        return counts, ended

    async def drop_old_answers(self) -> None:
        """Those of a run that was cut off right before it would have dropped them."""
        async with self.runtime.pool.connection() as conn:
            await conn.execute(
                "DELETE FROM model_cache WHERE response ->> 'text' <> '' AND response::jsonb ? 'refused' "
                "AND created_at < now() - interval '1 day'"
            )

    async def _made(self, place: Place, joint: Joint, counts: Counter[str]) -> Made | None:
        """None: to be left for another night. A model that is away, or refuses IN_A_ROW, ends the run's calls, not the
        job; a single request may be one that its server never takes."""
        made = None
        try:
            async with self.runtime.pool.connection() as conn:
                made = await self._answer(conn, place, joint)
        except Later as later:
            self.stopped = str(later)
            logger.info("memories wait to be merged and summarised: %s", later)
        except ModelError as error:
            counts["failed"] += 1
            self.failures += 1 if isinstance(error, ModelRefused) else IN_A_ROW
            if self.failures >= IN_A_ROW:
                self.stopped = str(error)
            logger.warning("memories wait to be merged and summarised: %s", error)
            await self.writer.append(place, [self._failure(place, error)])
        if made is None:
            counts["left"] += 1
        elif made.refused is not None:
            counts["refused"] += 1
        return made

    async def _answer(self, conn: Connection, place: Place, joint: Joint) -> Made | None:
        """From the cache, or by a call if one may still be made. Raises Later, ModelError."""
        key, contents = self._key(place, joint), [one.content for one in joint.members]
        if self._is_over and not await cached(conn, [key]):
            return None

        async def ask() -> Made:
            self.calls += 1
            return await make_one(self.chat, joint.method, contents)

        found = await once(conn, self.ledger, _owner(place), key, sum(map(self.count, contents)), ask)
        self.failures = 0
        return Made(found["text"], found["refused"], found["prompt_hash"], Usage(**found["usage"]))

    @property
    def _is_over(self) -> bool:
        return bool(self.stopped) or self.calls >= self.runtime.settings.compaction_calls

    async def _write(self, place: Place, joint: Joint, made: Made) -> bool:
        """Whether the memory was made: every member must hold still, for somebody may have been faster."""
        call = f"usage/{self._key(place, joint).hex()}/{made.usage.latency_ms}"

        async def decide(rows: Rows) -> Decided[bool]:
            event_id, usage_id = _event_id(joint, place, await rows.removed_at()), uuid5(OF_JOINING, call)
            stored = await rows.stored([event_id, usage_id])
            found = await memories_by_id(rows.conn, place.tenant, place.thread, [one.id for one in joint.members])
            members = [found[one.id] for one in joint.members if one.id in found and _holds(found[one.id])]
            events: list[tuple[UUID, EventData]] = []
            is_made = bool(made.text) and event_id not in stored and len(members) == len(joint.members)
            if is_made:
                derivation = _derivation(made, members)
                about = (datetime.now(UTC), self.policy, joint.similarity, derivation)
                events.append((event_id, compacted(joint.method, members, made.text, event_id, *about)))
            if usage_id not in stored:
                events.append((usage_id, made.usage.metered("compaction", NAME)))
            return Decided(events, is_made)

        is_made = await self.writer.write(place, decide)
        if made.text:  # it stands on the log; here, nothing that is forgotten later may live on
            async with self.runtime.pool.connection() as conn:
                await conn.execute("DELETE FROM model_cache WHERE request_hash = %s", (self._key(place, joint),))
        return is_made

    def _key(self, place: Place, joint: Joint) -> bytes:
        parts = (NAME, prompt_hash(joint.method), *(f"{one.id} {one.content}" for one in joint.members))
        return key_of(_owner(place), self.chat.model, parts)

    def _failure(self, place: Place, error: ModelError) -> tuple[UUID, UsageMetered]:
        """The same cause is one event a day and user."""
        told = f"{error.code}: {error}"[:500]
        about = {"provider": self.chat.provider, "model": self.chat.model, "error": told}
        cause = f"failure/{place.tenant}/{place.thread}/{self.chat.model}/{error.code}/{datetime.now(UTC):%Y-%m-%d}"
        return uuid5(OF_JOINING, cause), UsageMetered(purpose="compaction", agent=NAME, **about)


@contextlib.asynccontextmanager
async def joiner(runtime: Runtime, writer: MemoryWriter, policy: Policy) -> AsyncIterator[Joiner | None]:
    """None without a language model."""
    chat = make_chat(runtime.settings)
    if chat is None:
        yield None
        return
    joins = Joiner(runtime, writer, policy, chat, ledger(NAME, runtime.settings, is_local=False))
    try:
        yield joins
        await joins.drop_old_answers()
    finally:
        await chat.close()


def _owner(place: Place) -> Owner:
    return Owner(place.tenant, place.thread, place.user)


def _event_id(joint: Joint, place: Place, removed: int) -> UUID:
    """removed: when the thread was last removed, for what is said anew may have the ids that it had before."""
    members = ",".join(str(one.id) for one in joint.members)
    return uuid5(OF_JOINING, f"{place.tenant}/{place.thread}@{removed}/{joint.method}/{members}")


def _holds(row: StoredMemory) -> bool:
    return row.status == "valid" and row.valid_to is None


def _derivation(made: Made, members: Sequence[StoredMemory]) -> Derivation:
    seqs = [row.seq for row in members]
    return Derivation(
        provider=made.usage.provider,
        model=made.usage.model,
        prompt_hash=made.prompt_hash,
        from_seq=min(seqs),
        through_seq=max(seqs),
        tokens_in=made.usage.tokens_in,
        tokens_out=made.usage.tokens_out,
        cost_usd=made.usage.cost_usd,
    )
