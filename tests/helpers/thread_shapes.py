"""Makes threads of every shape and any length, by functions from a sequence to its event, to measure how costs grow."""

from collections.abc import Callable
from uuid import UUID

from helpers.sample_events import MAY_8, SOURCE, derivation, event, memory_of, turn

from turnlog.events.contracts import (
    Blob,
    CheckpointSaved,
    CheckpointsDropped,
    CheckpointWritesSaved,
    ChunksEmbedded,
    EntitiesFound,
    Entity,
    Event,
    EventData,
    HistoryPruned,
    JobRan,
    ListGrowth,
    MemoriesAccessed,
    MemoriesEmbedded,
    MemoriesExtracted,
    MemoryConfirmed,
    MemoryConflictRaised,
    MemoryForgotten,
    MemoryRecorded,
    MemorySource,
    PendingWrite,
    SegmentCheckpointed,
    SegmentRules,
    SessionCreated,
    StoreItemDeleted,
    StoreItemPut,
    SummaryWritten,
    ThreadForked,
    ToolCall,
    TopicsTagged,
)
from turnlog.events.subjects import memory_thread
from turnlog.projectors.models.store.projection import store_thread

Shape = Callable[[int], Event]
CYCLE = 10  # the number of events after which a shape repeats with other words


def short_turns(seq: int) -> Event:
    return turn(f"words {seq} of a chat", "user" if seq % 2 else "assistant", user="ann")


def equal_texts(seq: int) -> Event:
    return turn("ok", "user" if seq % 2 else "assistant", user="ann")


def tool_calls(seq: int) -> Event:
    call = ToolCall(id=f"call_{seq - seq % CYCLE}", name="calendar", arguments='{"month": 5}')
    match seq % CYCLE:
        case 1:
            return turn(f"When is deadline {seq}?", user="ann")
        case 2 | 4 | 6:
            return turn("", "assistant", tool_calls=(call,))
        case 3 | 5 | 7:
            return turn(f"result {seq}: 8 May", "tool", tool_call_id=call.id, name="calendar")
    return turn(f"Deadline {seq} is on 8 May.", "assistant")


def long_answers(seq: int) -> Event:
    if seq % 2:
        return turn(f"Tell me about essay {seq}.", user="ann")
    return turn(" ".join(f"Sentence {n} of {seq} is about essays." for n in range(90)), "assistant")


def topics_and_vectors(seq: int) -> Event:
    match seq % CYCLE:
        case 0:
            return event(TopicsTagged(topics={f"topic {seq % 7}": 1}, derivation=derivation(max(1, seq - 9), seq - 1)))
        case 9:
            return event(ChunksEmbedded(model="small", dimensions=3, chunk_ids=("00ff", "11ee")))
    return short_turns(seq)


def summaries(seq: int) -> Event:
    match seq % CYCLE:
        case 9:
            made = SummaryWritten(
                summary=f"{seq}", message_count=seq, covered_seq=seq - 4, derivation=derivation(1, seq - 4)
            )
            return event(made)
        case 0:
            return event(HistoryPruned(through_seq=seq - 5, removed=4, remaining=4))
    return short_turns(seq)


def session_segments(seq: int) -> Event:
    if seq == 1:
        return event(SessionCreated(rules=SegmentRules()))
    if seq % CYCLE:
        return short_turns(seq)
    about = {"recent_turns": 2, "turns_covered": 4, "trigger": "automatic"}
    return event(SegmentCheckpointed(summary=f"{seq}", covered_seq=seq - 4, derivation=derivation(1, 2), **about))


def forks(seq: int) -> Event:
    """Returns the event that begins a fork of `t`, or one of the two turns of each fork."""
    thread = f"fork {seq // 3}"
    if seq % 3:
        return turn(f"words {seq}", "user" if seq % 3 == 1 else "assistant", thread)
    counts = {"message_count": 1, "user_message_count": 1, "assistant_message_count": 0}
    return event(ThreadForked(parent="t", at_seq=1, **counts), thread)


def checkpoints(seq: int) -> Event:
    """Returns an event of a graph's checkpoints. Their list grows by one message each, and old checkpoints are
    dropped."""
    number, step = divmod(seq, 4)
    match step:
        case 1:
            return short_turns(seq)
        case 2:
            grown = ListGrowth(list_id="l", first=number, base_list=None, base_count=0, items=({"turn": f"{seq}"},))
            seen = Blob(channel="messages", version=f"{number}", encoding="turnlog.list", data="eyJsaXN0IjogImwifQ==")
            checkpoint = {"v": 4, "channel_versions": {"messages": f"{number}"}}
            about = {"checkpoint": checkpoint, "metadata": {"step": seq}, "blobs": (seen,), "lists": (grown,)}
            return event(CheckpointSaved(checkpoint_id=f"{number:08d}", **about))
        case 3:
            writes = (PendingWrite(idx=0, channel="messages", encoding="msgpack", data="oWE="),)
            return event(CheckpointWritesSaved(checkpoint_id=f"{number:08d}", task_id="task", writes=writes))
    return event(CheckpointsDropped(checkpoint_ns="", checkpoint_ids=(f"{max(0, number - 3):08d}",), reason="prune"))


def store_items(seq: int) -> Event:
    item_key = {"namespace": ("users", "ann"), "key": f"{seq - seq % 3}"}
    data: EventData = StoreItemDeleted(**item_key)
    if seq % 3 < 2:
        data = StoreItemPut(**item_key, value={"text": f"item {seq}"}, model="small", vectors={"text": "9f86d081"})
    return event(data, store_thread(("users", "ann")))


def memories(seq: int) -> Event:
    last = UUID(int=seq - seq % CYCLE)  # the memory that is recorded first in each cycle
    data: EventData
    match seq % CYCLE:
        case 0:
            data = MemoryRecorded(memory=memory_of(seq, entities=(f"entity {seq}",), sources=(SOURCE,)))
        case 1:
            data = MemoryConfirmed(memory_id=last, source=_source(seq), importance=0.9, confidence=0.9)
        case 2:
            new, against = memory_of(seq, sources=(_source(seq),)), (last,)
            data = MemoryConflictRaised(conflict_id=UUID(int=seq), memory=new, against=against, question="Which?")
        case 3:
            data = MemoriesAccessed(memory_ids=(last,))
        case 4:
            data = MemoriesEmbedded(model="small", dimensions=3, memory_ids=(last,))
        case 5:
            data = MemoriesExtracted(
                conversation=f"{seq}", stage="rules", from_seq=1, through_seq=seq, extractor="9f", found=1, stored=1
            )
        case 6:
            data = MemoryForgotten(memory_id=UUID(int=seq - 4), source_ids=(_source(seq - 4).event_id,))
        case _:
            named = {"attributes": {"level": "high"}, "sources": (_source(seq),)}
            data = EntitiesFound(entities=(Entity(type="SCHOOL", name=f"school {seq}", **named),))
    return event(data, memory_thread("ann"), user="ann")


def _source(seq: int) -> MemorySource:
    return SOURCE.model_copy(update={"seq": seq, "event_id": UUID(int=seq)})


def jobs(seq: int) -> Event:
    return event(JobRan(job="decay", due_at=MAY_8.replace(microsecond=seq), duration_ms=1.0, counts={}), "jobs/all")


SHAPES: tuple[Shape, ...] = (
    short_turns,
    equal_texts,
    tool_calls,
    long_answers,
    topics_and_vectors,
    summaries,
    session_segments,
    forks,
    checkpoints,
    store_items,
    memories,
    jobs,
)
