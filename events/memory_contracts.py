"""Events of long-term memory (M1–M7, P7, P8; seeds C and E 7–10). All of a user stand on one thread, in one order.

A memory is a claim about a user, with the words that say it. Nothing that was decided is decided again when a read
model is rebuilt: every conflict, closing and merging stands here with what came of it.
"""

from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field

from turnlog.events.frozen import ERASED, Derivation, EventContract, Frozen

MemoryKind = Literal["FACT", "PREFERENCE", "DECISION", "SUMMARY", "FEEDBACK"]
Strategy = Literal["KEEP_LATEST", "KEEP_HIGHEST", "KEEP_OLDEST", "MERGE", "KEEP_BOTH", "ASK_USER"]
Origin = Literal["explicit", "rule", "llm", "user", "compaction"]
Answer = Literal["new", "old", "both"]
EndReason = Literal[
    "superseded", "duplicate", "merged", "edited", "forgotten", "expired", "rejected", "rederived", "reverted"
]
Share = Field(ge=0, le=1)
MAX_KEY_CHARS = 400  # an index row of Postgres holds 2,704 bytes, the thread's name among them
MAX_TYPE_CHARS = 64


class MemorySource(Frozen):
    """A turn and the exact words in it. said_at: when the turn was said, by its event's time."""

    thread: str
    seq: int = Field(ge=1)
    event_id: UUID
    quote: str
    said_at: AwareDatetime


class Memory(Frozen):
    """One claim. Its content never changes: an edit is another memory that replaces it.

    importance, confidence: 0 to 1, as they were when it was said. value: content's normalised value ("3.80").
    origin: "user" is an entry or edit by hand. rule: id of the extraction rule. dedupe_key: two valid memories of a
    user with one key contradict each other, and strategy decides. valid_from: since when it holds. expires_at: its
    rule's time to live. entities: names of entities it is about.
    """

    id: UUID
    kind: MemoryKind
    content: str
    category: str | None = None
    value: str | None = None
    importance: float = Share
    confidence: float = Share
    origin: Origin
    rule: str | None = None
    dedupe_key: str | None = Field(default=None, max_length=MAX_KEY_CHARS)
    strategy: Strategy = "KEEP_LATEST"
    valid_from: AwareDatetime
    expires_at: AwareDatetime | None = None
    sources: tuple[MemorySource, ...] = ()
    entities: tuple[str, ...] = ()


# Of a memory within an event; what kind it is, how important and by which rule stays clear.
WORDS_OF_A_MEMORY: dict[str, Any] = {
    "memory.content": ERASED,
    "memory.category": None,
    "memory.value": None,
    "memory.dedupe_key": None,
    "memory.sources": (),
    "memory.entities": (),
}


class Interval(Frozen):
    """How long a memory holds, from now on. valid_to None: without end. replaced_by: the memory that holds after it."""

    memory_id: UUID
    valid_to: AwareDatetime | None = None
    replaced_by: UUID | None = None
    reason: EndReason | None = None


class MemoryRecorded(EventContract):
    """A memory, and what its coming does to the intervals of others and of its own (a loser is born closed)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = WORDS_OF_A_MEMORY
    type: Literal["memory_recorded"] = "memory_recorded"
    memory: Memory
    intervals: tuple[Interval, ...] = ()
    derivation: Derivation | None = None


class MemoryConfirmed(EventContract):
    """The same was said again: one more source. importance, confidence: what they are since then.

    Said before the memory began, it holds since then; intervals: what that does to others, or its own end to it.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"source.quote": ERASED}
    type: Literal["memory_confirmed"] = "memory_confirmed"
    memory_id: UUID
    source: MemorySource
    importance: float = Share
    confidence: float = Share
    intervals: tuple[Interval, ...] = ()


class MemoriesRevised(EventContract):
    """Intervals changed for another reason than a new memory: a revert, a semantic conflict, a new derivation."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_revised"] = "memories_revised"
    intervals: tuple[Interval, ...]
    similarity: float | None = None


class MemoryRated(EventContract):
    """Somebody said how important a memory is; it decays from here again."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_rated"] = "memory_rated"
    memory_id: UUID
    importance: float = Share


class MemoryForgotten(EventContract):
    """The user wants one memory gone: every read model drops its words and keeps that there was one.

    source_ids: events of the turns that it was said in, so that read models drop what else was taken from there.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_forgotten"] = "memory_forgotten"
    memory_id: UUID
    source_ids: tuple[UUID, ...] = ()


class MemoryConflictRaised(EventContract):
    """ASK_USER: the memory waits, not valid, until the user says which one holds (M5)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {**WORDS_OF_A_MEMORY, "question": ERASED}
    type: Literal["memory_conflict_raised"] = "memory_conflict_raised"
    conflict_id: UUID
    memory: Memory
    against: tuple[UUID, ...]
    question: str
    derivation: Derivation | None = None


class MemoryConflictAnswered(EventContract):
    """The user's answer, and the intervals it leads to."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_conflict_answered"] = "memory_conflict_answered"
    conflict_id: UUID
    answer: Answer
    intervals: tuple[Interval, ...]


class MemoriesAccessed(EventContract):
    """Memories that an answer or a person read, each once: access reinforces them (M4)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_accessed"] = "memories_accessed"
    memory_ids: tuple[UUID, ...]


class MemoriesEmbedded(EventContract):
    """The vectors of these memories stand in the embedding cache under `model` (L7)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_embedded"] = "memories_embedded"
    model: str
    dimensions: int = Field(gt=0)
    memory_ids: tuple[UUID, ...]


class MemoriesReviewed(EventContract):
    """What the daily job decided for one user (M4): by their age and importance at `due_at`."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_reviewed"] = "memories_reviewed"
    due_at: AwareDatetime
    archived: tuple[UUID, ...] = ()
    deleted: tuple[UUID, ...] = ()
    expired: tuple[UUID, ...] = ()


class MemoriesCompacted(EventContract):
    """Several memories became one (M6). The members stay, closed; the one keeps their sources by reference.

    memory: None when a member is what remains (kept). members: every one that took part, the kept one too.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = WORDS_OF_A_MEMORY
    type: Literal["memories_compacted"] = "memories_compacted"
    method: Literal["dedupe", "merge", "summary"]
    members: tuple[UUID, ...]
    kept: UUID | None = None
    memory: Memory | None = None
    intervals: tuple[Interval, ...]
    similarity: float | None = None
    derivation: Derivation | None = None


class CompactionUndone(EventContract):
    """A compaction is taken back: its members hold again as before, and what it made is gone."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["compaction_undone"] = "compaction_undone"
    compaction_id: UUID
    made: UUID | None = None
    intervals: tuple[Interval, ...]


class EntityRelation(Frozen):
    """type: "interested_in", "applied_to", "friend_of" …"""

    type: str
    target: str


class Entity(Frozen):
    """Somebody or something a user speaks of. type: SCHOOL, PERSON, EVENT, TOPIC or another (open set)."""

    type: str = Field(max_length=MAX_TYPE_CHARS)
    name: str
    description: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    relations: tuple[EntityRelation, ...] = ()
    sources: tuple[MemorySource, ...] = ()


class EntitiesFound(EventContract):
    """Entities of a user, new or known: one row per type and name; what is given here is added to it (P8)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"entities": ()}
    type: Literal["entities_found"] = "entities_found"
    entities: tuple[Entity, ...]
    derivation: Derivation | None = None


class MemoriesExtracted(EventContract):
    """One look at some turns of a conversation is over, whatever it found (M2).

    extractor: hash of the rules, or of prompt and model. rejected: reason → how many. error: why the model's part
    was left out (rules alone then, E 13.3).
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_extracted"] = "memories_extracted"
    conversation: str
    stage: Literal["rules", "llm"]
    from_seq: int = Field(ge=0)
    through_seq: int = Field(ge=0)
    extractor: str
    found: int = Field(default=0, ge=0)
    stored: int = Field(default=0, ge=0)
    rejected: dict[str, int] = Field(default_factory=dict)
    error: str | None = None
    derivation: Derivation | None = None


class JobRan(EventContract):
    """A scheduled job's run of one due time is over (M4, M6); the event's id follows from job and due time."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["job_ran"] = "job_ran"
    job: str = Field(max_length=MAX_TYPE_CHARS)
    due_at: AwareDatetime
    duration_ms: float = Field(ge=0)
    counts: dict[str, int] = Field(default_factory=dict)
    errors: int = Field(default=0, ge=0)


class ThreadArchived(EventContract):
    """A cold conversation's events stand in a file (L4); the read models drop its turns, the log keeps them.

    path: of the file, below the archive's folder. sha256: of its bytes.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["thread_archived"] = "thread_archived"
    path: str
    sha256: str
    events: int = Field(ge=0)
    from_seq: int = Field(ge=0)
    through_seq: int = Field(ge=0)


class ArchivedEvent(Frozen):
    """An event as it stood in the log: its place and its envelope as it was published."""

    seq: int = Field(ge=1)
    stored_at: AwareDatetime
    envelope: str


class ThreadRestored(EventContract):
    """A part of an archived conversation comes back: the first takes what the read models have of the conversation
    away, and projectors apply the events of each as if they came now.

    part: from 1; the last one has part == parts. events: of one user, the event's own, so that their key seals them.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"events": ()}
    type: Literal["thread_restored"] = "thread_restored"
    part: int = Field(ge=1)
    parts: int = Field(ge=1)
    events: tuple[ArchivedEvent, ...]


class UserErased(EventContract):
    """The receipt of an erasure (M9): what was destroyed, by number, and what the scan after it found. No words."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["user_erased"] = "user_erased"
    reason: str | None = None
    keys_destroyed: int = Field(ge=0)
    threads: int = Field(ge=0)
    counts: dict[str, int] = Field(default_factory=dict)
    scanned: dict[str, int] = Field(default_factory=dict)
    strings_searched: int = Field(default=0, ge=0)
    hits: int = Field(default=0, ge=0)
