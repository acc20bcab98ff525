"""Changes memories at a person's request: remember, edit, rate, archive, revert, forget, answer, undo a compaction.

`reference` names a memory as in memories.find_memory: its id, the beginning of its id, or words that only this memory
contains.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import with_config

from turnlog.agent.context.about_memory import asks_to_forget_all, to_forget
from turnlog.agent.memory.deciding.by_hand import InvalidMemory, checked_reason
from turnlog.agent.memory.deciding.outcomes import Outcome
from turnlog.agent.memory.deciding.revisions import newer_version
from turnlog.agent.memory.deciding.service import Memories
from turnlog.agent.memory.deciding.writing import MemoryWriter, Place
from turnlog.agent.memory.extraction.by_rules import Extractor
from turnlog.agent.memory.extraction.evidence import own_words
from turnlog.agent.memory.extraction.findings import Turn
from turnlog.agent.memory.extraction.rules import load_rules
from turnlog.agent.memory.memories import READS, check_kinds, find_memory, list_conflicts
from turnlog.agent.memory.sanitiser.sanitise import holds_secret
from turnlog.agent.memory.upkeep.compaction import undo_compaction as compaction_undone
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import Answer, MemoryKind
from turnlog.events.errors import NotFound, TurnlogError
from turnlog.events.local_time import local, now_there
from turnlog.projectors.models.memories.history_lookup import history
from turnlog.projectors.models.memories.lookup import Conflict, StoredMemory, remembers_secrets, valid_memories, zone_of
from turnlog.projectors.models.memories.vectors import Compaction, compactions
from turnlog.projectors.models.terms import terms

MOST_SEARCHED = 10_000
# Other words that people use for the subject of a memory with this key.
_ALSO_CALLED = {
    "phone": "phone telephone cell mobile number 电话 电话号码 手机 手机号 手机号码 联系电话",
    "email": "email e-mail mail address 邮箱 邮箱地址 电子邮箱 电子邮件 邮件地址",
}
_GIVEN = ("kind", "category", "importance", "expires_at", "metadata")
_FROM_RULES = ("kind", "category", "value", "importance", "rule", "dedupe_key", "strategy", "expires_at")


_ANSWERS: dict[Answer, frozenset[str]] = {
    "new": frozenset({"new", "the new one", "新", "新的", "以新的为准"}),
    "old": frozenset({"old", "the old one", "旧", "旧的", "以旧的为准"}),
    "both": frozenset({"both", "both of them", "都", "都对", "两个都是", "都算"}),
}


class AmbiguousConflict(TurnlogError):
    """The input matches more than one question."""

    code = "ambiguous-conflict"


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class MemoryInput:
    """A memory that a person enters. If a field is None, its value comes from an extraction rule that matches the
    content, or else from a default. importance: 0 to 1. expires_at: end of its time to live, with a time zone.
    metadata: a JSON object of up to 4,000 bytes; it is stored with the memory, is personal data like its content, and
    is never sent to a model."""

    content: str
    kind: MemoryKind | None = None
    category: str | None = None
    importance: float | None = None
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """An edited memory. memory: the id of the present version; replaced: the id of the edited one, the same if nothing
    changed."""

    memory: UUID
    replaced: UUID
    before: str
    content: str


@dataclass(frozen=True, slots=True)
class Rated:
    memory: UUID
    importance: float
    content: str


@dataclass(frozen=True, slots=True)
class Reverted:
    """The memory that is valid again."""

    memory: UUID
    content: str


@dataclass(frozen=True, slots=True)
class ArchivedMemory:
    memory: UUID
    reason: str
    content: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The ids of all memories whose content was dropped, including those with the same words. newer: the latest
    version of the memory, if it replaced the forgotten one and therefore stays."""

    forgotten: tuple[UUID, ...]
    newer: UUID | None = None


@dataclass(frozen=True, slots=True)
class ForgottenAsAsked:
    """The result of a request to forget. words: the words that name the memory; None for a request to forget
    everything, which is not possible in a chat message. named: id and content of the memories that match the words.
    done: True if exactly one memory matched; it is forgotten."""

    words: str | None
    named: tuple[tuple[UUID, str], ...]
    done: bool


@dataclass(frozen=True, slots=True)
class ConflictAnswered:
    conflict: UUID
    answer: Answer
    question: str


@dataclass(frozen=True, slots=True)
class UndoneCompaction:
    """An undone merge. memories: ids of the memories that are valid again; () if it was undone before."""

    compaction: UUID
    memories: tuple[UUID, ...]


async def remember(
    runtime: Runtime, tenant: str, user: str, memory: str | MemoryInput, memory_id: UUID | None = None
) -> Outcome:
    """Stores one claim. If a rule matches all of it, the memory gets the key of the rule, so that later claims can
    contradict it.

    memory_id: a repeated call with the same id changes nothing. Raises InvalidToken, InvalidMemory, InvalidRules.
    """
    memory_input = MemoryInput(memory) if isinstance(memory, str) else memory
    await check_no_secret(runtime, tenant, user, memory_input.content)
    chosen = {name: value for name in _GIVEN if (value := getattr(memory_input, name)) is not None}
    if memory_input.kind is not None:
        check_kinds([memory_input.kind])
    async with runtime.pool.connection() as conn:
        zone = await zone_of(conn, tenant, user, runtime.settings.zone)
    fields = fields_by_rules(runtime.settings, memory_input.content, local(now_there(), zone)) | chosen
    return await _memories(runtime).remember(tenant, user, memory_input.content, id_=memory_id, **fields)


async def edit_memory(runtime: Runtime, tenant: str, user: str, reference: str, content: str) -> Edited:
    """Replaces a memory with a new version; the previous version stays in the history.

    Raises InvalidToken, NotFound, AmbiguousMemory, InvalidMemory, MemoryNotInUse.
    """
    await check_no_secret(runtime, tenant, user, content)
    row = await find_memory(runtime, tenant, user, reference)
    now = await _memories(runtime).edit(tenant, user, row.id, content)
    return Edited(now, row.id, row.content, content)


async def rate_memory(runtime: Runtime, tenant: str, user: str, reference: str, importance: float) -> Rated:
    """Sets a memory's importance, 0 to 1; it decays from now on.

    Raises InvalidToken, NotFound, AmbiguousMemory, InvalidMemory.
    """
    row = await find_memory(runtime, tenant, user, reference)
    await _memories(runtime).rate(tenant, user, row.id, importance)
    return Rated(row.id, importance, row.content)


async def archive_memory(runtime: Runtime, tenant: str, user: str, reference: str, reason: str) -> ArchivedMemory:
    """Archives a memory: it is kept, but not recalled until it is reverted or said again. reason: at most 500
    characters.

    Raises InvalidToken, NotFound, AmbiguousMemory, InvalidMemory for a bad reason, MemoryNotInUse.
    """
    row, why = await find_memory(runtime, tenant, user, reference), checked_reason(reason)
    await _memories(runtime).archive(tenant, user, row.id, why)
    return ArchivedMemory(row.id, why, row.content)


async def revert_memory(runtime: Runtime, tenant: str, user: str, reference: str) -> Reverted:
    """Makes an earlier version valid again and ends its replacements; makes an archived memory valid again.

    Raises InvalidToken, NotFound, AmbiguousMemory, NothingToRevert.
    """
    row = await find_memory(runtime, tenant, user, reference)
    await _memories(runtime).revert(tenant, user, row.id)
    return Reverted(row.id, row.content)


async def forget_memory(runtime: Runtime, tenant: str, user: str, reference: str) -> Forgotten:
    """Drops the content of a memory, and of its duplicates and the versions that it replaced by an edit, from every
    read model. This cannot be undone. A newer version of the memory stays.

    Raises InvalidToken, NotFound, AmbiguousMemory.
    """
    row = await find_memory(runtime, tenant, user, reference)
    gone = tuple(await _memories(runtime).forget(tenant, user, row.id))
    if row.replaced_by is None:
        return Forgotten(gone)
    async with runtime.reading(*READS) as conn:
        rows = await history(conn, tenant, Place(tenant, user).thread, row.id)
    return Forgotten(gone, newer_version(row.id, rows))


async def forget_as_asked(runtime: Runtime, tenant: str, user: str, text: str) -> ForgottenAsAsked | None:
    """Forgets the memory that a chat message asks to forget, if the message names exactly one; returns None if the
    message does not ask to forget.

    A message names a memory that contains all of its words, in any form: "that I live in Rome" names "Lives in Rome".
    If no memory contains all of them, words for the memory's subject and words of its quotes count too. Raises
    InvalidToken.
    """
    said = own_words(text)
    if asks_to_forget_all(said):
        return ForgottenAsAsked(None, (), False)
    if (what := to_forget(said)) is None:
        return None
    words, thread = set(terms(what)), Place(tenant, user).thread
    async with runtime.reading(*READS) as conn:
        held = await valid_memories(conn, tenant, thread, now_there(), limit=MOST_SEARCHED)
    named = [row for row in held if words and words <= set(terms(row.content))]
    named = named or [
        row
        for row in held
        if words & (names := _names(row))
        and words <= names | {term for source in row.sources for term in terms(source.quote)}
    ]
    if len(named) == 1:
        await _memories(runtime).forget(tenant, user, named[0].id)
    return ForgottenAsAsked(what, tuple((row.id, row.content) for row in named), len(named) == 1)


def _names(row: StoredMemory) -> set[str]:
    key = row.dedupe_key or ""
    return {*terms(row.content), *terms(key.replace(":", " ")), *terms(_ALSO_CALLED.get(key, ""))}


async def forget_all(runtime: Runtime, tenant: str, user: str) -> int:
    """Drops the content of every memory of a user, including ended ones, from every read model; returns the number of
    memories.

    Nothing is extracted again from turns that were the source of a memory. Raises InvalidToken.
    """
    count = await _memories(runtime).forget_all(tenant, user)
    await runtime.wait_until_projected(names=READS)
    return count


async def answer_conflict(
    runtime: Runtime, tenant: str, user: str, answer: Answer, id_prefix: str | None = None
) -> ConflictAnswered:
    """Answers a question: the new memory, the old one or both stay valid. id_prefix: the question's id or its
    beginning; None for the only open question. Raises InvalidToken, NotFound, AmbiguousConflict, QuestionSettled.
    """
    question = _the_question(await list_conflicts(runtime, tenant, user, id_prefix is not None), id_prefix)
    await _memories(runtime).answer(tenant, user, question.conflict_id, answer)
    return ConflictAnswered(question.conflict_id, answer, question.question)


def answer_in(text: str) -> Answer | None:
    """Returns the answer that a line of a chat gives to a question; None if the line is not an answer."""
    said = text.strip(" .。!！").lower()
    return next((answer for answer, words in _ANSWERS.items() if said in words), None)


async def list_compactions(runtime: Runtime, tenant: str, user: str) -> list[Compaction]:
    """Returns the compactions with the memories that they merged, newest first. Raises InvalidToken."""
    thread = Place(tenant, user).thread
    async with runtime.reading(*READS) as conn:
        return await compactions(conn, tenant, thread)


async def undo_compaction(runtime: Runtime, tenant: str, user: str, compaction: UUID) -> UndoneCompaction:
    """Makes the members of a compaction valid again; the job will not merge them again. Raises InvalidToken,
    NotFound."""
    reopened = await compaction_undone(MemoryWriter(runtime.log, runtime.pool), Place(tenant, user), compaction)
    return UndoneCompaction(compaction, tuple(reopened))


def fields_by_rules(settings: Settings, text: str, at: datetime) -> dict[str, Any]:
    """Returns fields of Memory if the text is exactly one claim that a rule recognises, otherwise {}. Raises
    InvalidRules.

    A text that says more gets no key, because the next claim with that key would end the rest of it too.
    """
    turn = Turn(thread="by hand", seq=1, event_id=UUID(int=0), said_at=at, text=text)
    finding = Extractor(load_rules(settings.rules_file)).only_finding(turn)
    return {name: getattr(finding, name) for name in _FROM_RULES} if finding is not None else {}


async def check_no_secret(runtime: Runtime, tenant: str, user: str, content: str) -> None:
    """Raises InvalidMemory if the content contains a secret, unless the settings allow secrets and the user does not
    object."""
    if not holds_secret(content):
        return
    async with runtime.pool.connection() as conn:
        if not await remembers_secrets(conn, tenant, user, runtime.settings.remember_secrets):
            raise InvalidMemory(
                "a memory must not contain a password, key or card number, because it goes to models; "
                "MEMORY_REMEMBER_SECRETS=true allows it, unless the user's preference is secrets=mask or refuse"
            )


def _the_question(conflicts: list[Conflict], id_prefix: str | None) -> Conflict:
    if id_prefix is None and len(conflicts) > 1:
        raise AmbiguousConflict(
            f"{len(conflicts)} questions are open; give the id of one, as `turnlog conflicts` lists them"
        )
    matching = [conflict for conflict in conflicts if str(conflict.conflict_id).startswith((id_prefix or "").lower())]
    if len(matching) > 1:
        raise AmbiguousConflict(f"{len(matching)} questions begin with {id_prefix!r}; give more of the id")
    if not matching:
        missing = f"no question {id_prefix}" if id_prefix else "no open question"
        raise NotFound(f"there is {missing}; `turnlog conflicts` lists them")
    return matching[0]


def _memories(runtime: Runtime) -> Memories:
    return Memories(runtime.log, runtime.pool)
