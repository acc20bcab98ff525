"""Events for operators: erasures, the archive, scheduled jobs, limits and agents."""

from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from turnlog.events.contracts.base import EventContract, Frozen, Moment
from turnlog.events.contracts.memory import MAX_TYPE_CHARS


class Erased(EventContract):
    """The person's data in this thread must be removed from every read model, cache and index."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    REMOVES: ClassVar[bool] = True
    type: Literal["erased"] = "erased"
    reason: str | None = None


class JobRan(EventContract):
    """A scheduled job's run for one due time has ended; the event's id is derived from job and due time."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["job_ran"] = "job_ran"
    job: str = Field(max_length=MAX_TYPE_CHARS)
    due_at: Moment
    duration_ms: float = Field(ge=0)
    counts: dict[str, int] = Field(default_factory=dict)
    errors: int = Field(default=0, ge=0)


# In the order in which they are checked.
LimitName = Literal[
    "concurrent",
    "user_per_minute",
    "user_per_hour",
    "conversation_per_minute",
    "agent_per_minute",
    "tokens_per_day",
    "usd_per_month",
    "embedding_tokens_per_day",
]
Plan = Literal["user", "vip"]
Limit = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class LimitsChanged(EventContract):
    """The limits of a tenant's users were changed; limits that are not given stay as they are.

    plan: vip also applies to admins. A limit of 0 admits nothing.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["limits_changed"] = "limits_changed"
    plan: Plan
    limits: dict[LimitName, Limit] = Field(min_length=1)


AgentType = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]


class AgentConfigured(EventContract):
    """A tenant's agent was configured. The event holds the whole configuration.

    A field that is None takes the value of the agent's team or of the server. tools: names of the tools that it may
    call. delegates: the agents that it may hand a question to.
    """

    VERSION: ClassVar[int] = 2
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["agent_configured"] = "agent_configured"
    agent: AgentType
    system_prompt: str | None = Field(default=None, max_length=100_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    model: str | None = Field(default=None, min_length=1, max_length=200)
    name: str | None = Field(default=None, min_length=1, max_length=200)
    tools: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] | None = Field(default=None, max_length=200)
    delegates: tuple[AgentType, ...] | None = Field(default=None, max_length=100)


class AgentSwitched(EventContract):
    """A tenant's agent was switched on or off."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["agent_switched"] = "agent_switched"
    agent: AgentType
    enabled: bool


class ApiKeyCreated(EventContract):
    """An API key of this event's user was created. digest: an HMAC over the key, tenant, user, role, scopes and
    expiry."""

    PERSONAL: ClassVar[dict[str, Any]] = {"label": None}
    MIXES_SPEAKERS: ClassVar[bool] = False
    type: Literal["api_key_created"] = "api_key_created"
    key_id: str = Field(max_length=MAX_TYPE_CHARS)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    role: str = Field(max_length=MAX_TYPE_CHARS)
    scopes: tuple[Annotated[str, Field(max_length=MAX_TYPE_CHARS)], ...] = Field(max_length=100)
    label: str | None = None
    expires_at: Moment | None = None


class ApiKeyRevoked(EventContract):
    """An API key was revoked: it is refused from now on."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["api_key_revoked"] = "api_key_revoked"
    key_id: str = Field(max_length=MAX_TYPE_CHARS)


class ThreadArchived(EventContract):
    """A conversation's events were written to a file; the read models delete its turns, the log keeps them.

    path: the file, relative to the archive folder. sha256: of the file's bytes.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    ARCHIVES: ClassVar[bool] = True
    type: Literal["thread_archived"] = "thread_archived"
    path: str
    sha256: str
    events: int = Field(ge=0)
    from_seq: int = Field(ge=0)
    through_seq: int = Field(ge=0)


class ArchivedEvent(Frozen):
    """A stored event: its place in the log and its envelope as published."""

    seq: int = Field(ge=1)
    stored_at: Moment
    envelope: str


class ThreadRestored(EventContract):
    """Restores a part of an archived conversation. At the first part the read models delete the conversation's rows;
    the projectors apply the events of every part as if they had just arrived.

    part: from 1 to parts. events: all belong to this event's user, so that the user's key seals them.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"events": ()}
    MIXES_SPEAKERS: ClassVar[bool] = False
    UNSEARCHED: ClassVar[frozenset[str]] = frozenset({"events"})
    ARCHIVES: ClassVar[bool] = True
    type: Literal["thread_restored"] = "thread_restored"
    part: int = Field(ge=1)
    parts: int = Field(ge=1)
    events: tuple[ArchivedEvent, ...]


class UserErased(EventContract):
    """The receipt of an erasure: how much was deleted, and how much the scan found afterwards. It contains none of the
    person's words.

    found_in: table or kind of place → how often the person's words were found there, by this scan or by an earlier one
    whose search strings this scan did not have.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["user_erased"] = "user_erased"
    reason: str | None = None
    keys_destroyed: int = Field(ge=0)
    threads: int = Field(ge=0)
    counts: dict[str, int] = Field(default_factory=dict)
    scanned: dict[str, int] = Field(default_factory=dict)
    strings_searched: int = Field(default=0, ge=0)
    hits: int = Field(default=0, ge=0)
    found_in: dict[str, int] | None = None


class EventRedacted(EventContract):
    """Replaces an event of this thread from which words were redacted: once the message at `seq` is deleted, readers
    find `envelope` there.

    stored_at, event_type: of the replaced event. envelope: as published, sealed if the log has keys.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["event_redacted"] = "event_redacted"
    seq: int = Field(ge=1)
    stored_at: Moment
    event_type: str = Field(max_length=MAX_TYPE_CHARS)
    envelope: str

    def has_words(self) -> bool:
        """Returns whether the envelope is readable without a key, so that an erasure must overwrite this event."""
        return '"sealedkey"' not in self.envelope


class TurnRedacted(EventContract):
    """A turn, or some words of it, were redacted. One event is stored before anything is deleted, and one after the
    search for remains. They contain no words of the turn.

    redaction: the same id in both events. seq: of the turn. whole: True if the entire turn was redacted. by: who asked
    for it. events, removed, memories: numbers of replaced events, of derived events deleted without a replacement, and
    of forgotten memories. hits: None in the first event. found_in: as in UserErased.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["turn_redacted"] = "turn_redacted"
    redaction: UUID
    conversation: str
    turn_id: UUID
    seq: int = Field(ge=1)
    whole: bool
    by: str | None = None
    reason: str | None = None
    events: int = Field(default=0, ge=0)
    removed: int = Field(default=0, ge=0)
    memories: int = Field(default=0, ge=0)
    scanned: dict[str, int] = Field(default_factory=dict)
    strings_searched: int = Field(default=0, ge=0)
    hits: int | None = Field(default=None, ge=0)
    found_in: dict[str, int] | None = None


class TurnsExpired(EventContract):
    """Turns are deleted because they are older than the retention period. One event is stored for each batch of
    conversations before anything is deleted, and one for the run after the search for remains. They contain no words of
    the turns.

    redaction: the same id in all events of a run. threads: ids of the threads whose rows are rebuilt. turns,
    conversations: numbers of deleted turns and of conversations deleted entirely. events, replaced, memories: numbers
    of deleted events, of events replaced by ones without words of those turns, and of forgotten memories. hits: None
    before the search. found_in: as in UserErased.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["turns_expired"] = "turns_expired"
    redaction: UUID
    threads: tuple[str, ...] = ()
    turns: int = Field(default=0, ge=0)
    conversations: int = Field(default=0, ge=0)
    events: int = Field(default=0, ge=0)
    replaced: int = Field(default=0, ge=0)
    memories: int = Field(default=0, ge=0)
    scanned: dict[str, int] = Field(default_factory=dict)
    strings_searched: int = Field(default=0, ge=0)
    hits: int | None = Field(default=None, ge=0)
    found_in: dict[str, int] | None = None
