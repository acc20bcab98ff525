"""Merges groups of memories with a language model, within the run's limit of calls.

Input: merge groups of one user. Output: one MemoriesCompacted event for each text that passes the checks of
merge_prompt.py. An answer is cached for its user before it is used, so that no call is repeated after an interrupted
run. A refused answer stays in the cache without its text, so that it is not requested again.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid5

from turnlog.agent.context import counter_for
from turnlog.agent.memory.deciding.policy import Policy
from turnlog.agent.memory.deciding.writing import Decided, MemoryWriter, Place, Rows
from turnlog.agent.memory.upkeep.merge_groups import MergeGroup, merge_event
from turnlog.agent.memory.upkeep.merge_prompt import MergedText, prompt_hash, request_merged_text
from turnlog.agent.models.cached_calls import Owner, cached, key_of, once
from turnlog.agent.models.errors import ModelError, ModelRefused
from turnlog.agent.models.factory import make_chat
from turnlog.agent.models.protocol import ChatModel, Usage, failed_usage
from turnlog.agent.models.spending_limit import Ledger, ledger
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Derivation, EventData, UsageMetered
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.memories.lookup import StoredMemory, memories_by_id

logger = logging.getLogger("turnlog.agent")
NAME = "compaction"
EVENT_NAMESPACE = UUID("6f2f1c0a-9d1b-4a5c-8d57-0f5d3e6f7a10")
MAX_FAILURES = 3  # refused requests in a row
COUNTER_OF = {"merge": "merged", "summary": "summarised"}


@dataclass(slots=True)
class Merger:
    """Makes the merges of one run. calls: number of calls made so far. failures: number of successive failures.
    stopped: why no more calls are made, "" while calls are made; the remaining groups wait for the next run."""

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

    async def merge(
        self, place: Place, groups: Sequence[MergeGroup], report: Callable[[], None]
    ) -> tuple[Counter[str], set[UUID]]:
        """Merges each group and then calls `report`. Returns counts by result, and the ids of the closed members.
        Raises TurnlogError."""
        counts, closed = Counter[str](), set[UUID]()
        for group in groups:
            merged = await self._merged_text(place, group, counts)
            if merged is not None and await self._write(place, group, merged):
                closed |= {member.id for member in group.members}
                counts += Counter({COUNTER_OF[group.method]: 1, "closed": len(group.members)})
            report()
        return counts, closed

    async def _merged_text(self, place: Place, group: MergeGroup, counts: Counter[str]) -> MergedText | None:
        """Returns the merged text of a group; None if the group waits for the next run. If the model cannot be reached,
        or refuses MAX_FAILURES requests in a row, the run makes no more calls, but the job goes on. A single refusal
        may be caused by its request."""
        merged = None
        try:
            async with self.runtime.pool.connection() as conn:
                merged = await self._answer(conn, place, group)
        except RetryLater as later:
            self.stopped = str(later)
            logger.info("memories wait to be merged and summarised: %s", later)
        except ModelError as error:
            counts["failed"] += 1
            self.failures += 1 if isinstance(error, ModelRefused) else MAX_FAILURES
            if self.failures >= MAX_FAILURES:
                self.stopped = str(error)
            logger.warning("memories wait to be merged and summarised: %s", error)
            await self.writer.append(place, [self._failure(place, error)])
        if merged is None:
            counts["left"] += 1
        elif merged.refused is not None:
            counts["refused"] += 1
        return merged

    async def _answer(self, conn: Connection, place: Place, group: MergeGroup) -> MergedText | None:
        """Returns the cached answer or the answer of a call; None when the run makes no more calls. Raises RetryLater,
        ModelError."""
        key, contents = self._key(place, group), [member.content for member in group.members]
        is_over = self.stopped or self.calls >= self.runtime.settings.compaction_calls
        if is_over and not await cached(conn, [key]):
            return None

        async def ask() -> MergedText:
            self.calls += 1
            return await request_merged_text(self.chat, group.method, contents)

        answer = await once(conn, self.ledger, _owner(place), key, sum(map(self.count, contents)), ask)
        self.failures = 0
        return MergedText(answer["text"], answer["refused"], answer["prompt_hash"], Usage(**answer["usage"]))

    async def _write(self, place: Place, group: MergeGroup, merged: MergedText) -> bool:
        """Writes the merged memory if all members are still valid (a concurrent write may have closed one); returns
        whether it was written."""
        call = f"usage/{self._key(place, group).hex()}/{merged.usage.latency_ms}"

        async def decide(rows: Rows) -> Decided[bool]:
            event_id, usage_id = _event_id(group, place, await rows.removed_at()), uuid5(EVENT_NAMESPACE, call)
            stored = await rows.stored([event_id, usage_id])
            by_id = await memories_by_id(rows.conn, place.tenant, place.thread, [member.id for member in group.members])
            known = [by_id[member.id] for member in group.members if member.id in by_id]
            members = [row for row in known if row.status == "valid" and row.valid_to is None]
            events: list[tuple[UUID, EventData]] = []
            is_merged = bool(merged.text) and event_id not in stored and len(members) == len(group.members)
            if is_merged:
                derivation = _derivation(merged, members)
                about = (datetime.now(UTC), self.policy, group.similarity, derivation)
                events.append((event_id, merge_event(group.method, members, merged.text, event_id, *about)))
            if usage_id not in stored:
                events.append((usage_id, merged.usage.metered("compaction", NAME)))
            return Decided(events, is_merged)

        is_merged = await self.writer.write(place, decide)
        if merged.text:  # the text is on the log; a cached copy would survive if the memory is forgotten later
            async with self.runtime.pool.connection() as conn:
                await conn.execute("DELETE FROM model_cache WHERE request_hash = %s", (self._key(place, group),))
        return is_merged

    def _key(self, place: Place, group: MergeGroup) -> bytes:
        parts = (NAME, prompt_hash(group.method), *(f"{member.id} {member.content}" for member in group.members))
        return key_of(_owner(place), self.chat.model, parts)

    def _failure(self, place: Place, error: ModelError) -> tuple[UUID, UsageMetered]:
        """Returns the usage of a failed call; failures with the same cause, day and user have the same id."""
        cause = f"failure/{place.tenant}/{place.thread}/{self.chat.model}/{error.code}/{datetime.now(UTC):%Y-%m-%d}"
        return uuid5(EVENT_NAMESPACE, cause), failed_usage(self.chat, "compaction", NAME, error)


@contextlib.asynccontextmanager
async def open_merger(runtime: Runtime, writer: MemoryWriter, policy: Policy) -> AsyncIterator[Merger | None]:
    """Yields a merger while the block runs; None if no language model is configured."""
    chat = make_chat(runtime.settings)
    if chat is None:
        yield None
        return
    merger = Merger(runtime, writer, policy, chat, ledger(NAME, runtime.settings, is_local=False))
    try:
        yield merger
    finally:
        await chat.close()


def _owner(place: Place) -> Owner:
    return Owner(place.tenant, place.thread, place.user)


def _event_id(group: MergeGroup, place: Place, removed: int) -> UUID:
    """Returns the id of the merge. removed: sequence of the thread's last removal; memories recorded after it may have
    the same ids as before."""
    members = ",".join(str(member.id) for member in group.members)
    return uuid5(EVENT_NAMESPACE, f"{place.tenant}/{place.thread}@{removed}/{group.method}/{members}")


def _derivation(merged: MergedText, members: Sequence[StoredMemory]) -> Derivation:
    seqs = [row.seq for row in members]
    return Derivation(
        provider=merged.usage.provider,
        model=merged.usage.model,
        prompt_hash=merged.prompt_hash,
        from_seq=min(seqs),
        through_seq=max(seqs),
        tokens_in=merged.usage.tokens_in,
        tokens_out=merged.usage.tokens_out,
        cost_usd=merged.usage.cost_usd,
    )
