"""Builds the events that thread maintenance appends. Pure except for the clock."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal

from turnlog.agent.conversations.summarising.derive import Derived, Deriver, ModelCall
from turnlog.agent.conversations.summarising.due_work import Plan
from turnlog.agent.conversations.summarising.facts import ThreadFacts
from turnlog.agent.models.errors import BreakerOpen, ModelError, ModelRefused
from turnlog.agent.models.offline_tasks import MODEL as EXTRACTIVE
from turnlog.agent.models.protocol import Usage, failed_usage
from turnlog.agent.retry_later import RetryLater
from turnlog.events.contracts import (
    Derivation,
    Event,
    EventData,
    HistoryPruned,
    SummaryWritten,
    TopicsTagged,
)
from turnlog.projectors.models.conversation.message import Message

NAME = "memory"
SOURCE = "turnlog/memory"
Purpose = Literal["summary", "topics", "embedding"]


def topics_tagged(thread: ThreadFacts, made: Derived, model: Usage, span: Sequence[Message], through: int) -> Event:
    data = TopicsTagged(topics=made.topics, derivation=derivation(made, model, span, through))
    return _result(thread, data, through)


def summary_written(thread: ThreadFacts, made: Derived, model: Usage, span: Sequence[Message], through: int) -> Event:
    before = thread.summary.message_count if thread.summary else 0
    data = SummaryWritten(
        summary=made.text,
        message_count=before + len(span),
        covered_seq=through,
        derivation=derivation(made, model, span, through),
    )
    return _result(thread, data, through)


def history_pruned(thread: ThreadFacts, through: int) -> Event:
    removed = len(thread.span(0, through))
    data = HistoryPruned(through_seq=through, removed=removed, remaining=len(thread.messages) - removed)
    return _result(thread, data, through)


def usage_metered(thread: ThreadFacts, call: ModelCall, purpose: Purpose) -> Event:
    """Returns the event that records the usage of a call. Its id is derived from the call, so that a call is counted
    once even if its result is stored repeatedly."""
    return _event(thread, call.usage.metered(purpose, NAME), uuid.uuid5(uuid.NAMESPACE_OID, f"usage/{call.key.hex()}"))


def failure_metered(thread: ThreadFacts, model: Usage, error: ModelError, purpose: Purpose) -> Event:
    """Returns the event of a failed call; it has the same id for one cause, day and thread. model: the model that
    failed; its usage is not counted."""
    data = failed_usage(model, purpose, NAME, error)
    cause = f"failure/{thread.place}/{purpose}/{model.model}/{error.code}/{datetime.now(UTC):%Y-%m-%d}"
    return _event(thread, data, uuid.uuid5(uuid.NAMESPACE_OID, cause))


def derivation(made: Derived, model: Usage, span: Sequence[Message], through: int) -> Derivation:
    """Returns the derivation of a result. Its model is "… + offline-extractive", after the model's name, if a part of
    the text is an extract that replaces a refused answer."""
    usages = [call.usage for call in made.calls]
    is_extract = any(call.extracted for call in made.calls)
    return Derivation(
        provider=model.provider,
        model=f"{model.model} + {EXTRACTIVE}" if is_extract else model.model,
        prompt_hash=made.prompt_hash,
        from_seq=span[0].seq if span else through,
        through_seq=through,
        tokens_in=sum(usage.tokens_in for usage in usages),
        tokens_out=sum(usage.tokens_out for usage in usages),
        cost_usd=sum(usage.cost_usd for usage in usages),
    )


def _result(thread: ThreadFacts, data: EventData, through: int) -> Event:
    """Returns the event that records a result. Its id is derived from the input, so that a second worker with the same
    input appends no second event."""
    name = f"{data.type}/{thread.place}/{thread.messages[0].seq}/{through}"
    return _event(thread, data, uuid.uuid5(uuid.NAMESPACE_OID, name))


def _event(thread: ThreadFacts, data: EventData, event_id: uuid.UUID) -> Event:
    return Event(id=event_id, source=SOURCE, tenant=thread.tenant, thread=thread.thread, user=thread.user, data=data)


MODEL_DOWN_S = 30.0
MODEL_REFUSES_S = 300.0


class RoundResult:
    """The result of one round of summaries. events: the events to append, in order. problem: why a part must be tried
    again; None if all parts succeeded."""

    def __init__(self, thread: ThreadFacts, due: Plan, deriver: Deriver) -> None:
        self.thread, self.due, self.deriver = thread, due, deriver
        self.events: list[Event] = []
        self.problem: RetryLater | None = None

    @contextmanager
    def step(self, purpose: Purpose, model: Usage) -> Iterator[None]:
        """Runs a part, whose failure does not affect the other parts. Its answered calls are metered in any case."""
        before = len(self.deriver.calls)
        try:
            yield
        except RetryLater as later:
            self.problem = later
        except ModelError as error:
            seconds = MODEL_REFUSES_S if isinstance(error, ModelRefused) else error.retry_after_s or MODEL_DOWN_S
            self.problem = RetryLater(seconds, str(error))
            if not isinstance(error, BreakerOpen):  # with an open breaker no call was made
                self.events.append(failure_metered(self.thread, model, error, purpose))
        finally:
            self.events += [usage_metered(self.thread, call, purpose) for call in self.deriver.calls[before:]]
