"""Requests of short-term memory as the events they become. Pure."""

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from turnlog.agent.sessions.value import MemoryWriteRequest, SessionValue
from turnlog.events.contracts import EventData, SessionUpdated, TurnRecorded
from turnlog.events.errors import TurnlogError


class InvalidMemoryRequest(TurnlogError):
    """A request of short-term memory cannot be carried out; the message says what to change."""

    code = "invalid-memory-request"


def turns_written(request: MemoryWriteRequest) -> list[TurnRecorded]:
    """The question, the answer, or both. Raises InvalidMemoryRequest when there is neither."""
    turns: list[TurnRecorded] = []
    if request.user_query.strip():
        turns.append(TurnRecorded(role="user", content=request.user_query))
    if request.agent_response.strip():
        turns.append(TurnRecorded(role="assistant", content=request.agent_response, agent=request.agent_code))
    if not turns:
        raise InvalidMemoryRequest("a turn needs user_query, agent_response or both; both are empty")
    return turns


def parts_changed(before: SessionValue, changed: SessionValue) -> list[EventData]:
    """The parts that differ, each as a whole; [] if none differs.

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
    """Validates the copy before it is published: model_copy() does not validate."""
    try:
        return SessionValue.model_validate(value.model_dump(mode="json", warnings=False))
    except (ValidationError, PydanticSerializationError) as error:
        raise InvalidMemoryRequest(f"the changed session is not valid: {error}") from error


def _document(part: BaseModel) -> dict[str, Any]:
    return part.model_dump(mode="json")
