"""Runs the extraction for one user in one conversation: the rules on every turn, a model on batches of turns.

Input: the user's turns that a stage has not read (memory_extractions). Output: memories and, in the same append as the
last of them, the new progress, so that a repeated run changes nothing. A model's answer is cached before it is used.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from turnlog.agent.context import counter_for
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import MemoryWriter, Place, Rows
from turnlog.agent.memory.extraction.by_model import (
    ModelAnswer,
    ModelExtraction,
    accepted_memories,
    attribute_keys,
    extraction_task,
    model_text,
)
from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.evidence import MAX_TURN, evidence, not_taken_back, roles
from turnlog.agent.memory.extraction.findings import ExtractionResult, Turn
from turnlog.agent.memory.extraction.not_meant import takes_back
from turnlog.agent.memory.extraction.proposals import without_repeats, without_secrets
from turnlog.agent.memory.extraction.rules import RuleSet, load_rules
from turnlog.agent.memory.extraction.stages import (
    Batch,
    Proposal,
    Span,
    UserConversation,
    next_batch,
    proposal,
    request_parts,
)
from turnlog.agent.models.cached_calls import Owner, cached, forget_answers, key_of, once
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.factory import Models
from turnlog.agent.models.protocol import Usage, failed_usage
from turnlog.agent.models.spending_limit import Ledger, ledger
from turnlog.agent.retry_later import RetryLater
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import Derivation, EventData, MemoriesExtracted, Memory
from turnlog.projectors.engine.locks import LockFor, work_lock
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.conversation.thread_lookup import archived_lineage
from turnlog.projectors.models.memories.extraction_lookup import (
    extraction_progress,
    is_among_people,
    memories_of_turn_before,
    turns_of_forgotten,
    user_turns,
)
from turnlog.projectors.models.memories.lookup import is_memory_off, remembers_secrets, zone_of

NAME = "extraction"
READ_TURNS = 500  # turns that the rules read at a time
APPEND_MEMORIES = 100  # memories in one append; each may lead to several events
QUIET_TURNS = 50  # from this number on, turns without a finding are recorded as read
READ_FOR_BATCH = 5_000  # turns that are read at most to fill one batch for the model


@dataclass(frozen=True, slots=True)
class Pending:
    """The turns that the model has not read yet. tokens: number of tokens of the next batch."""

    tokens: int
    is_full: bool

    @property
    def nothing(self) -> bool:
        return self.tokens == 0


class Extraction:
    """Extracts memories and writes them; one per process. shadow: name of the shadow memory thread to write to; None
    for the user's own memory thread."""

    def __init__(
        self,
        runtime: Runtime,
        rules: RuleSet,
        model: ModelExtraction | None,
        ledger: Ledger,
        memories: Memories,
        shadow: str | None = None,
    ) -> None:
        self._settings: Settings = runtime.settings
        self._memories, self._shadow, self._ledger, self._model = memories, shadow, ledger, model
        self._rules, self._extractor, self._keys = rules, Extractor(rules), attribute_keys(rules)
        self._reading = MemoryWriter(runtime.log, runtime.pool)
        self._count = counter_for(model.model).text if model else len

    async def by_rules(self, conn: Connection, conversation: UserConversation, finish: bool = False) -> None:
        """Applies the rules to all unread turns. finish: record turns without findings as read even if they are fewer
        than QUIET_TURNS."""
        if await self._passes_over(conn, conversation, "rules", self._rules.version):
            return
        while True:
            turns, span, size = await self._turns(conn, conversation, "rules", READ_TURNS)
            if not size:
                return
            extracted = await asyncio.to_thread(self._extractor.extract, turns)
            result = await self._allowed(conversation, extracted, turns)
            is_taken_back = bool(turns) and takes_back(turns[0].text)
            if not (result.findings or is_taken_back) and size < QUIET_TURNS and not finish:
                return
            if is_taken_back and self._shadow is None:
                await self._take_back(conversation, turns[0])
            if result.findings and await self._are_gone(conn, conversation, turns):
                return
            await self._store(conversation, proposal(conversation, result, span, "rules", self._rules.version))
            if size < READ_TURNS:
                return

    async def by_model(self, conn: Connection, conversation: UserConversation, flush: bool = False) -> Pending:
        """Sends every full batch to the model, and with `flush` also the last partial batch; returns the turns that
        were not sent.

        Raises ModelError, RetryLater.
        """
        if self._model is None or await self._passes_over(conn, conversation, "llm", self._model.prompt_hash):
            return Pending(0, False)
        while True:
            batch, span, size = await self._next_batch(conn, conversation)
            due = batch.is_full or size == READ_FOR_BATCH or (flush and size > 0)
            if not due:
                return Pending(batch.tokens, False)
            await self._one_batch(conn, conversation, batch, span)

    async def give_up(self, conn: Connection, conversation: UserConversation, error: ModelError) -> None:
        """Skips the model's next batch and records the error; the rules have read these turns."""
        assert self._model is not None
        batch, span, size = await self._next_batch(conn, conversation)
        if not size:
            return
        skipped = replace(span, last=batch.turns[-1].seq) if batch.is_full else span
        done = proposal(conversation, ExtractionResult(), skipped, "llm", self._model.prompt_hash).extra[-1]
        assert isinstance(done, MemoriesExtracted)
        failed = failed_usage(self._model, "extraction", NAME, error)
        await self._remember(conversation, (), [done.model_copy(update={"error": failed.error}), failed])

    async def _passes_over(self, conn: Connection, conversation: UserConversation, stage: str, extractor: str) -> bool:
        """Returns whether the user does not allow memories. If so, the unread turns are recorded as read, so that
        nothing is extracted from them later either."""

        async def is_off(rows: Rows) -> bool:
            return await is_memory_off(rows.conn, rows.place.tenant, rows.place.thread)

        if not await self._reading.read(self._place(conversation), is_off):
            return False
        after = await self._progress(conversation, stage)
        while messages := await self._messages(conn, conversation, after, READ_FOR_BATCH):
            span, after = Span(messages[0].seq, messages[-1].seq), messages[-1].seq
            done = proposal(conversation, ExtractionResult(), span, stage, extractor)
            await self._remember(conversation, (), done.extra)
        return True

    async def _one_batch(self, conn: Connection, conversation: UserConversation, batch: Batch, span: Span) -> None:
        assert self._model is not None
        if not batch.turns:  # only pasted text: the model would get nothing
            empty = proposal(conversation, ExtractionResult(), span, "llm", self._model.prompt_hash)
            await self._remember(conversation, (), empty.extra)
            return
        answer, turns = await self._answer(conn, conversation, batch)
        metered = answer.usage.metered("extraction", NAME)
        if await self._are_gone(conn, conversation, turns):  # only the cost of the call is stored
            await forget_answers(conn, [self._key(conversation, turns)])
            await self._remember(conversation, (), [metered])
            return
        read = span if len(turns) == len(batch.turns) and not batch.is_full else replace(span, last=turns[-1].seq)
        by_rules = await asyncio.to_thread(self._extractor.extract, turns)
        accepted = await self._allowed(conversation, accepted_memories(turns, answer, self._keys), turns)
        result = without_repeats(accepted, by_rules, turns)
        derivation = self._derivation(answer, turns)
        proposed = proposal(conversation, result, read, "llm", answer.prompt_hash, derivation)
        memories = await self._not_forgotten(conversation, proposed.memories)
        await self._remember(conversation, memories, [*proposed.extra, metered], derivation)

    def _derivation(self, answer: ModelAnswer, turns: Sequence[Turn]) -> Derivation:
        assert self._model is not None
        return Derivation(
            provider=self._model.provider,
            model=self._model.model,
            prompt_hash=answer.prompt_hash,
            from_seq=turns[0].seq,
            through_seq=turns[-1].seq,
            tokens_in=answer.usage.tokens_in,
            tokens_out=answer.usage.tokens_out,
            cost_usd=answer.usage.cost_usd,
        )

    async def _store(self, conversation: UserConversation, proposed: Proposal) -> None:
        """Stores a proposal in several appends, because the size of an append is limited. The last append contains the
        progress: after a crash, the earlier appends are repeated and change nothing."""
        rest = proposed.memories
        while len(rest) > APPEND_MEMORIES:
            await self._remember(conversation, rest[:APPEND_MEMORIES], ())
            rest = rest[APPEND_MEMORIES:]
        await self._remember(conversation, rest, proposed.extra)

    async def _take_back(self, conversation: UserConversation, turn: Turn) -> None:
        """Takes back the memories that come only from the user's turn before this one. A memory that replaced another
        is closed, and the other becomes valid again; a memory that replaced none is forgotten."""

        async def find(rows: Rows) -> list[tuple[UUID, UUID | None]]:
            place = (conversation.tenant, rows.place.thread, conversation.thread, conversation.user)
            return await memories_of_turn_before(rows.conn, *place, turn.seq)

        user = (conversation.tenant, conversation.user)
        for memory_id, replaced in await self._reading.read(self._place(conversation), find):
            if replaced is None:
                await self._memories.forget(*user, memory_id)
            else:
                await self._memories.revert(*user, replaced)

    async def _allowed(
        self, conversation: UserConversation, result: ExtractionResult, turns: Sequence[Turn]
    ) -> ExtractionResult:
        result = not_taken_back(result, turns)

        async def keeps(rows: Rows) -> bool:
            person = (conversation.tenant, conversation.user)
            return await remembers_secrets(rows.conn, *person, self._settings.remember_secrets)

        if not result.findings and not result.entities:
            return result
        is_allowed = await self._reading.read(self._place(conversation), keeps)
        return result if is_allowed else without_secrets(result, turns)

    async def _remember(
        self,
        conversation: UserConversation,
        memories: Sequence[Memory],
        extra: Sequence[EventData],
        derivation: Derivation | None = None,
    ) -> None:
        user = (conversation.tenant, conversation.user)
        await self._memories.remember_many(*user, memories, extra, self._shadow, derivation=derivation)

    async def _not_forgotten(self, conversation: UserConversation, memories: Sequence[Memory]) -> list[Memory]:
        """Returns the memories without those from turns that also stated a forgotten memory, because a model would
        repeat it in other words."""
        turns = {source.event_id for memory in memories for source in memory.sources}

        async def find(rows: Rows) -> set[UUID]:
            return await turns_of_forgotten(rows.conn, conversation.tenant, rows.place.thread, turns)

        forgotten = await self._reading.read(self._place(conversation), find) if turns else set()
        return [memory for memory in memories if not any(source.event_id in forgotten for source in memory.sources)]

    async def _answer(
        self, conn: Connection, conversation: UserConversation, batch: Batch
    ) -> tuple[ModelAnswer, Sequence[Turn]]:
        """Returns the cached answer to the longest prefix of the batch (from before a crash), or a new answer of the
        model, and the turns that it answers."""
        assert self._model is not None
        model, owner = self._model, _owner(conversation)
        sizes = [len(batch.turns)] if batch.is_full else range(len(batch.turns), 0, -1)
        keys = {size: self._key(conversation, batch.turns[:size]) for size in sizes}
        held = await cached(conn, list(keys.values()))
        size = next((size for size, key in keys.items() if key in held), len(batch.turns))
        turns = batch.turns[:size]
        answer = await once(conn, self._ledger, owner, keys[size], batch.tokens, lambda: model.extract(turns))
        usage = Usage(**answer["usage"])
        return ModelAnswer(answer["memories"], answer["entities"], answer["prompt_hash"], usage), turns

    def _key(self, conversation: UserConversation, turns: Sequence[Turn]) -> bytes:
        assert self._model is not None
        parts = request_parts(self._model.prompt_hash, conversation.user, turns)
        return key_of(_owner(conversation), self._model.model, parts)

    async def _are_gone(self, conn: Connection, conversation: UserConversation, turns: Sequence[Turn]) -> bool:
        """Returns whether a turn was deleted, or its user erased, since it was read. A turn of an archived conversation
        is not gone."""
        first, count = turns[0].seq, turns[-1].seq - turns[0].seq + 1
        messages = await self._messages(conn, conversation, first - 1, count)
        now, _ = evidence(messages, conversation.thread, conversation.user, False, self._settings.extract_tool_results)
        return not set(turns) <= set(now) and not await archived_lineage(conn, conversation.tenant, conversation.thread)

    async def _next_batch(self, conn: Connection, conversation: UserConversation) -> tuple[Batch, Span, int]:
        """Returns the next batch for the model, the span of the turns that were read for it, and their number."""
        turns, span, size = await self._turns(conn, conversation, "llm", READ_FOR_BATCH)
        with_text = [turn for turn in turns if model_text(turn)]
        return next_batch(with_text, self._settings.extract_batch_tokens, self._count), span, size

    async def _turns(
        self, conn: Connection, conversation: UserConversation, stage: str, limit: int
    ) -> tuple[list[Turn], Span, int]:
        """Returns a stage's next unread turns, the span of the turns that were read, and their number."""
        after = await self._progress(conversation, stage)
        messages = await self._messages(conn, conversation, after, limit)
        if not messages:
            return [], Span(after, after), 0
        conversation_key = (conversation.tenant, conversation.thread, conversation.user)
        is_named = any(message.name is not None for message in messages)  # without names there is one speaker
        among_people = is_named and await is_among_people(conn, *conversation_key)
        with_tools = self._settings.extract_tool_results
        turns, others = evidence(messages, conversation.thread, conversation.user, among_people, with_tools)
        return turns, Span(messages[0].seq, messages[-1].seq, others), len(messages)

    async def _messages(
        self, conn: Connection, conversation: UserConversation, after: int, limit: int
    ) -> Sequence[Message]:
        conversation_key = (conversation.tenant, conversation.thread, conversation.user)
        zone = await zone_of(conn, conversation.tenant, conversation.user, self._settings.zone)
        return await user_turns(
            conn, *conversation_key, roles(self._settings.extract_tool_results), zone, after, limit, MAX_TURN
        )

    async def _progress(self, conversation: UserConversation, stage: str) -> int:
        """Returns the last sequence that a stage has read, from rows that are up to date with the memory thread."""

        async def find(rows: Rows) -> int:
            thread = (rows.place.thread, conversation.thread)
            progress = await extraction_progress(rows.conn, conversation.tenant, *thread, stage)
            return progress.through_seq if progress else 0

        return await self._reading.read(self._place(conversation), find)

    def _place(self, conversation: UserConversation) -> Place:
        return Place(conversation.tenant, conversation.user, self._shadow)


def _owner(conversation: UserConversation) -> Owner:
    return Owner(conversation.tenant, conversation.thread, conversation.user)


def extraction_of(runtime: Runtime, models: Models, shadow: str | None = None) -> Extraction:
    """Returns an extraction with the rules, prompt and model of the settings. Raises InvalidRules, InvalidPrompt."""
    settings, chat = runtime.settings, models.extraction
    rules, task = load_rules(settings.rules_file), extraction_task(settings.extract_prompt_file)
    model = None if chat is None else ModelExtraction(chat, rules, task)
    memories = Memories(runtime.log, runtime.pool)
    return Extraction(runtime, rules, model, ledger(NAME, settings, is_local=False), memories, shadow)


@contextlib.asynccontextmanager
async def locked(conn: Connection, conversation: UserConversation, shadow: str = "") -> AsyncIterator[None]:
    """Holds the lock of a conversation; a shadow has a separate lock. Raises RetryLater when another worker has it."""
    name = f"{NAME}/{shadow}/{conversation.tenant}/{conversation.thread}/{conversation.user}"
    async with work_lock(conn, LockFor.EXTRACTION, name) as held:
        if not held:
            raise RetryLater(2.0, "another worker extracts from this thread")
        yield
