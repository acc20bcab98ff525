"""Records one chat completion on a thread: stores its new messages, builds its context, and records the answer."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from turnlog._thread import Context, Thread
from turnlog.agent.answering.client_tasks import ends_with_a_prompt
from turnlog.agent.answering.turns import turn_of
from turnlog.agent.context.wire import with_custom_calls
from turnlog.agent.conversations.transcript_matching import Wire, split_prompt, unseen, with_own_last
from turnlog.agent.models.openai_answer import Answer
from turnlog.agent.models.pricing import load_prices
from turnlog.agent.models.protocol import Usage
from turnlog.events.errors import NotFound, cause
from turnlog.events.texts import storable

AGENT = "openai-client"
logger = logging.getLogger("turnlog.client")


class Exchange:
    """A running request. Until it ends, no other request answers in its thread.

    It runs in its own task, because a cancelled caller often cannot wait for anything any more. messages: the messages
    for the model. heard: the received part of the answer. is_whole: True if the answer came at once, not as a stream.
    """

    def __init__(self, thread: Thread, arguments: Wire, tokens: int | None) -> None:
        self.messages: list[Any] = []
        self.heard, self.is_whole = Answer(time.perf_counter(), keeps_refusals=True), False
        self._model = str(arguments.get("model") or "")
        self._is_failed, self._close = False, cast("Callable[[], Awaitable[Any]] | None", None)
        self._over, self._begun = asyncio.Event(), asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run(thread, arguments, tokens))
        self.task.add_done_callback(self._ended)

    async def begin(self) -> None:
        """Waits until the messages are stored. Raises the errors of `begun`."""
        try:
            await asyncio.shield(self._begun)
        except asyncio.CancelledError:
            self.stop()
            raise

    def take_whole(self, reply: Any) -> None:
        """Remembers a completion that was not streamed, to be recorded by `end`."""
        self.heard.take_whole(reply)
        self.is_whole = True

    async def end(self) -> None:
        """Records the answer and waits for this; records nothing if the answer is empty or failed. A second call
        records nothing more."""
        self._over.set()
        await asyncio.shield(self.task)

    def leave(self, close: Callable[[], Awaitable[Any]] | None = None) -> None:
        """Ends like `end`, without waiting. close: closes the stream, which is no longer read."""
        self._close = close
        self._over.set()

    def fail(self) -> None:
        """Ends the request without recording an answer."""
        self._is_failed = True
        self._over.set()

    def stop(self) -> None:
        """Ends the request when the memory is closed: records the received part of the answer, or nothing if the
        request has not begun."""
        self._over.set()
        if not self._begun.done():
            self.task.cancel()

    async def _run(self, thread: Thread, arguments: Wire, tokens: int | None) -> None:
        prompt, said = split_prompt(storable(arguments["messages"]))

        async def fork() -> Thread | None:
            new, end = await _new(thread, said)
            return None if new else await thread.fork(end)

        async with thread._turn(fork) as forked:
            thread = forked or thread
            new, end = ((), 0) if forked else await _new(thread, said)
            if new:
                turns = [
                    replace(turn_of(message), origin="program" if ends_with_a_prompt(message) else None)
                    for message in new
                ]
                end = (await thread._append(turns, None, None))[-1].seq
                await thread._tell_waiting()
            tools = arguments.get("tools") or ()
            tools = tools if isinstance(tools, list | tuple) else ()
            asked = {
                "tokens": tokens,
                "model": self._model or None,
                "system_prompt": prompt or "",
                "tools": list(tools),
            }
            context = await thread._context(asked, end or None)
            self.messages = with_custom_calls(with_own_last(list(context.messages), said), tools)
            started = time.perf_counter()
            self._begun.set_result(None)
            await self._over.wait()
            latency = (time.perf_counter() - started) * 1000
            if not self._is_failed:
                await self._record(thread, context, latency)
        if self._close is not None:
            await self._close()

    async def _record(self, thread: Thread, context: Context, latency_ms: float) -> None:
        """Records the received text and tool calls. Calls with incomplete arguments are left out, because they cannot
        be run."""
        heard, model = self.heard, self.heard.model or self._model
        text = heard.whole_text()
        calls = [call for call in heard.tool_calls() if self.is_whole or _is_json(call.arguments)]
        if not text and not calls:
            return
        tokens_in, tokens_out = heard.tokens_in or 0, heard.tokens_out or 0
        runtime = getattr(thread, "_runtime", None)  # a remote thread has none
        prices = load_prices(runtime.settings.prices if runtime is not None else None)
        cost = prices.cost_of(model, tokens_in, tokens_out)
        used = Usage("openai", model, 1, tokens_in, tokens_out, cost.usd, cost.known, latency_ms)
        await thread.add(
            "assistant",
            text,
            receipt=context.receipt,
            tool_calls=[call.model_dump() for call in calls],
            model=model,
            tokens_in=heard.tokens_in,
            tokens_out=heard.tokens_out,
            latency_ms=latency_ms,
            usage=used.metered("answer", AGENT),
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._begun.done():
            self._begun.set_exception(error or asyncio.CancelledError())
        elif isinstance(error, Exception):
            logger.warning("an answer of a wrapped client could not be recorded: %s", cause(error))


def as_sent(messages: Sequence[Any]) -> list[Wire]:
    """Returns the caller's messages as dicts; those of an earlier answer may be objects of the OpenAI library."""
    return [message if isinstance(message, Mapping) else message.model_dump(exclude_none=True) for message in messages]


async def begun(exchanges: set[Exchange], thread: Thread, arguments: Wire, tokens: int | None) -> Exchange:
    """Stores the caller's new messages when it is the request's turn, and builds the context that ends with them.
    exchanges: contains the request until it ends.

    Raises InvalidEvent, NotFound for a request without messages on a thread without turns, WindowTooSmall,
    TooManyWaiting.
    """
    exchange = Exchange(thread, arguments, tokens)
    exchanges.add(exchange)
    exchange.task.add_done_callback(lambda _: exchanges.discard(exchange))
    await exchange.begin()
    return exchange


async def _new(thread: Thread, messages: Sequence[Wire]) -> tuple[Sequence[Wire], int]:
    """Returns the messages that are new for the thread, and the sequence of its last turn.

    The new messages follow the longest prefix of the messages with which the thread ends. If there is no such prefix,
    as after the caller has shortened or edited the history, the messages after the caller's last answer are new; in an
    empty thread all are new.
    """
    try:
        known = await thread.messages(limit=max(1, len(messages)), newest=True)
    except NotFound:
        return messages, 0
    end = known[-1].seq if known else 0
    if (behind := unseen(messages, known)) is not None:
        return behind, end
    answered = max((at for at, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    return messages[answered + 1 :], end


def _is_json(text: str) -> bool:
    try:
        json.loads(text or "{}")
    except ValueError:
        return False
    return True
