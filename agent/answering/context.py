"""Builds the context of a conversation: the current context, with the basis of a receipt, or a past context."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import with_config

from turnlog.agent.answering.prepare import READS as READS_OF_CONTEXTS
from turnlog.agent.answering.prepare import AnswerBasis as AnswerBasis
from turnlog.agent.answering.prepare import ContextRequest, context_connection, prepare
from turnlog.agent.answering.prepare import Prepared as Prepared
from turnlog.agent.answering.receipts import RebuiltContext, rebuilt, receipts
from turnlog.agent.context.plain_text import content_text
from turnlog.agent.conversations.archive.restoring import restored_if_archived
from turnlog.agent.recall.episodes import EPISODES
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import AnswerReceipt
from turnlog.events.errors import NotFound
from turnlog.events.local_time import now_there
from turnlog.events.subjects import check_id, check_place, check_tenant, memory_thread
from turnlog.events.texts import storable
from turnlog.projectors.engine.lag import READ_WHILE_REBUILT
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.message import Message, newest_exchanges

READS = (*READS_OF_CONTEXTS, "archives")
READS_OF_MEMORIES = ("memories", "entities")


@with_config(extra="ignore")  # fields of newer and older servers
@dataclass(frozen=True, slots=True)
class SignedBasis(AnswerBasis):
    """The basis of a receipt in the form that a client gets and sends back. signature: the server's, which reveals
    changes. id: may be sent back instead for some time; None if the server does not keep the receipt."""

    signature: str = ""
    id: UUID | None = None


async def context_of(
    runtime: Runtime,
    tenant: str,
    thread: str,
    *,
    query: str | None = None,
    user: str | None = None,
    window: int | None = None,
    tokens: int | None = None,
    hybrid: bool | None = None,
    model: str | None = None,
    system_prompt: str | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    answer_tokens: int | None = None,
    through: int | None = None,
) -> Prepared:
    """Returns the context of a thread now. query: a user message to add at its end, unless the thread already ends with
    it.

    through: without a query, the sequence of the last turn to show, if others may append meanwhile.

    user: the user whose long-term memories are included before the question. window: the model's window in tokens,
    including room for the answer and a reserve. tokens: instead of window, the limit for all messages, including the
    system prompt. hybrid: if not all turns fit, prefer those that are relevant to the query or to the last question;
    None means yes, unless MEMORY_HYBRID_EPISODES is 0. answer_tokens: maximum number of tokens in the answer, for which
    room is kept. An archived thread is restored.

    Raises NotFound for a thread without turns and no query, WindowTooSmall, InvalidToken.
    """
    check_place(tenant, thread, user)
    if user is not None:
        await runtime.wait_until_thread_projected(tenant, memory_thread(user), READS_OF_MEMORIES)
    model = model or runtime.settings.model
    prompt = runtime.settings.system_prompt if system_prompt is None else system_prompt
    settings = runtime.settings
    async with _ready(runtime, tenant, thread, READS) as (conn, head):
        newest = await newest_exchanges(conn, tenant, thread, 1, None if through is None else through + 1)
        last = _question(newest)
        asked = query if query is not None and not _awaits_answer_to(newest, query) else None
        is_hybrid = settings.hybrid_episodes > 0 if hybrid is None else hybrid
        request = ContextRequest(
            tenant,
            thread,
            user,
            query if query is not None else content_text(last.content) if last else "",
            now_there(),
            model,
            prompt,
            tools or (),
            query=asked,
            as_of_seq=(through or head or None) if asked is None else None,
            turn_id=last.event_id if asked is None and last else None,
            window=window,
            tokens=tokens,
            relevant=(settings.hybrid_episodes or EPISODES) if is_hybrid else 0,
            answer_tokens=answer_tokens or 0,
        )
        return await prepare(runtime, conn, request)


async def context_as_of(
    runtime: Runtime,
    tenant: str,
    thread: str,
    seq: int,
    *,
    query: str | None = None,
    window: int | None = None,
    tokens: int | None = None,
) -> RebuiltContext:
    """Returns the context as of a sequence of the log, with the settings of the receipt if an answer was made there.
    query, window, tokens: as in context_of.

    Raises NotFound, WindowTooSmall, InvalidToken.
    """
    check_place(tenant, thread)
    asked: dict[str, Any] = {"query": query, "window": window, "tokens": tokens}
    async with _ready(runtime, tenant, thread, READS) as (conn, _):
        return await rebuilt(conn, runtime.log, runtime.settings, tenant, thread, seq, **asked)


@contextlib.asynccontextmanager
async def _ready(
    runtime: Runtime, tenant: str, thread: str, reads: tuple[str, ...]
) -> AsyncIterator[tuple[Connection, int]]:
    """Yields a connection and the thread's last sequence, after the read models have applied it; restores an archived
    thread."""
    head = await runtime.wait_until_thread_projected(tenant, thread, reads, without=READ_WHILE_REBUILT)
    async with context_connection(runtime) as conn:
        if not await restored_if_archived(runtime, conn, tenant, thread):
            yield conn, head
            return
    # The wait uses its own connection, so none is held meanwhile.
    head = await runtime.wait_until_thread_projected(tenant, thread, reads, without=READ_WHILE_REBUILT)
    async with context_connection(runtime) as conn:
        yield conn, head


@dataclass(frozen=True, slots=True)
class ReceiptFound:
    """A receipt with the sequence, thread and time of its event."""

    seq: int
    thread: str
    time: datetime
    receipt: AnswerReceipt


async def list_receipts(runtime: Runtime, tenant: str, thread: str, since: int = 1) -> list[ReceiptFound]:
    """Returns receipts from a sequence of the log on, oldest first; for a fork, including those of its shared past.
    Raises NotFound for an unknown thread, InvalidToken."""
    check_tenant(tenant)
    check_id("thread", thread)
    await runtime.wait_until_projected(names=("messages",))
    if not await runtime.log.thread_head(tenant, thread):
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    async with runtime.pool.connection() as conn:
        pairs = await receipts(conn, runtime.log, tenant, thread, since)
    return [ReceiptFound(at.seq, at.event.thread, at.event.time, receipt) for at, receipt in pairs]


def _question(newest: list[Message]) -> Message | None:
    """Returns the newest turn of a user, or the newest turn if no user spoke; None without turns."""
    return next((turn for turn in reversed(newest) if turn.role == "user"), newest[-1] if newest else None)


def _awaits_answer_to(newest: Sequence[Message], query: str) -> bool:
    """Returns whether the thread ends with the query as the user's turn, disregarding tool rounds."""
    rounds = (turn for turn in reversed(newest) if turn.role != "tool" and not turn.tool_calls)
    last = next(rounds, None)
    return last is not None and last.role == "user" and last.content == storable(query)
