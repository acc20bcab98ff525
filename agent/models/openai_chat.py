"""Chat with any server that speaks the OpenAI API, through the `openai` client."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI

from turnlog.agent.models.answer import Answer
from turnlog.agent.models.calls import Caller
from turnlog.agent.models.errors import ModelUnavailable
from turnlog.agent.models.pricing import Price, cost_of
from turnlog.agent.models.protocol import ChatRequest, Completion, CountTokens, Delta

# These count their reasoning as output, and refuse the older field name and any temperature.
_COMPLETION_TOKENS = ("o1", "o3", "o4", "gpt-5")


def new_client(base_url: str, api_key: str | None, timeout_s: float) -> AsyncOpenAI:
    """The client without its own retries (Caller has them). Servers on one's own machine need no key."""
    return AsyncOpenAI(base_url=base_url, api_key=api_key or "none", timeout=timeout_s, max_retries=0)


class OpenAIChat:
    """A ChatModel. count_tokens is used only where a server sends no usage. Close with `close`.

    caller: its timeout holds for the first token and between any two tokens of a stream, and for the whole of
    `complete`. Retries happen only before the first token.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        count_tokens: CountTokens,
        timeout_s: float = 30.0,
        caller: Caller | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.model, self.provider = model, urlsplit(base_url).hostname or "openai"
        self._client = new_client(base_url, api_key, timeout_s)
        self._caller = caller or Caller(base_url, secret=api_key, timeout_s=timeout_s)
        self._count, self._prices = count_tokens, prices
        self._asks_usage = True

    async def close(self) -> None:
        await self._client.close()

    async def complete(self, request: ChatRequest) -> Completion:
        answer = Answer(time.perf_counter())
        answer.take_whole(await self._caller.call(lambda: self._create(request, stream=False)))
        return self._completion(request, answer)

    async def stream(self, request: ChatRequest) -> AsyncIterator[Delta]:
        may_restart, said = request.restart, False
        while True:
            try:
                async for delta in self._stream_once(request):
                    said = True
                    yield delta
                return
            except ModelUnavailable:
                # Before the first token the retries were made already.
                if not (may_restart and said):
                    raise
            may_restart = False
            yield Delta(restarted=True)

    async def _stream_once(self, request: ChatRequest) -> AsyncIterator[Delta]:
        answer = Answer(time.perf_counter())
        chunks, text = await self._caller.open(lambda: self._first_token(request, answer))
        settled = False
        try:
            while True:
                if text:
                    yield Delta(text=text)
                async with asyncio.timeout(self._caller.timeout_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                text = answer.take(chunk)
            if answer.finish_reason is None:
                raise ModelUnavailable(f"The answer of {self._caller.url} ended before it was finished.")
            settled = True
            self._caller.breaker.succeeded()
        except Exception as error:
            settled = True
            raise self._caller.settle(error) from None
        finally:
            if not settled:  # the reader went away
                self._caller.breaker.released()
            with suppress(Exception):
                await chunks.close()
        yield Delta(final=self._completion(request, answer))

    async def _first_token(self, request: ChatRequest, answer: Answer) -> tuple[Any, str]:
        """The open stream and its first text; role-only chunks before it still count as nothing said."""
        answer.forget()
        chunks = await self._create(request, stream=True)
        try:
            while (chunk := await anext(chunks, None)) is not None:
                if (text := answer.take(chunk)) or answer.calls or answer.finish_reason:
                    return chunks, text
        except BaseException:
            await chunks.close()
            raise
        raise ModelUnavailable(f"The answer of {self._caller.url} was empty.")

    async def _create(self, request: ChatRequest, *, stream: bool) -> Any:
        options = self._options(request)
        if stream:
            options["stream"] = True
            if self._asks_usage:
                options["stream_options"] = {"include_usage": True}
        try:
            reply: Any = await self._client.chat.completions.create(**options)
        except openai.BadRequestError as error:
            if not (stream and self._asks_usage and "stream_options" in str(error)):
                raise
            self._asks_usage = False  # an older server: it will never know the field
            return await self._create(request, stream=stream)
        if not stream and not getattr(reply, "choices", None):
            raise ModelUnavailable(
                f"{self._caller.url} answered, but not in the OpenAI format; check that API_BASE_URL is the API's "
                "address (…/v1) and not a web page."
            )
        return reply

    def _options(self, request: ChatRequest) -> dict[str, Any]:
        model = request.model or self.model
        options: dict[str, Any] = {"model": model, "messages": list(request.messages)}
        if request.tools:
            options["tools"] = list(request.tools)
        if request.temperature is not None and not model.startswith(_COMPLETION_TOKENS):
            options["temperature"] = request.temperature
        if request.max_tokens is not None:
            field_name = "max_completion_tokens" if model.startswith(_COMPLETION_TOKENS) else "max_tokens"
            options[field_name] = request.max_tokens
        return options

    def _completion(self, request: ChatRequest, answer: Answer) -> Completion:
        text, calls = answer.whole_text(), answer.tool_calls()
        tokens_in, tokens_out = answer.tokens_in, answer.tokens_out
        if tokens_in is None or tokens_out is None:
            said = text + "".join(call.name + call.arguments for call in calls)
            tokens_in = sum(self._count(json.dumps(m, ensure_ascii=False)) for m in request.messages)
            tokens_out = self._count(said)
        model = answer.model or request.model or self.model
        cost = cost_of(model, tokens_in, tokens_out, self._prices)
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
