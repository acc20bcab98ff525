"""The extraction of one user's words in one conversation: rules at once, a model by the batch (M2).

Progress stands in memory_extractions and moves in the same append as what was found, so that whoever does the work
again finds it done. A model's answer is cached before it is used.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from turnlog.agent.context import counter_for
from turnlog.agent.memories.by_rules import Extractor
from turnlog.agent.memories.candidates import without_repeats
from turnlog.agent.memories.extraction import Batch, Proposal, Span, Talk, cut, parts_of, proposal
from turnlog.agent.memories.findings import Looked, Turn
from turnlog.agent.memories.llm_extraction import Extracted, ModelExtraction, judged, single_valued, words_of
from turnlog.agent.memories.rules import RuleSet
from turnlog.agent.memories.service import Memories
from turnlog.agent.memories.turns import evidence, roles
from turnlog.agent.memories.writing import MemoryWriter, Place, Rows
from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.protocol import Usage
from turnlog.agent.settings import Settings
from turnlog.consumers.reactors.budget import Ledger
from turnlog.consumers.reactors.once import Owner, cached, forget_answers, key_of, once
from turnlog.consumers.runtime import Runtime
from turnlog.events.contracts import EventData, UsageMetered
from turnlog.events.frozen import Derivation
from turnlog.events.memory_contracts import MemoriesExtracted, Memory
from turnlog.projectors.archive_lookup import archived_lineage
from turnlog.projectors.extraction_lookup import is_among_people, user_turns
from turnlog.projectors.memory_lookup import extraction_progress, turns_of_forgotten
from turnlog.projectors.writer import Connection

AGENT = "extraction"
CHUNK = 500
TOGETHER = 100  # memories of one append, each of which may lead to several events
QUIET_TURNS = 50  # without a find, so many turns are one event; until then they are looked at again
PENDING = 5_000  # turns that are read for a batch; more are none


@dataclass(frozen=True, slots=True)
class Pending:
    """What the model has not seen. tokens: of the next batch."""

    tokens: int
    is_full: bool

    @property
    def nothing(self) -> bool:
        return self.tokens == 0


class Extraction:
    """One for a process. shadow: where a new derivation writes; the memories that count otherwise (None)."""

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
        self._rules, self._extractor, self._keys = rules, Extractor(rules, runtime.settings.zone), single_valued(rules)
        self._reading = MemoryWriter(runtime.log, runtime.pool)
        self._count = counter_for(model.model).text if model else len

    async def by_rules(self, conn: Connection, talk: Talk, finish: bool = False) -> None:
        """All turns that the rules have not seen. finish: also those too few and too quiet for an event."""
        while True:
            turns, span, size = await self._turns(conn, talk, "rules", CHUNK)
            if not size:
                return
            looked = await asyncio.to_thread(self._extractor.look, turns)
            if not looked.findings and size < QUIET_TURNS and not finish:
                return
            if looked.findings and await self._are_unsaid(conn, talk, turns):
                return
            await self._store(talk, proposal(talk, looked, span, "rules", self._rules.version))
            if size < CHUNK:
                return

    async def _store(self, talk: Talk, made: Proposal) -> None:
        """In parts, for one append is bounded. How far was looked stands in the last one; whoever repeats the parts
        before it, after a crash, finds them done."""
        rest = made.memories
        while len(rest) > TOGETHER:
            await self._memories.remember_many(talk.tenant, talk.user, rest[:TOGETHER], (), self._shadow)
            rest = rest[TOGETHER:]
        await self._memories.remember_many(talk.tenant, talk.user, rest, made.extra, self._shadow)

    async def by_model(self, conn: Connection, talk: Talk, flush: bool = False) -> Pending:
        """Every full batch, and with `flush` what is left; returns what still waits. Raises ModelError, Later."""
        while self._model is not None:
            turns, span, size = await self._turns(conn, talk, "llm", PENDING)
            batch = cut([turn for turn in turns if words_of(turn)], self._settings.extract_batch_tokens, self._count)
            due = batch.is_full or size == PENDING or (flush and size > 0)
            if not due:
                return Pending(batch.tokens, False)
            await self._one_batch(conn, talk, batch, span)
        return Pending(0, False)

    async def give_up(self, conn: Connection, talk: Talk, error: ModelError) -> None:
        """The next batch is left to the rules alone, visibly."""
        assert self._model is not None
        turns, span, size = await self._turns(conn, talk, "llm", PENDING)
        if not size:
            return
        batch = cut([turn for turn in turns if words_of(turn)], self._settings.extract_batch_tokens, self._count)
        seen = replace(span, last=batch.turns[-1].seq) if batch.is_full else span
        told = f"{error.code}: {error}"[:500]
        done = proposal(talk, Looked(), seen, "llm", self._model.prompt_hash).extra[-1]
        assert isinstance(done, MemoriesExtracted)
        failed = UsageMetered(
            purpose="extraction", agent=AGENT, provider=self._model.provider, model=self._model.model, error=told
        )
        extra: list[EventData] = [done.model_copy(update={"error": told}), failed]
        await self._memories.remember_many(talk.tenant, talk.user, (), extra, self._shadow)

    async def _one_batch(self, conn: Connection, talk: Talk, batch: Batch, span: Span) -> None:
        assert self._model is not None
        if not batch.turns:  # nothing but pasted text: no question to a model
            made = proposal(talk, Looked(), span, "llm", self._model.prompt_hash)
            await self._memories.remember_many(talk.tenant, talk.user, (), made.extra, self._shadow)
            return
        answer, turns = await self._answer(conn, talk, batch)
        metered = answer.usage.metered("extraction", AGENT)
        if await self._are_unsaid(conn, talk, turns):  # only what it cost is stored
            await forget_answers(conn, [self._key(talk, turns)])
            await self._memories.remember_many(talk.tenant, talk.user, (), [metered], self._shadow)
            return
        seen = span if len(turns) == len(batch.turns) and not batch.is_full else replace(span, last=turns[-1].seq)
        rules = await asyncio.to_thread(self._extractor.look, turns)
        looked = without_repeats(judged(turns, answer, self._keys), rules, turns)
        derivation = Derivation(
            provider=self._model.provider,
            model=self._model.model,
            prompt_hash=answer.prompt_hash,
            from_seq=turns[0].seq,
            through_seq=turns[-1].seq,
            tokens_in=answer.usage.tokens_in,
            tokens_out=answer.usage.tokens_out,
            cost_usd=answer.usage.cost_usd,
        )
        made = proposal(talk, looked, seen, "llm", answer.prompt_hash, derivation)
        memories = await self._not_forgotten(talk, made.memories)
        await self._memories.remember_many(
            talk.tenant, talk.user, memories, [*made.extra, metered], self._shadow, derivation=derivation
        )

    async def _not_forgotten(self, talk: Talk, memories: Sequence[Memory]) -> list[Memory]:
        """Without those from a turn of which something was forgotten meanwhile: a model says it in other words."""
        turns = {source.event_id for one in memories for source in one.sources}

        async def look(rows: Rows) -> set[UUID]:
            return await turns_of_forgotten(rows.conn, talk.tenant, rows.place.thread, turns)

        silent = await self._reading.read(Place(talk.tenant, talk.user, self._shadow), look) if turns else set()
        return [one for one in memories if not any(source.event_id in silent for source in one.sources)]

    async def _answer(self, conn: Connection, talk: Talk, batch: Batch) -> tuple[Extracted, Sequence[Turn]]:
        """The longest beginning of the batch that was answered before a crash counts; else the model is asked."""
        assert self._model is not None
        model, owner = self._model, Owner(talk.tenant, talk.thread, talk.user)
        sizes = [len(batch.turns)] if batch.is_full else range(len(batch.turns), 0, -1)
        keys = {size: self._key(talk, batch.turns[:size]) for size in sizes}
        held = await cached(conn, list(keys.values()))
        known = next((size for size, key in keys.items() if key in held), None)
        size = len(batch.turns) if known is None else known
        turns = batch.turns[:size]
        found = await once(conn, self._ledger, owner, keys[size], batch.tokens, lambda: model.extract(turns))
        usage = Usage(**found["usage"])
        return Extracted(found["memories"], found["entities"], found["prompt_hash"], usage), turns

    def _key(self, talk: Talk, turns: Sequence[Turn]) -> bytes:
        assert self._model is not None
        parts = parts_of(self._model.prompt_hash, talk.user, turns)
        return key_of(Owner(talk.tenant, talk.thread, talk.user), self._model.model, parts)

    async def _are_unsaid(self, conn: Connection, talk: Talk, turns: Sequence[Turn]) -> bool:
        """Whether one of the turns is gone or has lost its words since it was read: a user was erased meanwhile, or
        the conversation deleted. In the archive it is not gone."""
        kinds, first, count = roles(self._settings.extract_tool_results), turns[0].seq, turns[-1].seq - turns[0].seq + 1
        messages = await user_turns(conn, talk.tenant, talk.thread, talk.user, kinds, first - 1, count)
        now, _ = evidence(messages, talk.thread, talk.user, False, self._settings.extract_tool_results)
        return not set(turns) <= set(now) and not await archived_lineage(conn, talk.tenant, talk.thread)

    async def _turns(self, conn: Connection, talk: Talk, stage: str, limit: int) -> tuple[list[Turn], Span, int]:
        """The next turns that a stage has not seen, which sequences they span, and how many were read."""
        after = await self._progress(talk, stage)
        place = (talk.tenant, talk.thread, talk.user)
        kinds = roles(self._settings.extract_tool_results)
        messages = await user_turns(conn, *place, kinds, after, limit)
        if not messages:
            return [], Span(after, after), 0
        is_named = any(one.name is not None for one in messages)  # else no need to look at the whole conversation
        among_people = is_named and await is_among_people(conn, *place)
        turns, others = evidence(messages, talk.thread, talk.user, among_people, self._settings.extract_tool_results)
        return turns, Span(messages[0].seq, messages[-1].seq, others), len(messages)

    async def _progress(self, talk: Talk, stage: str) -> int:
        """As of the end of the memory thread, so that nothing is done twice for a row that is on its way."""

        async def look(rows: Rows) -> int:
            found = await extraction_progress(rows.conn, talk.tenant, rows.place.thread, talk.thread, stage)
            return found.through_seq if found else 0

        return await self._reading.read(Place(talk.tenant, talk.user, self._shadow), look)
