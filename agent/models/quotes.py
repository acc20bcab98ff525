"""Which passages answer a question, as far as words can tell: the offline provider's reading of recall results."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnlog.projectors.terms import terms

MAX_CHARS = 400
_NOTES = ("[LONG-TERM MEMORIES]", "[DOCUMENTS]", "[EARLIER IN THIS CONVERSATION]")
_THINKING = re.compile(r"<thinking>.*?(</thinking>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage somebody said. speaker and date are empty where they are not known."""

    text: str
    speaker: str = ""
    date: str = ""

    def shown(self) -> str:
        source = ", ".join(filter(None, (self.date, self.speaker)))
        text = " ".join(self.text.split())
        text = text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"
        return f"- ({source}) “{text}”" if source else f"- “{text}”"


def text_of(content: object) -> str:
    """The plain text of an OpenAI message content: a string, or parts of which the text ones count."""
    if isinstance(content, list):
        return "\n".join(str(p["text"]) for p in content if isinstance(p, dict) and p.get("type") == "text")
    return content if isinstance(content, str) else ""


def recalled(content: object) -> list[Quote]:
    """The quotes in a tool result: JSON `{"items": [{"text", "speaker", "time"}]}` or a list of such, or plain
    text with one passage a paragraph."""
    text = text_of(content)
    try:
        value = json.loads(text)
    except ValueError:
        return [Quote(part.strip()) for part in text.split("\n\n") if part.strip()]
    if isinstance(value, dict):
        value = value.get("items") or value.get("results") or value.get("memories") or []
    return [quote for item in value if (quote := _quote(item)).text] if isinstance(value, list) else []


def _quote(item: object) -> Quote:
    if not isinstance(item, dict):
        return Quote(str(item))
    text = item.get("text") or item.get("chunk") or item.get("content") or ""
    speaker = item.get("speaker") or item.get("name") or item.get("role") or ""
    date = item.get("time") or item.get("date") or item.get("created_at") or ""
    return Quote(str(text), str(speaker), str(date)[:10])


def said_before(messages: Sequence[Mapping[str, Any]]) -> list[Quote]:
    """The user's and the assistant's messages before the last question, and what the graph's notes list."""
    spoken = [m for m in messages if m.get("role") in ("user", "assistant") and _words(m)]
    return [quote for m in spoken[:-1] for quote in _quotes(_words(m), str(m.get("name") or m["role"]))]


def _quotes(words: str, speaker: str) -> list[Quote]:
    if not words.startswith(_NOTES):
        return [Quote(words, speaker)]
    return [Quote(line.removeprefix("- ")) for line in words.splitlines() if line.startswith("- ")]


def _words(message: Mapping[str, Any]) -> str:
    """What was said: neither thinking nor what turnlog puts in front of a conversation itself."""
    text = _THINKING.sub("", text_of(message.get("content"))).strip()
    return "" if text.startswith(("[Conversation Summary]", "[Recallable Topics]")) else text


def nearest(question: str, quotes: Sequence[Quote], limit: int) -> list[Quote]:
    """The quotes that share the question's rarer words, best first; none if they share too little."""
    asked = set(terms(question))
    words = [set(terms(quote.text)) for quote in quotes]
    frequency = Counter(word for found in words for word in found)
    weight = {word: math.log(1 + len(quotes) / (1 + frequency[word])) + 0.1 for word in asked}
    total = sum(weight.values()) or 1.0
    scored = [(sum(weight[w] for w in asked & found) / total, i) for i, found in enumerate(words)]
    # Later wins among equals: what was said last is what holds.
    best = sorted((pair for pair in scored if pair[0] >= 0.3), key=lambda pair: (-pair[0], -pair[1]))
    return [quotes[i] for _, i in best[:limit]]
