"""Events of long-term memory. All memory events of a user are on one thread, so they are ordered.

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

    importance, confidence: 0 to 1, as assessed when it was said. value: the normalised value in content ("3.80").
    origin: "user" means entered or edited by hand, "imported" from another product. rule: id of the extraction rule.
    dedupe_key: two valid memories of a user with the same key contradict each other, and strategy decides. valid_from:
    the time from which it holds. expires_at: when the time to live from its rule ends. entities: names of entities it
    is about. metadata: a JSON object of the application's own.
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
    """The new end of a memory's validity. valid_to: None for no end. replaced_by: the memory that holds afterwards."""

    memory_id: UUID
    valid_to: Moment | None = None
    replaced_by: UUID | None = None
    reason: EndReason | None = None


class MemoryRecorded(EventContract):
    """A new memory. intervals: changes to other memories, and to the new one if it loses a conflict at once."""

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = WORDS_OF_A_MEMORY
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memory_recorded"] = "memory_recorded"
    memory: Memory
    intervals: tuple[Interval, ...] = ()
    derivation: Derivation | None = None


class MemoryConfirmed(EventContract):
    """The user said the same again, so the memory gets one more source. importance, confidence: the new values.

    A source that is older than valid_from moves valid_from back. intervals: changes that this causes, to other memories
    or to this one.
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
    """Intervals changed without a new memory: by a revert, a semantic conflict or a new derivation."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memories_revised"] = "memories_revised"
    intervals: tuple[Interval, ...]
    similarity: float | None = None


class Comparison(Frozen):
    """A model's verdict on an earlier memory and a new one. strategy: how to resolve a contradiction."""

    memory_id: UUID
    verdict: Literal["contradicts", "same", "unrelated"]
    strategy: Strategy | None = None


class MemoryCompared(EventContract):
    """A model compared a new memory with similar earlier ones. The event is stored even if nothing changes.

    intervals: of memories that end because of the comparison; a question or a merge is a separate event. error: why no
    model compared the memory, so that only the rules decided.
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
    """A person archived a memory: it is kept but no longer recalled. reason: the person's text."""

    PERSONAL: ClassVar[dict[str, Any]] = {"reason": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["memory_archived"] = "memory_archived"
    memory_id: UUID
    reason: str


class MemoryForgotten(EventContract):
    """The user removed one memory. Every read model deletes its text; the `memories` row stays without words.

    source_ids: event ids of the turns that it came from, so that read models also delete other data derived from them.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_forgotten"] = "memory_forgotten"
    memory_id: UUID
    source_ids: tuple[UUID, ...] = ()


class MemoryConflictRaised(EventContract):
    """The user must decide a conflict (ASK_USER). Until then `memory` is pending, even if it was valid before."""

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
    """The user answered a conflict. intervals: of the memories that change because of the answer."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["memory_conflict_answered"] = "memory_conflict_answered"
    conflict_id: UUID
    answer: Answer
    intervals: tuple[Interval, ...]


class MemoriesAccessed(EventContract):
    """An answer or a person read these memories. Each is listed once, and reading reinforces it."""

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
    """Several memories became one. The rows of closed members stay; the result refers to their sources.

    memory: the result; None if one of the members becomes the result (kept). members: all members, including kept.
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
    """Undoes a compaction: members become valid again, and the new memory that it made (`made`) is closed."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["compaction_undone"] = "compaction_undone"
    compaction_id: UUID
    made: UUID | None = None
    intervals: tuple[Interval, ...]


class UserPreferences(Frozen):
    """How a user wants to be answered. None: not set. language: ISO 639 code. timezone: such as
    Asia/Shanghai. Other names are the application's own, such as school_regions.

    enable_memory: with False, nothing is extracted from the user's turns, and prompts contain no memories.
    secrets: a turn with a password, a key, or the number of a payment card or an identity document is refused, masked
    or kept. Memories may contain a kept secret only if the operator allows it.
    retention_days: older turns of the user are deleted. The shorter of this and the server's own limit applies.
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
    """A person set preferences by hand: the given ones replace earlier ones. cleared: names of preferences to remove.
    v1 had no timezone; v2 allowed only five names of one application, and later versions allow any names; v3 had no
    secrets, v4 no retention_days."""

    VERSION: ClassVar[int] = 5
    PERSONAL: ClassVar[dict[str, Any]] = {"preferences": None, "cleared": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["preferences_set"] = "preferences_set"
    preferences: UserPreferences | None = None
    cleared: tuple[str, ...] = ()


class ProfileWritten(EventContract):
    """A model described the user in a few sentences, which replace the earlier text. memories: for each sentence, ids
    of the memories that it states. lines: ids of all memories that the model read. source_ids: event ids of the turns
    that these memories came from."""

    PERSONAL: ClassVar[dict[str, Any]] = {"sentences": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["profile_written"] = "profile_written"
    sentences: tuple[str, ...]
    memories: tuple[tuple[UUID, ...], ...]
    lines: tuple[UUID, ...]
    source_ids: tuple[UUID, ...] = ()
    derivation: Derivation


class EntityRelation(Frozen):
    """A relation to another entity, `target`. type: "interested_in", "applied_to", "friend_of" or another."""

    type: str
    target: str


class Entity(Frozen):
    """A person or thing that a user speaks of. type: SCHOOL, PERSON, EVENT, TOPIC or another."""

    type: str = Field(max_length=MAX_TYPE_CHARS)
    name: str
    description: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    relations: tuple[EntityRelation, ...] = ()
    sources: tuple[MemorySource, ...] = ()


class EntitiesFound(EventContract):
    """New or known entities of a user. The fields are added to the row with the same type and name."""

    PERSONAL: ClassVar[dict[str, Any]] = {"entities": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["entities_found"] = "entities_found"
    entities: tuple[Entity, ...]
    derivation: Derivation | None = None


class EntitiesCleared(EventContract):
    """Removes all entities of the user that were found or written before this event; memories stay."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["entities_cleared"] = "entities_cleared"


class MemoriesExtracted(EventContract):
    """An extraction over some turns of a conversation has ended. The event is stored even if nothing was found.

    extractor: hash of the rules, or of prompt and model. rejected: reason → number of rejected memories. error: why the
    model was not used, so that only the rules ran.
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
