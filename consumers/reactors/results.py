"""The events that the memory reactor writes. Pure but for the clock."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.protocol import Usage
from turnlog.consumers.reactors.derive import Call, Derived
from turnlog.consumers.reactors.facts import Thread
from turnlog.events.contracts import (
    Event,
    EventData,
    HistoryPruned,
    SummaryWritten,
    TopicsTagged,
    UsageMetered,
)
from turnlog.events.frozen import Derivation
from turnlog.projectors.message import Message

NAME = "memory"
SOURCE = "turnlog/memory"
Purpose = Literal["summary", "topics", "embedding"]


def topics_tagged(thread: Thread, made: Derived, model: Usage, span: Sequence[Message], through: int) -> Event:
    data = TopicsTagged(topics=made.topics, derivation=derivation(made, model, span, through))
    return _result(thread, data, through)


def summary_written(thread: Thread, made: Derived, model: Usage, span: Sequence[Message], through: int) -> Event:
    before = thread.summary.message_count if thread.summary else 0
    data = SummaryWritten(
        summary=made.text,
        message_count=before + len(span),
        covered_seq=through,
        derivation=derivation(made, model, span, through),
    )
    return _result(thread, data, through)


def history_pruned(thread: Thread, through: int) -> Event:
    removed = len(thread.span(0, through))
    data = HistoryPruned(through_seq=through, removed=removed, remaining=len(thread.messages) - removed)
    return _result(thread, data, through)


def usage_metered(thread: Thread, call: Call, purpose: Purpose) -> Event:
    """The id follows from the call, so that one call is counted once, however often its result is stored."""
    return _event(thread, call.usage.metered(purpose, NAME), uuid.uuid5(uuid.NAMESPACE_OID, f"usage/{call.key.hex()}"))


def failure_metered(thread: Thread, model: Usage, error: ModelError, purpose: Purpose) -> Event:
    """model: which one failed; its numbers are not counted. The same cause is one event a day and thread."""
    data = UsageMetered(
        purpose=purpose,
        agent=NAME,
        provider=model.provider,
        model=model.model,
        error=f"{error.code}: {error}"[:500],
    )
    cause = f"failure/{thread.place}/{purpose}/{model.model}/{error.code}/{datetime.now(UTC):%Y-%m-%d}"
    return _event(thread, data, uuid.uuid5(uuid.NAMESPACE_OID, cause))


def derivation(made: Derived, model: Usage, span: Sequence[Message], through: int) -> Derivation:
    usages = [call.usage for call in made.calls]
    return Derivation(
        provider=model.provider,
        model=model.model,
        prompt_hash=made.prompt_hash,
        from_seq=span[0].seq if span else through,
        through_seq=through,
        tokens_in=sum(usage.tokens_in for usage in usages),
        tokens_out=sum(usage.tokens_out for usage in usages),
        cost_usd=sum(usage.cost_usd for usage in usages),
    )


def _result(thread: Thread, data: EventData, through: int) -> Event:
    """The id follows from what it was made of: a second worker's same result is the same event."""
    name = f"{data.type}/{thread.place}/{thread.messages[0].seq}/{through}"
    return _event(thread, data, uuid.uuid5(uuid.NAMESPACE_OID, name))


def _event(thread: Thread, data: EventData, event_id: uuid.UUID) -> Event:
    return Event(
        id=event_id,
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=thread.tenant,
        thread=thread.thread,
        user=thread.user,
        data=data,
    )
