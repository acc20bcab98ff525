"""Makes events of users with a secret in every text field, for tests of what an erasure removes and keeps."""

import uuid
from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from helpers.sample_events import DERIVED, GPA, MAY_8, SOURCE, event, turn

from turnlog.events.contracts import (
    AnswerReceipt,
    AnswerRequested,
    Blob,
    CheckpointSaved,
    CheckpointWritesSaved,
    EntitiesFound,
    Entity,
    Event,
    EventData,
    MemoryRecorded,
    PendingWrite,
    SegmentCheckpointed,
    SessionCreated,
    SessionUpdated,
    StoreItemPut,
    SummaryWritten,
    ThreadOpened,
    ToolCall,
    TopicsTagged,
    UsageMetered,
)
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.store.lookup import memories_of
from turnlog.projectors.models.store.projection import store_thread

KINDS = ("said", "called", "label", "summary", "memory", "quote", "entity", "item", "slot", "snapshot", "state", "blob")


def secret(user: str, kind: str, number: int = 0) -> str:
    """Returns a sentence that no other event contains: 'ann's memory 7 is 琥珀 5f3c…'."""
    return f"{user}'s {kind} {number} is 琥珀 {uuid.uuid5(uuid.NAMESPACE_OID, f'{user}/{kind}/{number}').hex[:12]}"


def secrets(user: str, turns: int) -> list[str]:
    return [secret(user, kind, number) for kind in KINDS for number in range(turns)]


def conversation(user: str, turns: int, minutes: int = 0) -> list[Event]:
    """Returns a thread of the user with every kind of event, and the user's events on other threads."""
    thread = f"talk-{user}"
    opened = ThreadOpened(label=secret(user, "label"), metadata={"note": secret(user, "metadata")})
    made: list[Event] = [_of(user, thread, opened)]
    made.append(_of(user, thread, SessionCreated(user_snapshot={"name": secret(user, "snapshot")})))
    for n in range(turns):
        made.append(turn(secret(user, "said", n), "user" if n % 2 else "assistant", thread, minutes + n, user=user))
        made += [_of(user, thread, data, minutes + n) for data in _derived(user, n)]
        made.append(_of(user, memory_thread(user), _memory(user, n), minutes + n))
        made.append(_item(user, n))
    call = ToolCall(id="c", name="look", arguments=f'{{"for": "{secret(user, "called")}"}}')
    made.append(turn("", "assistant", thread, minutes + turns, user=user, tool_calls=(call,)))
    return made


def _derived(user: str, n: int) -> Sequence[EventData]:
    blob = b64encode(secret(user, "blob", n).encode()).decode()
    version = f"{n}.0"
    return (
        SummaryWritten(summary=secret(user, "summary", n), message_count=n + 1, covered_seq=n + 1, derivation=DERIVED),
        TopicsTagged(topics={"琥珀": 1}, derivation=DERIVED),
        SessionUpdated(global_state={"slots": {"x": secret(user, "slot", n)}}),
        SegmentCheckpointed(
            summary=secret(user, "summary", n), recent_turns=2, covered_seq=1, turns_covered=1, trigger="manual"
        ),
        CheckpointSaved(
            checkpoint_id=f"1ef{n:05}",
            checkpoint={"v": 4, "channel_values": {"note": secret(user, "state", n)}},
            metadata={"step": n},
            blobs=(Blob(channel="x", version=version, encoding="msgpack", data=blob),),
        ),
        CheckpointWritesSaved(
            checkpoint_id=f"1ef{n:05}",
            task_id="t",
            writes=(PendingWrite(idx=0, channel="x", encoding="msgpack", data=blob),),
        ),
        AnswerRequested(turn_id=uuid.uuid4(), system_prompt="You advise applicants."),
        AnswerReceipt(
            request_id=uuid.uuid4(),
            turn_id=uuid.uuid4(),
            answer_ids=(),
            as_of_seq=1,
            model="m",
            window=1,
            budget=1,
            tiers=(),
            context_hash="00",
        ),
        UsageMetered(purpose="answer", provider="local", model="m", tokens_in=n, tokens_out=1),
    )


def _memory(user: str, n: int) -> EventData:
    if n % 2:
        entity = Entity(type="PERSON", name=secret(user, "entity", n))
        return EntitiesFound(entities=(entity,))
    source = SOURCE.model_copy(update={"quote": secret(user, "quote", n), "thread": f"talk-{user}"})
    fields: dict[str, Any] = {"content": secret(user, "memory", n), "sources": (source,), "dedupe_key": None}
    return MemoryRecorded(memory=GPA.model_copy(update={"id": uuid.uuid4(), **fields}))


def _item(user: str, n: int) -> Event:
    """Returns a store item of the user, which only its namespace shows."""
    space = memories_of(user)
    put = StoreItemPut(namespace=space, key=str(n), value={"text": secret(user, "item", n)})
    return event(put, store_thread(space))


def _of(user: str, thread: str, data: EventData, minutes: int = 0) -> Event:
    return Event(time=MAY_8 + timedelta(minutes=minutes), thread=thread, user=user, data=data)
