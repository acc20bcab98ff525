"""Events of a session, the short-term memory of one conversation."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from turnlog.events.contracts.base import ERASED, Derivation, EventContract, Frozen


class SegmentRules(Frozen):
    """Decides when a segment ends. recent_turns: number of turns kept in full beside the summary. model_context_window:
    in tokens."""

    token_threshold_ratio: float = Field(default=0.75, gt=0, le=1)
    recent_turns: int = Field(default=8, ge=0)
    model_context_window: int = Field(default=16_000, ge=256)


class SessionCreated(EventContract):
    """A session begins, or begins again: turns before this event do not belong to it.

    after_seq: for a conversation that existed before its session: turns after this sequence belong to the session,
    and turn_count and last_bot_message are computed from them.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"user_snapshot": None, "last_bot_message": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = False
    CONVERSES: ClassVar[bool] = True
    type: Literal["session_created"] = "session_created"
    rules: SegmentRules = SegmentRules()
    agent: str | None = None
    user_snapshot: dict[str, Any] | None = None
    after_seq: int | None = Field(default=None, ge=0)
    turn_count: int = Field(default=0, ge=0)
    last_bot_message: str = ""


class SessionUpdated(EventContract):
    """New values for parts of a session; None leaves a part unchanged.

    It is appended with the expected version of the thread, so that no earlier update is lost.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"global_state": None, "user_snapshot": None}
    MIXES_SPEAKERS: ClassVar[bool] = True
    CONVERSES: ClassVar[bool] = True
    type: Literal["session_updated"] = "session_updated"
    current_agent_key: str | None = None
    global_state: dict[str, Any] | None = None
    user_snapshot: dict[str, Any] | None = None


class SegmentCheckpointRequested(EventContract):
    """A reader saw the token ratio at or over the threshold; a reactor makes the checkpoint.

    through_seq: the last event of the session that the reader saw; later ones are not counted.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {}
    type: Literal["segment_checkpoint_requested"] = "segment_checkpoint_requested"
    rules: SegmentRules
    estimated_tokens: int = Field(ge=0)
    token_ratio: float = Field(ge=0)
    through_seq: int = Field(ge=0)


class SegmentCheckpointed(EventContract):
    """A segment ends with a summary of everything up to covered_seq; later turns make the next segment.

    turns_covered: number of the session's turns that summaries cover now. derivation: None if written by hand.
    """

    PERSONAL: ClassVar[dict[str, Any]] = {"summary": ERASED}
    MIXES_SPEAKERS: ClassVar[bool] = True
    type: Literal["segment_checkpointed"] = "segment_checkpointed"
    summary: str
    recent_turns: int = Field(ge=0)
    covered_seq: int = Field(ge=0)
    turns_covered: int = Field(ge=0)
    trigger: Literal["automatic", "manual"]
    derivation: Derivation | None = None


class SegmentCheckpointFailed(EventContract):
    """All attempts at a checkpoint failed; the session continues in the mode FULL_HISTORY."""

    PERSONAL: ClassVar[dict[str, Any]] = {}
    QUOTES_ERRORS: ClassVar[bool] = True
    type: Literal["segment_checkpoint_failed"] = "segment_checkpoint_failed"
    attempts: int = Field(ge=1)
    error: str
