"""What the model got for each answer of a thread (C10)."""

from dataclasses import dataclass
from datetime import datetime

from turnlog.agent.runtime import Runtime
from turnlog.agent.threads import receipts
from turnlog.events.contracts import AnswerReceipt
from turnlog.events.errors import NotFound
from turnlog.events.subjects import check_id, check_tenant


@dataclass(frozen=True, slots=True)
class ReceiptFound:
    """A receipt with the sequence, thread and time of its event; a fork's are also those of its shared past."""

    seq: int
    thread: str
    time: datetime
    receipt: AnswerReceipt


async def list_receipts(runtime: Runtime, tenant: str, thread: str) -> list[ReceiptFound]:
    """Oldest first. Raises NotFound for an unknown thread, InvalidToken."""
    check_tenant(tenant)
    check_id("thread", thread)
    await runtime.settle(names=("messages",))
    if not await runtime.log.thread_head(tenant, thread):
        raise NotFound(f"there is no thread {thread!r}; `turnlog threads` lists them")
    async with runtime.pool.connection() as conn:
        found = await receipts.receipts(conn, runtime.log, tenant, thread)
    return [ReceiptFound(at.seq, at.event.thread, at.event.time, receipt) for at, receipt in found]
