"""Events of a session, the short-term memory of one conversation (P9, C7; seed B)."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from turnlog.events.frozen import ERASED, Derivation, Frozen


class SegmentRules(Frozen):
    """When a segment ends. recent_turns: how many turns stay in full beside the summary; window in tokens."""

    token_threshold_ratio: float = Field(default=0.75, gt=0, le=1)
    recent_turns: int = Field(default=8, ge=0)
    model_context_window: int = Field(default=16_000, ge=256)


class SessionCreated(Frozen):
    """A session begins; on one that is there, it begins anew: turns before it are no part of it (B, Q7).

    after_seq: a conversation from before it had a session goes on as one: its turns after this sequence are part of
    the session, and turn_count and last_bot_message are what they come to.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"user_snapshot": None, "last_bot_message": ERASED}
    type: Literal["session_created"] = "session_created"
    rules: SegmentRules = SegmentRules()
    agent: str | None = None
    user_snapshot: dict[str, Any] | None = None
    after_seq: int | None = Field(default=None, ge=0)
    turn_count: int = Field(default=0, ge=0)
    last_bot_message: str = ""


class SessionUpdated(Frozen):
    """Whole parts of the session value, each replacing the one before; None leaves a part as it is.

    A writer has seen every earlier event of the thread (expected version), so that no update is lost.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"global_state": None, "user_snapshot": None}
    type: Literal["session_updated"] = "session_updated"
    current_agent_key: str | None = None
    global_state: dict[str, Any] | None = None
    user_snapshot: dict[str, Any] | None = None


class SegmentCheckpointRequested(Frozen):
    """A reader saw the token ratio at or over the threshold; a reactor makes the checkpoint (B: async summary).

    through_seq: the last event of the session that the reader saw; what came later is not in its count.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["segment_checkpoint_requested"] = "segment_checkpoint_requested"
    rules: SegmentRules
    estimated_tokens: int = Field(ge=0)
    token_ratio: float = Field(ge=0)
    through_seq: int = Field(ge=0)


class SegmentCheckpointed(Frozen):
    """A segment ends with a summary of everything up to covered_seq; later turns make the next segment (C7).

    turns_covered: turns of the session that summaries now stand for. derivation: None when it was made by hand.
    """

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {"summary": ERASED}
    type: Literal["segment_checkpointed"] = "segment_checkpointed"
    summary: str
    recent_turns: int = Field(ge=0)
    covered_seq: int = Field(ge=0)
    turns_covered: int = Field(ge=0)
    trigger: Literal["automatic", "manual"]
    derivation: Derivation | None = None


class SegmentCheckpointFailed(Frozen):
    """All tries of a checkpoint failed: the session goes on in FULL_HISTORY (C7)."""

    VERSION: ClassVar[int] = 1
    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["segment_checkpoint_failed"] = "segment_checkpoint_failed"
    attempts: int = Field(ge=1)
    error: str
