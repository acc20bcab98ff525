"""Makes events for tests: values of contracts, and turns in short form."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from turnlog.events.contracts import (
    Derivation,
    Event,
    EventData,
    ImageBlock,
    Interval,
    Memory,
    MemoryRecorded,
    MemorySource,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    TurnRecorded,
)
from turnlog.events.subjects import memory_thread

RUN = UUID("0193b5a2-6d5e-7c1f-9a43-5f0c8e2b7d21")
MAY_8 = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
DERIVED = Derivation(
    provider="openai",
    model="gpt-4o-mini",
    prompt_hash="9f86d081",
    from_seq=1,
    through_seq=40,
    tokens_in=900,
    tokens_out=120,
    cost_usd=0.0002,
)
BLOCKS = (
    ThinkingBlock(thinking="Ann wants a date.", signature="c2ln"),
    TextBlock(text="It is on 8 May. 五月八日。"),
    ImageBlock(url="https://example.org/may.png", media_type="image/png"),
    ToolUseBlock(id="call_1", name="calendar", input={"month": 5, "days": [8], "exact": True}),
    ToolResultBlock(tool_use_id="call_1", content=(TextBlock(text="8 May"),), is_error=False),
)
SOURCE = MemorySource(thread="t1", seq=41, event_id=UUID(int=41), quote="my GPA is 3.8", said_at=MAY_8)
GPA = Memory(
    id=UUID(int=100),
    kind="FACT",
    content="GPA is 3.80",
    category="academic",
    value="3.80",
    importance=0.95,
    confidence=0.9,
    origin="rule",
    rule="gpa",
    dedupe_key="gpa",
    strategy="KEEP_LATEST",
    valid_from=MAY_8,
    expires_at=MAY_8 + timedelta(days=365),
    sources=(SOURCE,),
    entities=("Stanford",),
    metadata={"form": 7, "学期": ["秋"]},
)
REPLACED = Interval(memory_id=UUID(int=99), valid_to=MAY_8, replaced_by=UUID(int=100), reason="superseded")
ENVELOPE = (
    '{"specversion":"1.0","type":"turnlog.turn_recorded","subject":"t1","dataschema":"urn:turnlog:turn_recorded:2",'
    '"id":"00000000-0000-0000-0000-000000000041","source":"turnlog","time":"2023-05-08T13:56:00Z","thread":"t1",'
    '"data":{"role":"user","content":"my GPA is 3.8"}}'
)


def event(data: EventData, thread: str = "t", minutes: int = 0, **more: Any) -> Event:
    return Event(time=MAY_8 + timedelta(minutes=minutes), thread=thread, data=data, **more)


def turn(content: Any = "hello", role: str = "user", thread: str = "t", minutes: int = 0, **more: Any) -> Event:
    """Returns an event with a turn. more: fields of the turn if it has such a field, else of the event."""
    of_event = {key: more.pop(key) for key in ("id", "tenant", "user", "source") if key in more}
    data = TurnRecorded.model_validate({"role": role, "content": content, **more})
    return event(data, thread, minutes, **of_event)


def memory_of(number: int, **fields: Any) -> Memory:
    """Returns a fact that no other memory contradicts."""
    defaults: dict[str, Any] = {"content": f"fact {number}", "valid_from": MAY_8, "importance": 0.8, "confidence": 0.9}
    return Memory(id=UUID(int=number), kind="FACT", origin="rule", **{**defaults, **fields})


def memory_event(memory: Memory, user: str = "ann", tenant: str = "default") -> Event:
    """Returns the event that records the memory on the user's memory thread, at the time when it was said."""
    about = {"tenant": tenant, "thread": memory_thread(user), "user": user, "time": memory.valid_from}
    return Event(data=MemoryRecorded(memory=memory), **about)


def derivation(first: int, last: int) -> Derivation:
    return DERIVED.model_copy(update={"from_seq": first, "through_seq": last})


def text_of(turn_event: Event) -> str:
    """Returns the text of a turn."""
    assert isinstance(turn_event.data, TurnRecorded)
    assert isinstance(turn_event.data.content, str)
    return turn_event.data.content
