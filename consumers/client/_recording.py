"""One chat completion on a thread: its new messages, its context, and the answer that is recorded."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlog._thread import Context, Thread
from turnlog.agent.context.wire import called, with_custom_calls
from turnlog.agent.models.pricing import cost_of
from turnlog.agent.use_cases.resent import Wire, split_prompt, unseen, with_own_last
from turnlog.events.contracts import UsageMetered
from turnlog.events.errors import NotFound

AGENT = "openai-client"


@dataclass(slots=True)
class Heard:
    """What a model answered, whole or so far."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    is_whole: bool = False

    @classmethod
    def of_completion(cls, reply: Any) -> "Heard":
        message = reply.choices[0].message
        heard = cls(message.content or getattr(message, "refusal", None) or "", model=reply.model, is_whole=True)
        for at, call in enumerate(message.tool_calls or ()):
            name, arguments = called(call.model_dump())
            heard.calls[at] = {"id": call.id, "name": name, "arguments": arguments}
        heard._count(reply.usage)
        return heard

    def add(self, chunk: Any) -> None:
        """A chunk of a stream."""
        self.model = chunk.model or self.model
        self._count(getattr(chunk, "usage", None))
        for choice in chunk.choices:
            if choice.index:
                continue
            self.text += choice.delta.content or getattr(choice.delta, "refusal", None) or ""
            for piece in choice.delta.tool_calls or ():
                call = self.calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = piece.id or call["id"]
                if piece.function is not None:
                    call["name"] += piece.function.name or ""
                    call["arguments"] += piece.function.arguments or ""

    def _count(self, usage: Any) -> None:
        if usage is not None:
            self.tokens_in, self.tokens_out = usage.prompt_tokens, usage.completion_tokens

    @property
    def whole_calls(self) -> list[dict[str, str]]:
        """The calls whose arguments came whole: others cannot be run."""
        return [call for call in self.calls.values() if call["id"] and (self.is_whole or _is_json(call["arguments"]))]


@dataclass(slots=True)
class Exchange:
    """A request under way. messages: what the model gets."""

    thread: Thread
    context: Context
    messages: list[Any]
    model: str
    started: float = field(default_factory=time.perf_counter)
    ended: bool = False

    async def end(self, heard: Heard) -> None:
        """Records the answer, once; nothing when nothing came."""
        if self.ended or not (heard.text or heard.whole_calls):
            return
        self.ended = True
        model, latency = heard.model or self.model, (time.perf_counter() - self.started) * 1000
        await self.thread.add(
            "assistant",
            heard.text,
            receipt=self.context.receipt,
            tool_calls=heard.whole_calls,
            model=model,
            tokens_in=heard.tokens_in,
            tokens_out=heard.tokens_out,
            latency_ms=latency,
            usage=_usage(model, heard, latency),
        )


async def begun(thread: Thread, arguments: Wire, tokens: int | None) -> Exchange:
    """Stores the caller's new messages and builds the context that ends with them.

    Raises InvalidEvent, NotFound for a request without messages on a thread without turns, WindowTooSmall.
    """
    given = [one if isinstance(one, Mapping) else one.model_dump(exclude_none=True) for one in arguments["messages"]]
    prompt, said = split_prompt(given)
    new = await _new(thread, said)
    if new:
        await thread.extend(new)
    model = str(arguments.get("model") or "")
    tools = arguments.get("tools") or ()
    tools = tools if isinstance(tools, list | tuple) else ()
    context = await thread.context(
        tokens=tokens,
        model=model or None,
        system_prompt=prompt or "",
        tools=tools,
    )
    messages = with_custom_calls(with_own_last(list(context.messages), said), tools)
    return Exchange(thread, context, messages, model)


async def _new(thread: Thread, given: Sequence[Wire]) -> Sequence[Wire]:
    """The messages behind the longest beginning that the thread ends with.

    Where none fits, as with a history that was shortened or edited: those behind the caller's last answer, unless the
    thread is empty.
    """
    try:
        known = await thread.messages(limit=max(1, len(given)), newest=True)
    except NotFound:
        return given
    if (behind := unseen(given, known)) is not None:
        return behind
    answered = max((at for at, one in enumerate(given) if one.get("role") == "assistant"), default=-1)
    return given[answered + 1 :]


def _usage(model: str, heard: Heard, latency_ms: float) -> UsageMetered:
    tokens_in, tokens_out = heard.tokens_in or 0, heard.tokens_out or 0
    return UsageMetered(
        purpose="answer",
        agent=AGENT,
        provider="openai",
        model=model,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        cost_usd=cost_of(model, tokens_in, tokens_out).usd,
        latency_ms=latency_ms,
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text or "{}")
    except ValueError:
        return False
    return True
