"""Forks threads: a new thread begins with the turns of another thread up to a sequence, without copying them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from turnlog.agent.context.message_units import cuts
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.conversations.past import Moment, before_the_first_turn, moment
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event, ThreadForked
from turnlog.events.errors import TurnlogError, WrongExpectedVersion
from turnlog.events.log import Log
from turnlog.events.subjects import check_conversation, check_id, check_tenant
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message, thread_messages

SOURCE = "turnlog/fork"


class ThreadExists(TurnlogError):
    """The id of the new thread belongs to another thread, which may have been deleted."""

    code = "thread-exists"


class CutInACall(TurnlogError):
    """The sequence separates a tool call from its result, which belong together."""

    code = "cut-in-a-call"


@dataclass(frozen=True, slots=True)
class Forked:
    """A new fork. parent, at_seq: the thread with whose turns the fork begins, and the sequence up to which it has
    them. seq: of the fork's event. message_count: number of these turns."""

    thread: str
    parent: str
    at_seq: int
    seq: int
    message_count: int


async def fork_thread(
    runtime: Runtime, tenant: str, thread: str, at_seq: int, new_thread: str | None = None, label: str | None = None
) -> Forked:
    """Begins a new thread with the turns of another thread up to a sequence.

    at_seq: the last sequence of the log that the new thread includes. new_thread: its id; None for a generated id.

    Raises NotFound for an unknown thread or moment, CutInACall, ThreadExists, InvalidToken.
    """
    check_tenant(tenant)
    check_id("thread", thread)
    target = f"{thread}-fork-{uuid.uuid4().hex[:8]}" if new_thread is None else check_conversation(new_thread)
    async with runtime.reading("messages", "archives") as conn:
        await restored_if_archived(runtime, conn, tenant, thread)
        made = await fork(conn, runtime.log, tenant, thread, at_seq, target, label or None)
    await runtime.wait_until_projected()
    return made


async def fork(
    conn: Connection, log: Log, tenant: str, thread: str, at_seq: int, new_thread: str, label: str | None = None
) -> Forked:
    """Begins new_thread as a fork of `thread` at a sequence; the read models must have applied that sequence.

    If `thread` is a fork itself and the sequence lies in the turns of its parent, new_thread becomes a fork of that
    parent. Raises NotFound for a sequence that the thread does not have, CutInACall, ThreadExists, InvalidToken.
    """
    at = await moment(log, tenant, thread, at_seq)
    turns = await thread_messages(conn, tenant, thread)
    shared = [turn for turn in turns if turn.seq <= at.seq]
    if not shared:
        raise await before_the_first_turn(conn, log, tenant, thread, at_seq)
    _check_cut(turns, len(shared))
    user = next((turn.user for turn in shared if turn.user), None)
    event = Event(source=SOURCE, tenant=tenant, thread=new_thread, user=user, data=_forked(at, shared, label))
    try:
        seq = (await log.append(event, expected=0)).seq
    except WrongExpectedVersion:
        raise ThreadExists(f"there is, or was, a thread {new_thread!r}; give the fork another id") from None
    return Forked(new_thread, at.thread, at.seq, seq, len(shared))


def _forked(at: Moment, shared: Sequence[Message], label: str | None) -> ThreadForked:
    derived = at.derived
    return ThreadForked(
        parent=at.thread,
        at_seq=at.seq,
        label=label,
        message_count=len(shared),
        user_message_count=sum(turn.role == "user" for turn in shared),
        assistant_message_count=sum(turn.role == "assistant" for turn in shared),
        summary=derived.summary,
        topics={topic: mentions for topic, (mentions, _) in sorted(derived.topics.items())},
        tagged_through=derived.tagged_through,
        pruned_through=derived.pruned_through,
    )


def _check_cut(turns: Sequence[Message], count: int) -> None:
    possible = cuts(turns)
    if count in possible:
        return
    nearest = [max((n for n in possible if n < count), default=0), min(n for n in possible if n > count)]
    seqs = " or ".join(str(turns[n - 1].seq) for n in nearest if n)
    raise CutInACall(f"sequence {turns[count - 1].seq} separates a tool call from its result; fork at {seqs}")
