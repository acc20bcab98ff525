"""Lists receipts of a thread's answers, rebuilds their contexts, and keeps the receipts that clients get."""

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from turnlog.agent.answering.thread_context import context_settings, thread_context
from turnlog.agent.context import Context, ContextInput, Summary, build_context, counter_for
from turnlog.agent.context.plain_text import with_speakers
from turnlog.agent.context.wire import Wire
from turnlog.agent.conversations.past import moment
from turnlog.agent.recall.memory_block import MemoryBlock, block_of
from turnlog.agent.recall.other_threads import turns_of
from turnlog.agent.runtime import Runtime
from turnlog.agent.settings import Settings
from turnlog.events.contracts import REMOVALS, AnswerReceipt, Recorded, Span
from turnlog.events.errors import TurnlogError
from turnlog.events.log import Log, nats_errors
from turnlog.events.subjects import RECEIPT_BUCKET, receipt_key
from turnlog.projectors.engine.writer import Connection
from turnlog.projectors.models.conversation.forks import parents
from turnlog.projectors.models.conversation.message import Message, thread_messages

RecordedReceipt = tuple[Recorded, AnswerReceipt]
RECEIPT_S = 15 * 60
MAX_BYTES = 900_000
MAX_BUCKET_BYTES = 64 * 1024 * 1024
logger = logging.getLogger("turnlog.receipts")


@dataclass(frozen=True, slots=True)
class RebuiltContext:
    """A past context. receipt: the recorded receipt, if there was an answer at that sequence.

    matches: whether the hash equals that of the recorded context; None if there is nothing to compare. forgotten: ids
    of long-term memories in the recorded context that were forgotten since, so that it cannot match. withheld: number
    of its preferences, entities and turns of other conversations that are not shown because words were forgotten or
    deleted since.
    """

    context: Context
    receipt: AnswerReceipt | None
    matches: bool | None
    forgotten: tuple[UUID, ...] = ()
    withheld: int = 0


async def rebuilt(
    conn: Connection,
    log: Log,
    settings: Settings,
    tenant: str,
    thread: str,
    as_of_seq: int,
    *,
    query: str | None = None,
    window: int | None = None,
    tokens: int | None = None,
) -> RebuiltContext:
    """Returns the context as of a sequence, with the model, window, prompt and settings of the answer made there, if
    any.

    window: overrides the recorded value. tokens: instead of window, the limit for all messages. query: added at the
    end. With any of them, nothing is compared. Receipts of
    v1 contain no prompt and no settings, so the present ones are used. Raises the errors of thread_context: NotFound,
    WindowTooSmall.
    """
    recorded = await receipt_at(conn, log, tenant, thread, as_of_seq)
    receipt = recorded[1] if recorded else None
    block, forgotten, withheld = await _block(conn, log, tenant, recorded)
    is_as_recorded = (query, window, tokens) == (None, None, None)
    if receipt and receipt.notes is not None and is_as_recorded:
        notes = () if forgotten or withheld else receipt.notes  # the memories' words were forgotten
        context = await _of_state(conn, log, settings, tenant, thread, receipt, notes, block.turns)
        matches = context.receipt.context_hash == receipt.context_hash
        return RebuiltContext(context, receipt, matches, forgotten, withheld)
    context = await thread_context(
        conn,
        _as_then(settings, receipt),
        tenant,
        thread,
        query=query,
        window=receipt.window if receipt and window is None else window,
        budget=receipt.budget if receipt and window is None else None,
        tokens=tokens,
        log=log,
        as_of_seq=as_of_seq,
        relevant=receipt.relevant if receipt else (),
        memories=block if query is not None else replace(block, turns=(*block.turns, *_doubt(receipt))),
    )
    if receipt is None or not is_as_recorded:
        return RebuiltContext(context, receipt, None, forgotten, withheld)
    return RebuiltContext(context, receipt, context.receipt.context_hash == receipt.context_hash, forgotten, withheld)


async def _of_state(
    conn: Connection,
    log: Log,
    settings: Settings,
    tenant: str,
    thread: str,
    receipt: AnswerReceipt,
    notes: Sequence[str],
    turns: Sequence[Wire],
) -> Context:
    """Returns the context made from the turns that a receipt with notes names, because LangGraph's state may contain
    other turns than the thread."""
    then = _as_then(settings, receipt)
    first = next((tier for tier in receipt.tiers if tier.tier == "1"), None)
    return build_context(
        ContextInput(
            with_speakers(await _turns_in(conn, tenant, thread, receipt.state)),
            receipt.model,
            then.system_prompt,
            summary=await _summary_at(log, tenant, thread, first.summary_seq if first else None),
            topics=first.topics if first else (),
            pruned_through_seq=1 if first else 0,  # not 0, so that tier 1 is sent even if all turns fit
            window=receipt.window,
            budget=receipt.budget,
            as_of_seq=receipt.as_of_seq,
            settings=context_settings(then),
            relevant=receipt.relevant,
            recalled_chunks=(receipt.known and receipt.known.turns) or (),
            memories=receipt.memories,
            known=receipt.known,
            notes=[*({"role": "user", "content": note} for note in notes), *turns, *_doubt(receipt)],
        )
    )


async def _turns_in(conn: Connection, tenant: str, thread: str, spans: Sequence[Span]) -> list[Message]:
    if not spans:
        return []
    turns = await thread_messages(conn, tenant, thread, spans[0][0] - 1, spans[-1][1])
    firsts = [first for first, _ in spans]
    return [turn for turn in turns if turn.seq <= spans[bisect_right(firsts, turn.seq) - 1][1]]


def _doubt(receipt: AnswerReceipt | None) -> list[Wire]:
    return [{"role": "user", "content": receipt.doubt}] if receipt and receipt.doubt else []


async def _summary_at(log: Log, tenant: str, thread: str, seq: int | None) -> Summary | None:
    if seq is None:
        return None
    summary = (await moment(log, tenant, thread, seq)).derived.summary
    return Summary(summary.summary, seq) if summary else None


async def _block(
    conn: Connection, log: Log, tenant: str, recorded: RecordedReceipt | None
) -> tuple[MemoryBlock, tuple[UUID, ...], int]:
    if recorded is None or not (recorded[1].memories or recorded[1].known):
        return MemoryBlock(), (), 0
    at, receipt = recorded
    user, known = at.event.user, receipt.known
    block, forgotten, withheld = await block_of(conn, log, tenant, user, receipt, at.seq)
    if not user or known is None or not known.turns:
        return block, forgotten, withheld
    turns, deleted = await turns_of(conn, tenant, user, known.turns, counter_for(receipt.model))
    return replace(block, turns=turns), forgotten, withheld + deleted


async def receipts(conn: Connection, log: Log, tenant: str, thread: str, since: int = 1) -> list[RecordedReceipt]:
    """Returns the receipts of a thread in order, from a sequence of the log on; for a fork, those of its shared past
    come first."""
    earlier: list[RecordedReceipt] = []
    for owner, through in await parents(conn, tenant, thread):
        if since <= through:
            earlier += [pair for pair in await _of(log, tenant, owner, since) if pair[1].as_of_seq <= through]
    return earlier + await _of(log, tenant, thread, since)


async def receipt_at(conn: Connection, log: Log, tenant: str, thread: str, as_of_seq: int) -> RecordedReceipt | None:
    """Returns the newest receipt of an answer that was made as of a sequence."""
    owner = next((name for name, through in await parents(conn, tenant, thread) if as_of_seq <= through), thread)
    pairs = await _of(log, tenant, owner, as_of_seq)
    return next((pair for pair in reversed(pairs) if pair[1].as_of_seq == as_of_seq), None)


async def _of(log: Log, tenant: str, thread: str, start_seq: int = 1) -> list[RecordedReceipt]:
    """Returns the receipts among the thread's own events since its last deletion."""
    pairs: list[RecordedReceipt] = []
    async for recorded in log.read_thread(tenant, thread, start_seq, types=("answer_receipt", *sorted(REMOVALS))):
        if isinstance(recorded.event.data, AnswerReceipt):
            pairs.append((recorded, recorded.event.data))
        else:
            pairs = []
    return pairs


def _as_then(settings: Settings, receipt: AnswerReceipt | None) -> Settings:
    """Returns the present settings, overridden by those of the receipt."""
    if receipt is None:
        return settings
    then = {} if receipt.settings is None else receipt.settings.model_dump()
    prompt = {} if receipt.system_prompt is None else {"system_prompt": receipt.system_prompt}
    return settings.model_copy(update={"model": receipt.model, **prompt, **then})


class ReceiptGone(TurnlogError):
    """The server does not have, or no longer has, a receipt with this id."""

    code = "receipt-gone"


class GivenReceipts:
    """Keeps the receipts of contexts, so that a client needs to send back only their ids.

    The receipts are in a JetStream bucket in memory, by tenant and user, so that every process can find them; entries
    expire by themselves. The bucket is a cache: after an entry has expired, the client sends the receipt itself.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._log, self._replicas = runtime.log, runtime.settings.replicas
        self._kv: KeyValue | None = None

    async def keep(self, tenant: str, user: str, receipt: bytes) -> UUID | None:
        """Keeps a receipt and returns the id to find it by; None if it cannot be kept."""
        if len(receipt) > MAX_BYTES:
            return None
        id_ = uuid4()
        try:
            await (await self._bucket()).create(receipt_key(tenant, user, id_.hex), receipt)
        except (NatsError, OSError, TimeoutError) as error:  # the bucket is full, or NATS is unavailable
            logger.info("a receipt is not kept: %r", error)
            self._kv = None
            return None
        return id_

    async def find(self, tenant: str, user: str, id_: UUID) -> bytes:
        """Returns the receipt of an id. Raises ReceiptGone, LogUnavailable."""
        with nats_errors("cannot ask NATS for a receipt"):
            try:
                return (await (await self._bucket()).get(receipt_key(tenant, user, id_.hex))).value or b""
            except KeyNotFoundError:
                raise ReceiptGone(
                    f"there is no receipt {id_} of yours; one is kept for {RECEIPT_S // 60} minutes. Send the receipt "
                    "itself, as it came with the context"
                ) from None

    async def forget(self, tenant: str, user: str) -> None:
        """Removes all receipts of a user. Raises LogUnavailable."""
        await self.remove(receipt_key(tenant, user, "*"))

    async def remove(self, key: str) -> None:
        """Removes the receipts with a key, which may contain wildcards. Raises LogUnavailable."""
        with nats_errors("cannot remove receipts from NATS"), contextlib.suppress(NotFoundError):
            js = self._log.nc.jetstream()
            await js.purge_stream(f"KV_{RECEIPT_BUCKET}", subject=f"$KV.{RECEIPT_BUCKET}.{key}")

    async def _bucket(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._log.nc.jetstream().create_key_value(
                KeyValueConfig(
                    bucket=RECEIPT_BUCKET,
                    description="turnlog: receipts given with contexts",
                    ttl=RECEIPT_S,
                    max_bytes=MAX_BUCKET_BYTES,
                    storage=StorageType.MEMORY,
                    replicas=self._replicas,
                )
            )
        return self._kv
