"""The events that the segment reactor writes. Pure but for the clock; every id follows from the request."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_OID, uuid5

from turnlog.agent.models.errors import ModelError
from turnlog.agent.models.protocol import Usage
from turnlog.agent.sessions.checkpoint import Cut
from turnlog.consumers.reactors.derive import Call, Derived
from turnlog.consumers.reactors.facts import Thread
from turnlog.consumers.reactors.results import derivation, usage_metered
from turnlog.events.contracts import Event, EventData, Recorded
from turnlog.events.session_contracts import SegmentCheckpointed, SegmentCheckpointFailed, SegmentRules

SOURCE = "turnlog/segments"


@dataclass(frozen=True, slots=True)
class Work:
    """What a request comes to: the turns that join the summary before them."""

    request: Recorded
    rules: SegmentRules
    previous: str
    cut: Cut

    @property
    def thread(self) -> Thread:
        event = self.request.event
        return Thread(event.tenant, event.thread, event.user, self.request.partition, self.cut.covered, None, 0)


def checkpointed(work: Work, made: Derived, model: Usage) -> Event:
    cut = work.cut
    data = SegmentCheckpointed(
        summary=made.text,
        recent_turns=cut.kept,
        covered_seq=cut.covered_seq,
        turns_covered=cut.turns_covered,
        trigger="automatic",
        derivation=derivation(made, model, cut.covered, cut.covered_seq),
    )
    return _result(work, data)


def checkpoint_failed(work: Work, error: ModelError, attempts: int) -> Event:
    return _result(work, SegmentCheckpointFailed(attempts=attempts, error=f"{error.code}: {error}"[:500]))


def spent(work: Work, calls: Sequence[Call]) -> list[Event]:
    """What the work cost; a call that a later try found in the cache counts once."""
    thread = work.thread
    return [usage_metered(thread, call, "summary") for call in {call.key: call for call in calls}.values()]


def _result(work: Work, data: EventData) -> Event:
    request = work.request.event
    return Event(
        id=uuid5(NAMESPACE_OID, f"{data.type}/{request.id}"),
        source=SOURCE,
        time=datetime.now(UTC),
        tenant=request.tenant,
        thread=request.thread,
        user=request.user,
        causation=request.id,
        correlation=request.correlation or request.id,
        data=data,
    )
