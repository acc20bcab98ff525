"""Answers without a language model by quoting from the conversation, and says so."""

import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.agent.context.about_memory import asks_for_everything, asks_to_forget
from turnlog.agent.context.titles import ENTITIES, MEMORIES, NOTES, SAID_EARLIER, SUMMARY_TITLE, TOLD, TOPICS_TITLE
from turnlog.agent.models.language import is_chinese
from turnlog.agent.models.offline_tasks import MODEL, PROVIDER
from turnlog.agent.models.prompts import DOUBT, DOUBT_ZH
from turnlog.agent.models.protocol import ChatRequest, Completion, CountTokens, Delta
from turnlog.events.contracts import ToolCall
from turnlog.projectors.models.conversation.speech import RECALL_TOOL
from turnlog.projectors.models.terms import terms

MAX_CHARS = 400
_FOUND = {
    "en": "[offline, no language model configured] I found:",
    "zh": "[离线，未配置语言模型] 我找到：",
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
_TO_FORGET = {
    "en": (
        "[offline, no language model configured] You ask to forget something. The list of memories "
        "(`turnlog memories --user NAME`) shows what is kept; `turnlog forget` and `turnlog clear` remove it."
    ),
    "zh": (
        "[离线，未配置语言模型] 你要求忘记一些内容。记忆列表（`turnlog memories --user 名字`）显示保留了什么；"
        "`turnlog forget` 和 `turnlog clear` 可以删除。"
    ),
}
_MORE = {
    "en": "`turnlog memories --user NAME` lists all that is kept.",
    "zh": "`turnlog memories --user 名字` 会列出保留的全部内容。",
}
_OWN = (SUMMARY_TITLE, TOPICS_TITLE, DOUBT, DOUBT_ZH, *(text.partition("]")[0] for text in _FOUND.values()))
_NOTE = re.compile(r"- (?:(?P<date>\d{4}-\d\d-\d\d) )?(?P<text>.*)")
_THINKING = re.compile(r"<thinking>.*?(</thinking>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage to quote as an answer. speaker and date are empty if unknown. is_memory: it is a memory in turnlog's
    words, so it is shown without quotation marks."""

    text: str
    speaker: str = ""
    date: str = ""
    is_memory: bool = False

    def shown(self) -> str:
        source = ", ".join(filter(None, (self.date, self.speaker)))
        text = " ".join(self.text.split())
        text = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"
        text = text if self.is_memory else f"“{text}”"
        return f"- ({source}) {text}" if source else f"- {text}"


def text_of(content: object) -> str:
    """Returns the plain text of the content of an OpenAI message, which is a string or a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(p["text"]) for p in content if isinstance(p, dict) and p.get("type") == "text")
    return content if isinstance(content, str) else ""


def recalled(content: object) -> list[Quote]:
    """Returns the quotes in a tool result: JSON `{"items": [{"text", "speaker", "time"}], "memories": [{"text",
    "since"}]}`, a list of items, or plain text with one passage per paragraph."""
    text = text_of(content)
    try:
        value = json.loads(text)
    except ValueError:
        return [Quote(part.strip()) for part in text.split("\n\n") if part.strip()]
    memories = value.get("memories") if isinstance(value, dict) else None
    if isinstance(value, dict):
        value = value.get("items") or value.get("results")
    made = [
        _quote(item, is_memory)
        for items, is_memory in ((memories, True), (value, False))
        if isinstance(items, list)
        for item in items
    ]
    return [quote for quote in made if quote.text]


def _quote(item: object, is_memory: bool) -> Quote:
    if not isinstance(item, dict):
        return Quote(str(item), is_memory=is_memory)
    text = item.get("text") or item.get("chunk") or item.get("content") or ""
    speaker = item.get("speaker") or item.get("name") or item.get("role") or ""
    date = item.get("time") or item.get("date") or item.get("created_at") or item.get("since") or ""
    return Quote(str(text), str(speaker), str(date)[:10], is_memory)


def said_before(messages: Sequence[Mapping[str, Any]]) -> list[Quote]:
    """Returns the messages of user and assistant before the last one as quotes. A message of notes is split into its
    entries; turnlog's own messages, such as offline answers, are left out."""
    spoken = [m for m in messages if m.get("role") in ("user", "assistant") and _words(m)]
    return [quote for m in spoken[:-1] for quote in _quotes(_words(m), str(m.get("name") or m["role"]))]


def _quotes(words: str, speaker: str) -> list[Quote]:
    if not words.startswith(NOTES):
        return [Quote(words, speaker)]
    quotes, title = list[Quote](), ""
    for line in words.splitlines():
        if line in (*NOTES, ENTITIES):
            title = line
        elif title == ENTITIES:
            continue  # entities, which nobody said in these words
        elif (note := _NOTE.match(line)) and note["text"] not in TOLD:
            before, colon, after = note["text"].partition(": ")
            is_said = colon and title in SAID_EARLIER
            text, speaker = (after, before) if is_said else (note["text"], "")
            quotes.append(Quote(text, speaker, note["date"] or "", title == MEMORIES))
    return quotes


def _words(message: Mapping[str, Any]) -> str:
    """Returns the words of a message, without thinking; "" for turnlog's own messages and earlier quotes."""
    text = _THINKING.sub("", text_of(message.get("content"))).strip()
    return "" if text.startswith(_OWN) else text


def nearest(question: str, quotes: Sequence[Quote], limit: int) -> list[Quote]:
    """Returns the quotes that contain enough words of the question, best first; rare words count more."""
    asked = set(terms(question))
    words_of_quotes = [set(terms(quote.text)) for quote in quotes]
    frequency = Counter(word for quote_words in words_of_quotes for word in quote_words)
    weight = {word: math.log(1 + len(quotes) / (1 + frequency[word])) + 0.1 for word in asked}
    total = sum(weight.values()) or 1.0
    scored = [(sum(weight[w] for w in asked & quote_words) / total, i) for i, quote_words in enumerate(words_of_quotes)]
    # If scores are equal, the later quote comes first, because it is the newer statement.
    best = sorted((pair for pair in scored if pair[0] >= 0.3), key=lambda pair: (-pair[0], -pair[1]))
    return [quotes[i] for _, i in best[:limit]]


_RECALLED, _RECENT = 3, 2

_PIECE = re.compile(r"[^\s\u4e00-\u9fff]+\s*|[\u4e00-\u9fff]{1,2}\s*|\s+")


class OfflineChat:
    """A ChatModel that uses no model: it calls recall_memory with the question and quotes the results.

    Deterministic: the same messages lead to the same tool call id and the same text. `recalled` describes the tool
    results.
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
    """The last question of a conversation, with the messages before it and the tool results after it."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        asked = [i for i, m in enumerate(messages) if m.get("role") == "user"]
        last = asked[-1] if asked else len(messages)
        self._before = messages[: last + 1]
        self._results = [m for m in messages[last + 1 :] if m.get("role") == "tool"]
        self.question = text_of(messages[last].get("content")) if asked else ""

    def wants_recall(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        offered = any(_name(tool) == RECALL_TOOL for tool in tools)
        return offered and not self._results and bool(self.question.strip()) and not asks_to_forget(self.question)

    def recall_call(self, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
        schema = next(tool for tool in tools if _name(tool) == RECALL_TOOL)["function"].get("parameters", {})
        argument = "query" if "query" in schema.get("properties", {"query": {}}) else schema["required"][0]
        arguments = json.dumps({argument: self.question}, ensure_ascii=False)
        # The position in the conversation is part of the id, because the same question may be asked twice.
        seed = f"{len(self._before)}\n{arguments}".encode()
        return ToolCall(id=f"call_{hashlib.sha256(seed).hexdigest()[:16]}", name=RECALL_TOOL, arguments=arguments)

    def answer(self) -> str:
        language = "zh" if is_chinese(self.question) else "en"
        if asks_to_forget(self.question):  # a memory to be forgotten is not quoted
            return _TO_FORGET[language]
        recalled_quotes = [quote for m in self._results for quote in recalled(m.get("content"))]
        quotes = {
            quote.text: quote for quote in [*recalled_quotes, *said_before(self._before)] if self._may_answer(quote)
        }
        memories = [quote for quote in quotes.values() if quote.is_memory]
        if memories and asks_for_everything(self.question):
            return "\n".join([_FOUND[language], *(quote.shown() for quote in memories), _MORE[language]])
        near = nearest(self.question, memories, _RECALLED)
        turns = [quote for quote in recalled_quotes if not quote.is_memory and quote.text in quotes][:_RECALLED]
        # recall_memory leaves out the turns in the context, so they are searched here.
        recent = nearest(self.question, [quote for quote in quotes.values() if not quote.is_memory], _RECENT)
        # Memories come before turns, because turns may be out of date.
        shown = [*near, *turns, *recent] or memories[:_RECALLED]
        lines = [quote.shown() for quote in dict.fromkeys(shown)]
        return "\n".join([_FOUND[language], *lines]) if lines else _NOTHING[language]

    def _may_answer(self, quote: Quote) -> bool:
        """Returns whether a quote may be the answer. An earlier copy of the question and a request to forget may
        not."""
        return _letters(quote.text) != _letters(self.question) and not asks_to_forget(quote.text)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", {}).get("name", ""))
