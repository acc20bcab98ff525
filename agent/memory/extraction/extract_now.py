"""Extracts memories from conversations at once, or previews what the rules would store and reject."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from uuid import UUID

from turnlog.agent.memory.deciding.outcomes import Outcome, What, preview
from turnlog.agent.memory.deciding.writing import MemoryWriter, Place
from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.evidence import MAX_TURN, evidence, roles
from turnlog.agent.memory.extraction.explicit import asks_to_keep_a_secret, requests
from turnlog.agent.memory.extraction.extraction_run import extraction_of, locked
from turnlog.agent.memory.extraction.findings import ExtractionResult, Finding, Rejection
from turnlog.agent.memory.extraction.proposals import candidates, without_secrets
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.memory.extraction.stages import UserConversation
from turnlog.agent.models.factory import make_models
from turnlog.agent.models.language import is_chinese
from turnlog.agent.retry_later import NotNow, at_once
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Memory, MemoryKind, Origin, Strategy
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.subjects import check_place, memory_thread
from turnlog.projectors.models.memories.extraction_lookup import (
    Progress,
    conversations_of,
    extraction_progress,
    is_among_people,
    user_turns,
    users_between,
)
from turnlog.projectors.models.memories.lookup import (
    StoredMemory,
    is_memory_off,
    remembers_secrets,
    valid_memories,
    zone_of,
)

READS = ("messages", "memories")
TRIES, PAUSE_S = 120, 0.25  # tries while another worker extracts from the conversation


class NothingChosen(TurnlogError):
    """Neither a conversation nor a user was named."""

    code = "nothing-chosen"


@dataclass(frozen=True, slots=True)
class Extracted:
    """The progress of an extraction from one user's turns in one conversation. stages: the progress of "rules" and
    "llm"; None if the stage has not read anything."""

    thread: str
    user: str
    stages: dict[str, Progress | None]


@dataclass(frozen=True, slots=True)
class PreviewedMemory:
    """A memory that would be stored, and its outcome. quote, seq, event_id: those of the turn that states the
    memory."""

    content: str
    kind: MemoryKind
    outcome: What
    question: str | None
    origin: Origin
    rule: str | None
    dedupe_key: str | None
    strategy: Strategy
    importance: float
    confidence: float
    expires_at: datetime | None
    quote: str
    seq: int
    event_id: UUID


@dataclass(frozen=True, slots=True)
class RejectedText:
    """A text that a rule matched but that is not stored. reason: a stable code. detail: an explanation for people."""

    reason: str
    rule: str | None
    detail: str
    quote: str
    seq: int


@dataclass(frozen=True, slots=True)
class ExtractionPreview:
    thread: str
    user: str
    memories: tuple[PreviewedMemory, ...]
    rejected: tuple[RejectedText, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """The outcome of a message's requests to remember. language: the language of the message. contents: the contents of
    the memories. why_not: the reason if there are none.

    no-user: the message has no user; secret: it contains a password, a key or a card number; off: MEMORY_EXTRACT is
    off; disabled: the user's preference enable_memory is off; says-nothing: it does not say what to remember; later:
    another worker extracts now; contradicts: a conflict waits for the user's answer; ended: another memory is valid
    instead.
    """

    language: Literal["en", "zh"]
    contents: tuple[str, ...] = ()
    why_not: Literal["no-user", "secret", "off", "disabled", "says-nothing", "later", "contradicts", "ended"] | None = (
        None
    )


async def remembered(
    runtime: Runtime, tenant: str, thread: str, user: str | None, turn: UUID, text: str
) -> Remembered | None:
    """Returns the outcome of the requests to remember in a turn on the log, or None if the turn has no such request.
    Applies the rules now if no worker has.

    Raises InvalidRules, InvalidPrompt.
    """
    asked = {request.refused for request in requests(text)}
    if not asked & {None, "says-nothing"}:
        return None
    made = Remembered("zh" if is_chinese(text) else "en")
    if None not in asked:
        return replace(made, why_not="says-nothing")
    if user is None or not runtime.settings.extract:
        return replace(made, why_not="off" if user else "no-user")
    async with runtime.pool.connection() as conn:
        if await is_memory_off(conn, tenant, memory_thread(user)):
            return replace(made, why_not="disabled")
        keeps_secrets = await remembers_secrets(conn, tenant, user, runtime.settings.remember_secrets)
    if not keeps_secrets and asks_to_keep_a_secret(text):
        return replace(made, why_not="secret")
    conversation = UserConversation(tenant, user, thread)
    for _ in range(TRIES):
        is_read = await _rules_have_read(runtime, conversation)
        if (of_turn := await _of_turn(runtime, conversation, turn)) or is_read:
            contents = tuple(row.content for row in of_turn if row.status == "valid")
            return replace(made, contents=contents, why_not=None if contents else "contradicts" if of_turn else "ended")
        await asyncio.sleep(PAUSE_S)
    return replace(made, why_not="later")


async def _rules_have_read(runtime: Runtime, conversation: UserConversation) -> bool:
    """Applies the rules to the unread turns. Returns False if another worker extracts from the conversation now."""
    models = make_models(runtime.settings)
    try:
        with at_once():
            async with runtime.pool.connection() as conn, locked(conn, conversation):
                await extraction_of(runtime, models).by_rules(conn, conversation, finish=True)
        return True
    except NotNow:
        return False
    finally:
        await models.close()


async def _of_turn(runtime: Runtime, conversation: UserConversation, turn: UUID) -> list[StoredMemory]:
    """Returns the memories that a turn states, if they are valid or wait for an answer."""
    thread = memory_thread(conversation.user)
    async with runtime.reading("memories", of=(conversation.tenant, thread)) as conn:
        held = await valid_memories(conn, conversation.tenant, thread, datetime.now(UTC), statuses=("valid", "pending"))
    return [row for row in held if any(source.event_id == turn for source in row.sources)]


async def extract_memories(
    runtime: Runtime, tenant: str, thread: str | None = None, user: str | None = None, rules: Path | None = None
) -> list[Extracted]:
    """Runs the rules and the model over all unread turns, even if they are too few for the background worker.

    thread: the conversation; together with `user`, only that user's turns in it. user alone: all conversations of that
    user. rules: a file to use instead of MEMORY_RULES_FILE. Raises InvalidToken, NothingChosen, NotFound, InvalidRules,
    InvalidPrompt, NotNow, ModelError.
    """
    at = _with_rules(runtime, rules)
    conversations = await _conversations(at, tenant, thread, user)
    models, made = make_models(at.settings), list[Extracted]()
    try:
        extraction = extraction_of(at, models)
        for conversation in conversations:
            with at_once():
                async with at.pool.connection() as conn, locked(conn, conversation):
                    await extraction.by_rules(conn, conversation, finish=True)
                    await extraction.by_model(conn, conversation, flush=True)
            async with at.reading(*READS) as conn:
                progress_key = (conversation.tenant, memory_thread(conversation.user), conversation.thread)
                stages = {stage: await extraction_progress(conn, *progress_key, stage) for stage in ("rules", "llm")}
                made.append(Extracted(conversation.thread, conversation.user, stages))
    finally:
        await models.close()
    return made


async def preview_extraction(
    runtime: Runtime, tenant: str, thread: str | None = None, user: str | None = None, rules: Path | None = None
) -> list[ExtractionPreview]:
    """Returns the findings of the rules in all turns, including turns that were read before; stores nothing. The
    arguments are those of extract_memories.

    Raises InvalidToken, NothingChosen, NotFound, InvalidRules.
    """
    at = _with_rules(runtime, rules)
    writer = MemoryWriter(at.log, at.pool)
    return [await _preview(at, writer, conversation) for conversation in await _conversations(at, tenant, thread, user)]


def _with_rules(runtime: Runtime, rules: Path | None) -> Runtime:
    settings = runtime.settings
    return runtime if rules is None else replace(runtime, settings=settings.model_copy(update={"rules_file": rules}))


async def _conversations(runtime: Runtime, tenant: str, thread: str | None, user: str | None) -> list[UserConversation]:
    """Returns the conversations to extract from. Raises InvalidToken, NotFound, NothingChosen."""
    check_place(tenant, thread, user)
    if thread is None and user is None:
        raise NothingChosen("say which conversation: `turnlog extract THREAD`, or `--user USER` for all of one user")
    await runtime.wait_until_projected(names=READS)
    kinds = roles(runtime.settings.extract_tool_results)
    async with runtime.pool.connection() as conn:
        if thread is not None:
            users = await users_between(conn, tenant, thread, kinds)
            conversations = [UserConversation(tenant, person, thread) for person in users if user in (None, person)]
        else:
            assert user is not None
            conversations = [
                UserConversation(tenant, user, thread_id)
                for thread_id in await conversations_of(conn, tenant, user, kinds)
            ]
    if not conversations:
        raise NotFound("no turn there has a user; `turnlog threads` lists conversations and their users")
    return conversations


async def _preview(runtime: Runtime, writer: MemoryWriter, conversation: UserConversation) -> ExtractionPreview:
    looked = await _looked(runtime, conversation)
    by_id = dict(_by_id(conversation, looked))
    outcomes = await preview(
        writer, Place(conversation.tenant, conversation.user), [memory for memory, _ in by_id.values()]
    )
    memories = tuple(_memory(finding, what) for (_, finding), what in zip(by_id.values(), outcomes, strict=True))
    return ExtractionPreview(conversation.thread, conversation.user, memories, tuple(map(_rejected, looked.rejections)))


def _by_id(conversation: UserConversation, looked: ExtractionResult) -> Iterator[tuple[UUID, tuple[Memory, Finding]]]:
    for finding in looked.findings:
        for memory in candidates(conversation.tenant, conversation.user, [finding]):
            yield memory.id, (memory, finding)


async def _looked(runtime: Runtime, conversation: UserConversation) -> ExtractionResult:
    """Returns the result of the rules for all turns of the conversation."""
    settings = runtime.settings
    tools = settings.extract_tool_results
    conversation_key = (conversation.tenant, conversation.thread, conversation.user)
    async with runtime.pool.connection() as conn:
        zone = await zone_of(conn, conversation.tenant, conversation.user, settings.zone)
        messages = await user_turns(conn, *conversation_key, roles(tools), zone, 0, 2**31, MAX_TURN)
        people = await is_among_people(conn, *conversation_key)
        person = (conversation.tenant, conversation.user)
        keeps_secrets = await remembers_secrets(conn, *person, settings.remember_secrets)
    turns, _others = evidence(messages, conversation.thread, conversation.user, people, tools)
    result = Extractor(load_rules(settings.rules_file)).extract(turns)
    return result if keeps_secrets else without_secrets(result, turns)


def _memory(finding: Finding, outcome: Outcome) -> PreviewedMemory:
    return PreviewedMemory(
        content=finding.content,
        kind=finding.kind,
        outcome=outcome.what,
        question=outcome.question,
        origin=finding.origin,
        rule=finding.rule,
        dedupe_key=finding.dedupe_key,
        strategy=finding.strategy,
        importance=round(finding.importance, 3),
        confidence=finding.confidence,
        expires_at=finding.expires_at,
        quote=finding.source.quote,
        seq=finding.source.seq,
        event_id=finding.source.event_id,
    )


def _rejected(rejection: Rejection) -> RejectedText:
    return RejectedText(rejection.reason, rejection.rule, rejection.detail, rejection.quote, rejection.turn.seq)
