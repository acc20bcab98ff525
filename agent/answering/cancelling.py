"""Stops a running answer when the person who asked does not want the rest."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from turnlog.agent.answering.asking import question_at
from turnlog.agent.answering.pieces import Progress
from turnlog.agent.answering.prepare import Prepared
from turnlog.agent.answering.request import FAILURE, answer_id
from turnlog.agent.context import counter_for
from turnlog.agent.models.pricing import load_prices
from turnlog.agent.models.protocol import CANCELLED, Completion
from turnlog.agent.runtime import Runtime
from turnlog.events.contracts import Event
from turnlog.events.errors import TurnlogError
from turnlog.events.subjects import cancel_subject

PATIENCE_S = 10.0  # how long to wait for a worker to take up the question
LOOK_AGAIN_S = 0.2
CONFIRMED_S = 2.0


class AnswerCancelled(TurnlogError):
    """The person who asked stopped the answer before its first word."""

    code = "answer-cancelled"


class NotUnderWay(TurnlogError):
    """No worker is making the answer: it has ended or has not begun."""

    code = "not-under-way"


async def cancel_answer(runtime: Runtime, tenant: str, thread: str, seq: int) -> None:
    """Stops the running answer to a question; the text so far is recorded as the answer.

    seq: from `QuestionStored`. Raises NotFound if the thread has no such question, NotUnderWay.
    """
    request = await question_at(runtime, tenant, thread, seq)
    subject = cancel_subject(tenant, thread, str(request.id))
    ends_at = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            await runtime.log.nc.request(subject, b"", timeout=CONFIRMED_S)
            return
        except (NatsError, TimeoutError):
            stored = await runtime.log.stored_ids(tenant, thread, seq)
            has_ended = {answer_id(request.id, "answer"), answer_id(request.id, FAILURE)} & set(stored)
            if has_ended or asyncio.get_running_loop().time() > ends_at:
                raise NotUnderWay(f"no answer to the question at sequence {seq} is being made") from None
        await asyncio.sleep(LOOK_AGAIN_S)


@contextlib.asynccontextmanager
async def until_cancelled(nc: Client, request: Event) -> AsyncIterator[None]:
    """Cancels the block as soon as `cancel_answer` is called for the request. Raises AnswerCancelled then."""
    scope = asyncio.timeout(None)

    async def on_message(message: Msg) -> None:
        with contextlib.suppress(RuntimeError):  # the block has ended in the meantime
            scope.reschedule(asyncio.get_running_loop().time())
            await message.respond(b"")

    watching = await nc.subscribe(cancel_subject(request.tenant, request.thread, str(request.id)), cb=on_message)
    try:
        async with scope:
            yield
    except TimeoutError:
        if scope.expired():
            raise AnswerCancelled("the answer was stopped before its first word") from None
        raise
    finally:
        await watching.unsubscribe()


def said_so_far(
    runtime: Runtime, prepared: Prepared | None, progress: Progress, model: str | None
) -> Completion | None:
    """Returns the part of a cancelled answer that has arrived; None if nothing has.

    Its tokens are estimated, because the model reports them only at the end of an answer.
    """
    text, chat = "".join(progress.said), runtime.models.chat
    if prepared is None or not text.strip():
        return None
    model = model or chat.model
    count = counter_for(model).text
    tokens_in = sum(count(json.dumps(message, ensure_ascii=False)) for message in prepared.context.messages)
    tokens_out = count(text)
    cost = load_prices(runtime.settings.prices).cost_of(model, tokens_in, tokens_out)
    return Completion(text, (), tokens_in, tokens_out, cost.usd, model, chat.provider, 0.0, cost.known, CANCELLED)
