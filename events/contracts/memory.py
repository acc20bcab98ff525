"""Events of long-term memory. All memory events of a user are on one thread, so they have one order.

A memory is a claim about a user, with the words that support it. Decisions are not repeated when a read model is
rebuilt, because an event contains the outcome of every conflict, closing and merge.
"""

from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from turnlog.events.contracts.base import ERASED, Derivation, EventContract, Frozen, Moment

MemoryKind = Literal["FACT", "PREFERENCE", "DECISION", "SUMMARY", "FEEDBACK"]
Strategy = Literal["KEEP_LATEST", "KEEP_HIGHEST", "KEEP_OLDEST", "MERGE", "KEEP_BOTH", "ASK_USER"]
Origin = Literal["explicit", "rule", "llm", "user", "compaction", "imported"]
Answer = Literal["new", "old", "both"]
Style = Literal["friendly", "professional", "casual"]
Length = Literal["brief", "moderate", "detailed"]
SecretPolicy = Literal["refuse", "mask", "keep"]
RetentionDays = Annotated[int, Field(ge=1, le=36_500)]
EndReason = Literal[
    "superseded", "duplicate", "merged", "edited", "forgotten", "expired", "rejected", "rederived", "reverted"
]
Share = Field(ge=0, le=1)
MAX_KEY_CHARS = 400  # an index row of Postgres has at most 2,704 bytes, including the thread's name
MAX_TYPE_CHARS = 64
PreferenceText = Annotated[str, Field(min_length=1, max_length=100)]
PreferenceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
OwnPreference = PreferenceText | Annotated[tuple[PreferenceText, ...], Field(max_length=20)] | None


class MemorySource(Frozen):
    """A turn and the exact words in it. said_at: the time of the turn's event."""

    thread: str
    seq: int = Field(ge=1)
    event_id: UUID
    quote: str
    said_at: Moment


class Memory(Frozen):
    """One claim. Its content never changes: an edit is a new memory that replaces it.

    importance, confidence: 0 to 1, as assessed when it was said. value: content's normalised value ("3.80").
    origin: "user" is an entry or edit by hand, "imported" one of another product. rule: id of the extraction rule.
    dedupe_key: two valid memories of a user with one key contradict each other, and strategy decides. valid_from: since
    when it holds. expires_at: its rule's time to live. entities: names of entities it is about. metadata: a JSON object
    of the application's own.
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
    valid_from: Moment
    expires_at: Moment | None = None
    sources: tuple[MemorySource, ...] = ()
    entities: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None


# Personal fields of a memory inside an event; its type, importance and rule stay unencrypted.
WORDS_OF_A_MEMORY: dict[str, Any] = {
    "memory.content": ERASED,
    "memory.category": None,
    "memory.value": None,
    "memory.dedupe_key": None,
    "memory.sources": (),
    "memory.entities": (),
    "memory.metadata": None,
}


class Interval(Frozen):
    """The new validity of a memory. valid_to None: without end. replaced_by: the memory that holds after it."""

    memory_id: UUID
    valid_to: Moment | None = None
    replaced_by: UUID | None = None
    reason: EndReason | None = None


class MemoryRecorded(EventContract):
    """A new memory, and the intervals it changes: those of others and its own (a loser begins closed)."""

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = WORDS_OF_A_MEMORY
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memory_recorded"] = "memory_recorded"
    memory: Memory
    intervals: tuple[Interval, ...] = ()
    derivation: Derivation | None = None


class MemoryConfirmed(EventContract):
    """The same was said again: one more source. importance, confidence: the new values.

    A source from before valid_from moves valid_from back; intervals: those of others, or its own, that this changes.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"source.quote": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memory_confirmed"] = "memory_confirmed"
    memory_id: UUID
    source: MemorySource
    importance: float = Share
    confidence: float = Share
    intervals: tuple[Interval, ...] = ()


class MemoriesRevised(EventContract):
    """Intervals changed for another reason than a new memory: a revert, a semantic conflict, a new derivation."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_revised"] = "memories_revised"
    intervals: tuple[Interval, ...]
    similarity: float | None = None


class Comparison(Frozen):
    """How an earlier memory relates to a new one, as a model sees it. strategy: of a contradiction."""

    memory_id: UUID
    verdict: Literal["contradicts", "same", "unrelated"]
    strategy: Strategy | None = None


class MemoryCompared(EventContract):
    """A model compared a new memory with earlier ones that are near it, also if nothing follows from it.

    intervals: of memories that end because of it; a question or a merge is an event of its own. error: why no model
    compared it, so that only the rules decided.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    QUOTES_ERRORS: ClassVar[bool] = True
    type: Literal["memory_compared"] = "memory_compared"
    memory_id: UUID
    comparisons: tuple[Comparison, ...] = ()
    intervals: tuple[Interval, ...] = ()
    error: str | None = None
    derivation: Derivation | None = None


class MemoryRated(EventContract):
    """A person set a memory's importance; its decay starts again from this event."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_rated"] = "memory_rated"
    memory_id: UUID
    importance: float = Share


class MemoryArchived(EventContract):
    """A person archived a memory: it is kept and not recalled. reason: the person's text."""

    PERSONAL: ClassVar[dict[str, Any]] = {"reason": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memory_archived"] = "memory_archived"
    memory_id: UUID
    reason: str


class MemoryForgotten(EventContract):
    """The user removed one memory: every read model drops its text and keeps that it existed.

    source_ids: events of the turns it came from, so that read models drop everything else derived from those words.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_forgotten"] = "memory_forgotten"
    memory_id: UUID
    source_ids: tuple[UUID, ...] = ()


class MemoryConflictRaised(EventContract):
    """ASK_USER: the memory, new or valid until now, is not valid until the user decides which one holds."""

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {**WORDS_OF_A_MEMORY, "question": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memory_conflict_raised"] = "memory_conflict_raised"
    conflict_id: UUID
    memory: Memory
    against: tuple[UUID, ...]
    question: str
    derivation: Derivation | None = None


class MemoryConflictAnswered(EventContract):
    """The user's answer, and the intervals it changes."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_conflict_answered"] = "memory_conflict_answered"
    conflict_id: UUID
    answer: Answer
    intervals: tuple[Interval, ...]


class MemoriesAccessed(EventContract):
    """Memories that an answer or a person read, each once: access reinforces them."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_accessed"] = "memories_accessed"
    memory_ids: tuple[UUID, ...]


class MemoriesEmbedded(EventContract):
    """The vectors of these memories are stored in the embedding cache under `model`."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_embedded"] = "memories_embedded"
    model: str
    dimensions: int = Field(gt=0)
    memory_ids: tuple[UUID, ...]


class MemoriesReviewed(EventContract):
    """The daily job's decisions about one user's memories, by age and importance at `due_at`."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_reviewed"] = "memories_reviewed"
    due_at: Moment
    archived: tuple[UUID, ...] = ()
    deleted: tuple[UUID, ...] = ()
    expired: tuple[UUID, ...] = ()


class MemoriesCompacted(EventContract):
    """Several memories became one. The members are closed and kept; the result refers to their sources.

    memory: None if one of the members is kept as the result (kept). members: all of them, including the kept one.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = WORDS_OF_A_MEMORY
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memories_compacted"] = "memories_compacted"
    method: Literal["dedupe", "merge", "summary"]
    members: tuple[UUID, ...]
    kept: UUID | None = None
    memory: Memory | None = None
    intervals: tuple[Interval, ...]
    similarity: float | None = None
    derivation: Derivation | None = None


class CompactionUndone(EventContract):
    """Undoes a compaction: its members are valid as before, and its result is removed."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["compaction_undone"] = "compaction_undone"
    compaction_id: UUID
    made: UUID | None = None
    intervals: tuple[Interval, ...]


class UserPreferences(Frozen):
    """How a user wants to be answered. None: not set. language: ISO 639 code. timezone: such as
    Asia/Shanghai. Other names are the application's own, such as school_regions.

    enable_memory False: nothing is extracted from what the user says, and no memory goes into a prompt.
    secrets: whether the user's turns with a password, a key or the number of a card or of a person are refused, stored
    with it masked, or kept; kept ones are remembered where the operator allows it.
    retention_days: turns of the user that are older leave turnlog; None keeps them.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[PreferenceName, OwnPreference]

    communication_style: Style | None = None
    response_length: Length | None = None
    language: PreferenceText | None = None
    enable_memory: bool | None = None
    enable_suggestions: bool | None = None
    timezone: PreferenceText | None = None
    secrets: SecretPolicy | None = None
    retention_days: RetentionDays | None = None


class PreferencesSet(EventContract):
    """A person set preferences by hand: the given ones replace earlier ones. cleared: names of preferences that are
    removed. v1 had no timezone; v2 had five names of one application, which v3 keeps among any others; v3 had no
    secrets, v4 no retention_days."""

    VERSION: ClassVar[int] = 5
    PERSONAL: ClassVar[dict[str, Any]] = {"preferences": None, "cleared": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["preferences_set"] = "preferences_set"
    preferences: UserPreferences | None = None
    cleared: tuple[str, ...] = ()


class ProfileWritten(EventContract):
    """A model wrote who the user is, from the lines of the profile; it replaces the text before. memories: for each
    sentence, those whose lines it says. lines: all that the model read. source_ids: events of the turns they came
    from."""

    PERSONAL: ClassVar[dict[str, Any]] = {"sentences": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["profile_written"] = "profile_written"
    sentences: tuple[str, ...]
    memories: tuple[tuple[UUID, ...], ...]
    lines: tuple[UUID, ...]
    source_ids: tuple[UUID, ...] = ()
    derivation: Derivation


class EntityRelation(Frozen):
    """type: "interested_in", "applied_to", "friend_of" …"""

    type: str
    target: str


class Entity(Frozen):
    """A person or thing a user speaks of. type: SCHOOL, PERSON, EVENT, TOPIC or another (open set)."""

    type: str = Field(max_length=MAX_TYPE_CHARS)
    name: str
    description: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    relations: tuple[EntityRelation, ...] = ()
    sources: tuple[MemorySource, ...] = ()


class EntitiesFound(EventContract):
    """Entities of a user, new or known: one row per type and name; the given fields are added to it."""

    PERSONAL: ClassVar[dict[str, Any]] = {"entities": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["entities_found"] = "entities_found"
    entities: tuple[Entity, ...]
    derivation: Derivation | None = None


class EntitiesCleared(EventContract):
    """Removes every entity that was found or written of the user before; memories stay."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["entities_cleared"] = "entities_cleared"


class MemoriesExtracted(EventContract):
    """An extraction over some turns of a conversation has ended, also if it found nothing.

    extractor: hash of the rules, or of prompt and model. rejected: reason → how many. error: why the model was left
    out (only the rules ran).
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    QUOTES_ERRORS: ClassVar[bool] = True
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
