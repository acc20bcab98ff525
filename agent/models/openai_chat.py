"""Implements ChatModel for any server that speaks the OpenAI API, with the `openai` client."""

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from turnlog.agent.context.window import output_reserve, window_for
from turnlog.agent.context.wire import with_custom_calls
from turnlog.agent.models import observed
from turnlog.agent.models.calls import Breaker, ResilientClient
from turnlog.agent.models.errors import ModelError, ModelRefused, ModelTimedOut, ModelUnavailable, NotAnAPI
from turnlog.agent.models.lanes import Lane
from turnlog.agent.models.openai_answer import Answer
from turnlog.agent.models.openai_http import Chunks, new_client
from turnlog.agent.models.pricing import Prices, load_prices
from turnlog.agent.models.protocol import (
    BROKE_OFF,
    CUT_OFF,
    REPETITION,
    TIME_UP,
    ChatRequest,
    Completion,
    CountTokens,
    Delta,
)
from turnlog.agent.models.repetition import Repetition
from turnlog.agent.models.structured import accepted_form, with_format

# Many models write at most this number of tokens, and some servers refuse a higher limit instead of lowering it.
_COMMON_BOUND = 4_096
_BOUND_REFUSED = re.compile(r"max_(completion_|output_|new_)?tokens|maximum context|context length", re.IGNORECASE)
# Ends answers of servers that ignore the token limit; tokens have fewer characters than this on average.
_CHARS_PER_TOKEN = 16

# These models count reasoning as output, and refuse the older field name and any temperature.
_COMPLETION_TOKENS = ("o1", "o3", "o4", "gpt-5")


def _now() -> float:
    return asyncio.get_running_loop().time()


class OpenAIChat:
    """A ChatModel. count_tokens: used only if a server sends no usage. Close it with `close`.

    resilient: its timeout applies to the first token (all attempts together), to the time between two tokens of a
    stream, and to a complete call of `complete`. Tokens of reasoning count too. answer_timeout_s: limit of a complete
    stream. Calls are retried only before the first token.

    window: the model's window in tokens; 0 infers it from the name. If a request has no max_tokens, its answer may take
    the part of the window that is reserved for output. An answer that repeats itself is ended with the finish reason
    REPETITION, an answer that exceeds its limit with CUT_OFF. lane: the lane of the server. background: calls of this
    client wait until no answer runs in the lane. prices: the bundled ones by default.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        count_tokens: CountTokens,
        timeout_s: float = 30.0,
        answer_timeout_s: float = 120.0,
        resilient: ResilientClient | None = None,
        window: int = 0,
        lane: Lane | None = None,
        background: bool = False,
        prices: Prices | None = None,
    ) -> None:
        self._prices = prices or load_prices()
        self._answer_timeout_s = answer_timeout_s
        self.model, self.provider = model, urlsplit(base_url).hostname or "openai"
        self._window, self._lane, self._background = window, lane, background
        self._bounds_refused: dict[str, int] = {}  # model → number of limits that the server has refused
        self._client = new_client(base_url, api_key, timeout_s)
        self._resilient = resilient or ResilientClient(base_url, secret=api_key, timeout_s=timeout_s)
        self._count = count_tokens
        self._asks_usage = True

    @property
    def breaker(self) -> Breaker:
        return self._resilient.breaker

    @property
    def json_form(self) -> str:
        """Returns the first of structured.FORMS that the server has not refused for this model."""
        return accepted_form(self._resilient.url, self.model)

    async def close(self) -> None:
        await self._client.close()

    async def complete(self, request: ChatRequest) -> Completion:
        with observed.chat(self, request.model) as done:
            if self._lane is None:
                completion = await self._complete(request)
            elif self._background:
                completion = await self._lane.background(lambda: self._complete(request))
            else:
                with self._lane.answer():
                    completion = await self._complete(request)
            done(completion)
        return completion

    async def _complete(self, request: ChatRequest) -> Completion:
        answer = Answer(time.perf_counter())
        within_s = min((at - _now() for at in (request.ends_at, request.text_by) if at is not None), default=math.inf)
        if self._background and self._lane is not None:
            # Requested as a stream, because llama.cpp notices at once when the client of a stream disconnects;
            # otherwise it would finish the answer.
            ends_at = _now() + (self._resilient.timeout_s if within_s == math.inf else within_s)
            async with aclosing(self._pieces(request, answer, ends_at)) as pieces:
                async for _ in pieces:
                    pass
        else:
            answer.take_whole(
                await self._resilient.call(lambda: self._create(request, stream=False), request.asker, within_s)
            )
        return self._completion(request, answer)

    async def stream(self, request: ChatRequest) -> AsyncIterator[Delta]:
        ends_at = _now() + self._answer_timeout_s if request.ends_at is None else request.ends_at
        broken: Answer | None = None
        shown = False
        with observed.chat(self, request.model) as done, self._lane.answer() if self._lane else nullcontext():
            while True:
                answer, began = Answer(time.perf_counter()), False
                try:
                    text_by = math.inf if request.text_by is None or shown else request.text_by
                    async with aclosing(self._pieces(request, answer, ends_at, text_by)) as pieces:
                        async for delta in pieces:
                            if shown and not began:
                                yield Delta(restarted=True)
                            began = shown = True
                            yield delta
                    break
                except ModelError as error:
                    # Reasoning is not shown, so an answer that broke off while reasoning may always restart.
                    may_restart = request.restart if began else answer.thought > 0
                    broke_off = isinstance(error, ModelUnavailable) and not isinstance(error, ModelTimedOut)
                    if may_restart and broken is None and broke_off:
                        broken = answer
                        continue
                    # If the restart never began, the earlier text remains.
                    answer = answer if began or broken is None else broken
                    if isinstance(error, ModelRefused) or not answer.whole_text().strip():
                        raise
                    answer.end_early(TIME_UP if isinstance(error, ModelTimedOut) else BROKE_OFF)
                    break
            completion = self._completion(request, answer)
            done(completion)
            yield Delta(final=completion)

    async def _pieces(
        self, request: ChatRequest, answer: Answer, ends_at: float, text_by: float = math.inf
    ) -> AsyncGenerator[Delta, None]:
        """Yields the pieces of a stream and adds them to the answer; retries only before the first piece. Raises
        ModelError.

        ends_at, text_by: as in a ChatRequest. Pieces of reasoning are not yielded, but they count for the length of the
        answer, and a server that sends them does not count as silent.
        """
        repetition = Repetition()
        room = _CHARS_PER_TOKEN * (request.max_tokens or self._reserve(request.model or self.model))
        attempt = partial(self._first_token, request, answer)
        silence_s = min(self._resilient.timeout_s, text_by - _now())
        chunks, delta = await self._resilient.open(attempt, request.asker, min(silence_s, ends_at - _now()))
        is_reported = has_text = False
        try:
            while True:
                if delta.text or delta.calls:
                    yield delta
                piece = delta.text + "".join(call.arguments for call in delta.calls)
                room -= len(piece)
                if repetition.add(piece) or room < answer.thought:
                    answer.end_early(REPETITION if room >= answer.thought else CUT_OFF)
                    break
                if _now() >= ends_at:  # a timeout alone does not fire while chunks are ready
                    raise TimeoutError
                has_text = has_text or bool(delta.text.strip())
                if not has_text and _now() >= text_by:
                    raise TimeoutError
                left_s = (ends_at if has_text else min(ends_at, text_by)) - _now()
                async with asyncio.timeout(min(self._resilient.timeout_s, left_s)):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                delta = answer.take(chunk)
            if answer.finish_reason is None:
                raise ModelUnavailable(f"The answer of {self._resilient.url} ended before it was finished.")
            is_reported = True
            self._resilient.breaker.succeeded(request.asker)
        except Exception as error:
            if _now() < ends_at:
                is_reported = True
                limit_s = self._resilient.timeout_s if has_text else silence_s
                raise self._resilient.report_failure(error, request.asker, limit_s) from None
            raise ModelTimedOut(f"The answer of {self._resilient.url} was not finished in time.") from None
        finally:
            if not is_reported:  # the caller stopped reading, or the answer is too long; the server works
                self._resilient.breaker.released()
            with suppress(Exception):
                await chunks.close()

    async def _first_token(self, request: ChatRequest, answer: Answer) -> tuple[Chunks, Delta]:
        """Returns the open stream and its first piece of the answer or of reasoning; chunks that only name the role are
        skipped."""
        answer.forget()
        chunks = await self._create(request, stream=True)
        try:
            kind = chunks.response.headers.get("content-type", "")
            if "html" in kind:
                raise self._no_api(f"a web page ({kind})")
            while (chunk := await anext(chunks, None)) is not None:
                delta = answer.take(chunk)
                if delta.text or delta.calls or answer.thought or answer.finish_reason:
                    return chunks, delta
        except BaseException:
            await chunks.close()
            raise
        raise ModelUnavailable(f"The answer of {self._resilient.url} was empty.")

    async def _create(self, request: ChatRequest, *, stream: bool) -> Any:
        options = self._options(request)
        if stream:
            options["stream"] = True
            if self._asks_usage:
                options["stream_options"] = {"include_usage": True}
        try:
            reply = await self._bounded(options, request)
        except openai.BadRequestError as error:
            if not (stream and self._asks_usage and "stream_options" in str(error)):
                raise
            self._asks_usage = False  # an older server, which does not know the field
            return await self._create(request, stream=stream)
        if not stream and not getattr(reply, "choices", None):
            raise self._no_api("no answer in the OpenAI format")
        return reply

    def _no_api(self, reply: str) -> NotAnAPI:
        return NotAnAPI(
            f"{self._resilient.url} gave {reply}; check that API_BASE_URL is the API's address (…/v1), not a web page."
        )

    def _reserve(self, model: str) -> int:
        return output_reserve(self._window or window_for(model))

    async def _bounded(self, options: dict[str, Any], request: ChatRequest) -> Any:
        """Returns the reply, with the token limit of the request or else a default one, which is lowered if the server
        refuses it."""
        model = options["model"]
        name = "max_completion_tokens" if model.startswith(_COMPLETION_TOKENS) else "max_tokens"
        if request.max_tokens is not None:
            return await self._formatted({**options, name: request.max_tokens}, request)
        reserve = self._reserve(model)
        bounds = [*dict.fromkeys([reserve, min(reserve, _COMMON_BOUND)]), None]
        for index in range(self._bounds_refused.get(model, 0), len(bounds)):
            bound = bounds[index]
            try:
                reply = await self._formatted({**options, **({} if bound is None else {name: bound})}, request)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if bound is None or not _BOUND_REFUSED.search(str(error)):
                    raise
                continue
            self._bounds_refused[model] = index
            return reply

    async def _formatted(self, options: dict[str, Any], request: ChatRequest) -> Any:
        async def create(more: dict[str, Any]) -> Any:
            # Uses `post`, which the client documents for endpoints without a method. The client's own method inspects
            # the types of every message, which takes nine tenths of a call with 200 messages and checks nothing.
            sent, stream = {**options, **more}, bool(options.get("stream"))
            return await self._client.post(
                "/chat/completions", body=sent, cast_to=ChatCompletion, stream=stream, stream_cls=Chunks
            )

        if request.json_model is None:
            return await create({})
        return await with_format(self._resilient.url, options["model"], request.json_model, create)

    def _options(self, request: ChatRequest) -> dict[str, Any]:
        model = request.model or self.model
        messages = with_custom_calls(request.messages, request.tools)
        options: dict[str, Any] = {**request.options, "model": model, "messages": messages}
        if request.tools:
            options["tools"] = list(request.tools)
        if request.temperature is not None and not model.startswith(_COMPLETION_TOKENS):
            options["temperature"] = request.temperature
        return options

    def _completion(self, request: ChatRequest, answer: Answer) -> Completion:
        text, calls = answer.whole_text(), answer.tool_calls()
        tokens_in, tokens_out = answer.tokens_in, answer.tokens_out
        if tokens_in is None or tokens_out is None:
            tokens_in = sum(self._count(json.dumps(m, ensure_ascii=False)) for m in request.messages)
            tokens_out = self._count(text + "".join(call.name + call.arguments for call in calls))
        model = answer.model or request.model or self.model
        cost = self._prices.cost_of(model, tokens_in, tokens_out)
        return Completion(
            text=text,
            tool_calls=calls,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost_usd=cost.usd,
            price_known=cost.known,
            model=model,
            provider=self.provider,
            latency_ms=(time.perf_counter() - answer.started) * 1000,
            finish_reason=answer.finish_reason,
        )
