"""The answer when no language model is configured: quotes from the conversation, and it says so."""

import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from turnlog.agent.models.language import is_chinese
from turnlog.agent.models.offline_tasks import MODEL, PROVIDER
from turnlog.agent.models.protocol import ChatRequest, Completion, CountTokens, Delta
from turnlog.agent.models.quotes import nearest, recalled, said_before, text_of
from turnlog.events.contracts import ToolCall

RECALL_TOOL = "recall_memory"
_RECALLED, _RECENT = 3, 2

_FOUND = {
    "en": "[offline, no language model configured] From this conversation I found:",
    "zh": "[离线，未配置语言模型] 我在这段对话中找到：",
}
_NOTHING = {
    "en": (
        "[offline, no language model configured] I found nothing about this in the conversation. "
        "Set API_KEY and API_BASE_URL (any OpenAI-compatible server) to get answers from a language model."
    ),
    "zh": (
        "[离线，未配置语言模型] 在这段对话中没有找到相关内容。"
        "设置 API_KEY 和 API_BASE_URL（任何兼容 OpenAI 的服务）即可获得语言模型的回答。"
    ),
}
_PIECE = re.compile(r"[^\s\u4e00-\u9fff]+\s*|[\u4e00-\u9fff]{1,2}\s*|\s+")


class OfflineChat:
    """A ChatModel that understands nothing: it calls recall_memory with the question and quotes what came back.

    Deterministic: the same messages give the same tool call id and the same text. Tool results as in quotes.py.
    """

    model = MODEL
    provider = PROVIDER

    def __init__(self, count_tokens: CountTokens) -> None:
        self._count = count_tokens

    async def stream(self, request: ChatRequest) -> AsyncIterator[Delta]:
        final = await self.complete(request)
        for piece in _PIECE.findall(final.text):
            yield Delta(text=piece)
        yield Delta(final=final)

    async def complete(self, request: ChatRequest) -> Completion:
        started = time.perf_counter()
        turn = _Turn(request.messages)
        calls = (turn.recall_call(request.tools),) if turn.wants_recall(request.tools) else ()
        text = "" if calls else turn.answer()
        return Completion(
            text=text,
            tool_calls=calls,
            tokens_in=sum(self._count(text_of(m.get("content"))) for m in request.messages),
            tokens_out=self._count(text + "".join(call.arguments for call in calls)),
            cost_usd=0.0,
            model=MODEL,
            provider=PROVIDER,
            latency_ms=(time.perf_counter() - started) * 1000,
            finish_reason="tool_calls" if calls else "stop",
        )


class _Turn:
    """The last question of the messages and what came after it."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        asked = [i for i, m in enumerate(messages) if m.get("role") == "user"]
        last = asked[-1] if asked else len(messages)
        self._before = messages[: last + 1]
        self._results = [m for m in messages[last + 1 :] if m.get("role") == "tool"]
        self.question = text_of(messages[last].get("content")) if asked else ""

    def wants_recall(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        offered = any(_name(tool) == RECALL_TOOL for tool in tools)
        return offered and not self._results and bool(self.question.strip())

    def recall_call(self, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
        schema = next(tool for tool in tools if _name(tool) == RECALL_TOOL)["function"].get("parameters", {})
        argument = "query" if "query" in schema.get("properties", {"query": {}}) else schema["required"][0]
        arguments = json.dumps({argument: self.question}, ensure_ascii=False)
        # The place in the conversation is part of the id: the same question asked twice is two calls.
        seed = f"{len(self._before)}\n{arguments}".encode()
        return ToolCall(id=f"call_{hashlib.sha256(seed).hexdigest()[:16]}", name=RECALL_TOOL, arguments=arguments)

    def answer(self) -> str:
        language = "zh" if is_chinese(self.question) else "en"
        found = [quote for m in self._results for quote in recalled(m.get("content"))][:_RECALLED]
        known = {quote.text for quote in found}
        # Recall leaves out what is still in the window, so the window is searched here.
        recent = [q for q in nearest(self.question, said_before(self._before), _RECENT) if q.text not in known]
        lines = [quote.shown() for quote in [*found, *recent]]
        return "\n".join([_FOUND[language], *lines]) if lines else _NOTHING[language]


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", {}).get("name", ""))
