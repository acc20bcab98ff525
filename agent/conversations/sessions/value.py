"""The session value and the requests and results of short-term memory, with snake_case fields; and the events that
requests become. Pure.

Times are whole Unix seconds. Every model is immutable: change one with `model_copy(update=...)`.
"""

from typing import Annotated, Any
from uuid import UUID

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.sessions.history import summary_text
from turnlog.events.contracts import EventData, SessionUpdated, TurnOrigin, TurnRecorded
from turnlog.events.errors import TurnlogError
from turnlog.events.texts import storable
from turnlog.projectors.models.conversation.message import Message
from turnlog.projectors.models.sessions.state import Mode, SessionState, turns_of


class _Part(BaseModel):
    """A part of the session value that keeps unknown keys, so that other domains can store their own fields."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


class Meta(_Part):
    conversation_id: str
    user_id: str | None = None
    updated_at: int = Field(description="Unix seconds")


class FlowContext(_Part):
    current_agent_key: str = ""
    last_bot_message: str = ""
    turn_count: int = 0


class WindowMessage(_Part):
    """A message of the session's window. name: the speaker, if it differs from the role. origin: where a user turn's
    words come from if they are not the user's."""

    role: str
    content: str
    name: str | None = None
    origin: TurnOrigin | None = None


class MessageContext(_Part):
    """The messages of a session. window_messages: the segment's last turns. cached_checkpoint: the checkpoint in the
    form that a history shows."""

    summary: str = ""
    window_messages: tuple[WindowMessage, ...] = ()
    mode: Mode = "FULL_HISTORY"
    checkpoint_message_id: str = ""
    cached_checkpoint: str | None = None


class GlobalState(_Part):
    shared: dict[str, Any] = Field(default_factory=dict)
    entities: dict[str, Any] = Field(default_factory=dict)
    agent_slots: dict[str, Any] = Field(default_factory=dict)
    current_intent: str = ""
    pending_action: dict[str, Any] | None = None


class UserSnapshot(_Part):
    """A user's medical facts and preferences. chronic_diseases: older clients call it `history`; both are read."""

    user_id: str = ""
    name: str = ""
    allergies: tuple[str, ...] = ()
    chronic_diseases: tuple[str, ...] = Field(
        default=(), validation_alias=AliasChoices("chronic_diseases", "history"), serialization_alias="chronic_diseases"
    )
    surgery_history: tuple[str, ...] = ()
    preferences: tuple[str, ...] = ()


class SessionValue(_Part):
    """The whole session."""

    meta: Meta
    flow_context: FlowContext = FlowContext()
    message_context: MessageContext = MessageContext()
    global_state: GlobalState = GlobalState()
    user_snapshot: UserSnapshot = UserSnapshot()


# A Go client sends "" for an absent value.
Given = Annotated[str | None, BeforeValidator(lambda value: None if value == "" else value)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemoryCreateRequest(_Request):
    """The request to create a session. token_threshold_ratio, recent_turns, model_context_window: None means the value
    of the settings."""

    conversation_id: str = Field(min_length=1)
    user_id: Given = None
    agent_code: Given = None
    token_threshold_ratio: float | None = Field(default=None, gt=0, le=1)
    recent_turns: int | None = Field(default=None, ge=0)
    model_context_window: int | None = Field(default=None, ge=256)
    user_snapshot: UserSnapshot | None = None


class MemoryQueryRequest(_Request):
    """Asks for the history of a prompt. query: the user's message that is not on the log yet. The last three: None uses
    the session's rule.

    enterprise_id must be the memory's tenant and patient_id the session's user, when they are given.
    """

    conversation_id: str = Field(min_length=1)
    enterprise_id: Given = None
    patient_id: Given = None
    query: str = ""
    token_threshold_ratio: float | None = Field(default=None, gt=0, le=1)
    recent_turns: int | None = Field(default=None, ge=0)
    model_context_window: int | None = Field(default=None, ge=256)


class MemoryContext(_Part):
    """The memory for a prompt. full_history: the summary and the whole current segment. history: the same without the
    oldest turns that do not fit into the window; the newest turn always stays.

    estimated_tokens: real counts of full_history and query; token_ratio: of the window, above 1 when it overflows.
    """

    conversation_id: str
    mode: Mode
    session: SessionValue
    history: str
    full_history: str
    estimated_tokens: int
    token_ratio: float
    should_checkpoint_summary: bool


class MemoryWriteRequest(_Request):
    """One turn: question or answer may be empty, not both. user_id: None uses the session's.

    turn_id: chosen by the caller, new for each turn; a call that got no answer is repeated with the same one.
    """

    conversation_id: str = Field(min_length=1)
    user_id: Given = None
    agent_code: Given = None
    user_query: str = ""
    agent_response: str = ""
    turn_id: UUID | None = None


class MemoryWriteResult(_Part):
    conversation_id: str
    mode: Mode
    updated_at: int = Field(description="Unix seconds")


def session_value(state: SessionState, recent_turns: int | None = None) -> SessionValue:
    """Returns the session in the form that clients get. recent_turns: how many of the segment's turns go into
    window_messages; None: the session's rule."""
    count = state.rules.recent_turns if recent_turns is None else recent_turns
    snapshot = UserSnapshot.model_validate(state.user_snapshot)
    return SessionValue(
        meta=Meta(conversation_id=state.thread, user_id=state.user, updated_at=int(state.updated_at.timestamp())),
        flow_context=FlowContext(
            current_agent_key=state.current_agent_key or "",
            last_bot_message=state.last_bot_message,
            turn_count=state.turn_count,
        ),
        message_context=_message_context(state, count),
        global_state=GlobalState.model_validate(state.global_state),
        user_snapshot=snapshot if snapshot.user_id else snapshot.model_copy(update={"user_id": state.user or ""}),
    )


def mode_of(state: SessionState) -> Mode:
    """Returns the mode; old data without a checkpoint id counts as FULL_HISTORY, regardless of its stored mode."""
    return state.mode if state.checkpoint_id is not None else "FULL_HISTORY"


def summary_of(state: SessionState) -> str:
    """Returns the summary before the segment; "" if the segment is the complete session."""
    return state.summary if mode_of(state) == "SUMMARY_N" else ""


def _message_context(state: SessionState, count: int) -> MessageContext:
    summary = summary_of(state)
    turns = turns_of(state.segment)[-count:] if count else []
    return MessageContext(
        summary=summary,
        window_messages=tuple(_window_message(message) for turn in turns for message in turn),
        mode=mode_of(state),
        checkpoint_message_id=str(state.checkpoint_id or ""),
        cached_checkpoint=summary_text(summary).rstrip() or None,
    )


def _window_message(message: Message) -> WindowMessage:
    origin = message.origin if message.role == "user" and message.origin != "person" else None
    content = content_text(message.content)
    return WindowMessage(role=message.role, content=content, name=message.name, origin=origin)


class SessionChanges(_Request):
    """Changes of a session; None leaves a part as it is. global_state, user_snapshot: JSON merge patches (RFC 7396),
    in which null removes a key."""

    current_agent_key: str | None = None
    global_state: dict[str, Any] | None = None
    user_snapshot: dict[str, Any] | None = None

    def of(self, session: SessionValue) -> SessionValue:
        """Returns the session with these changes. Raises ValidationError for a part that is then not valid."""
        document = session.model_dump(mode="json")
        if self.current_agent_key is not None:
            document["flow_context"]["current_agent_key"] = self.current_agent_key
        for part, patch in (("global_state", self.global_state), ("user_snapshot", self.user_snapshot)):
            names = {"history": "chronic_diseases"} if part == "user_snapshot" else {}
            document[part] = _merged(document[part], {names.get(key, key): new for key, new in (patch or {}).items()})
        return SessionValue.model_validate(document)


def _merged(known: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    old = known if isinstance(known, dict) else {}
    kept = {key: value for key, value in old.items() if key not in patch}
    return kept | {key: _merged(old.get(key), new) for key, new in patch.items() if new is not None}


def settable(wanted: SessionValue, session: SessionValue) -> SessionValue:
    """Returns the session with the current agent, global state and user snapshot of another value."""
    agent = {"current_agent_key": wanted.flow_context.current_agent_key}
    parts = {name: getattr(wanted, name) for name in ("global_state", "user_snapshot")}
    return session.model_copy(update=parts | {"flow_context": session.flow_context.model_copy(update=agent)})


class InvalidMemoryRequest(TurnlogError):
    """A request of short-term memory cannot be carried out; the message says what to change."""

    code = "invalid-memory-request"


def turns_written(request: MemoryWriteRequest) -> list[TurnRecorded]:
    """Returns the question, the answer, or both. Raises InvalidMemoryRequest when there is neither."""
    turns: list[TurnRecorded] = []
    if request.user_query.strip():
        turns.append(TurnRecorded(role="user", content=storable(request.user_query)))
    if request.agent_response.strip():
        turns.append(TurnRecorded(role="assistant", content=storable(request.agent_response), agent=request.agent_code))
    if not turns:
        raise InvalidMemoryRequest("a turn needs user_query, agent_response or both; both are empty")
    return turns


def parts_changed(before: SessionValue, changed: SessionValue) -> list[EventData]:
    """Returns an event with the parts that differ, each as a whole; [] if no part differs.

    Raises InvalidMemoryRequest when a part is not JSON, or when a part that is derived from the conversation differs.
    """
    after = _checked(changed)
    agent, agent_before = after.flow_context.current_agent_key, before.flow_context.current_agent_key
    flow = after.flow_context.model_copy(update={"current_agent_key": agent_before})
    if (after.meta, flow, after.message_context) != (before.meta, before.flow_context, before.message_context):
        raise InvalidMemoryRequest(
            "update() changes current_agent_key, global_state and user_snapshot; the rest follows from the conversation"
        )
    update = SessionUpdated(
        current_agent_key=agent if agent != agent_before else None,
        global_state=_document(after.global_state) if after.global_state != before.global_state else None,
        user_snapshot=_document(after.user_snapshot) if after.user_snapshot != before.user_snapshot else None,
    )
    return [] if update == SessionUpdated() else [update]


def _checked(value: SessionValue) -> SessionValue:
    """Validates the copy before it is published, because model_copy() does not."""
    try:
        return SessionValue.model_validate(value.model_dump(mode="json", warnings=False))
    except (ValidationError, PydanticSerializationError) as error:
        raise InvalidMemoryRequest(f"the changed session is not valid: {error}") from error


def _document(part: BaseModel) -> dict[str, Any]:
    return part.model_dump(mode="json")
