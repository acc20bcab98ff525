"""Explicit requests to remember (M1): "remember that …", "记住：…". Pure: text in, requests out.

The two patterns are the seed's. Alone they would also match "do you remember that day?" and "我记住了", so the
text before and after them must make it a request.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from turnlog.agent.memory.extraction.evidence import is_question, own_words
from turnlog.events.contracts import MemoryKind

MAX_CONTENT = 1_000
_ZH = re.compile(r"记住[:：]?\s*(.+)$", re.MULTILINE)
_EN = re.compile(r"(?<![A-Za-z])remember(?:\s+that)?[:\s]+(.+)$", re.IGNORECASE | re.MULTILINE)

_BEFORE_ZH = re.compile(
    r"(?:请|请你|麻烦|帮我|帮忙|你|您|要|得|能|能不能|可以|可不可以|可否|必须|务必|千万|一定|永远|给我|好好|拜托|我要|我想|我希望|希望|让|好的?|那么?|对了|另外"
    r"|还有|以后|顺便|先|也|都|先帮我|AI|助手|[\s，,、:：!！])*"
)
_SPEAKS_OF_SELF_ZH = re.compile(r"(?:我要|我想|我希望)(?!.*(?:你|您))|^\W*(?:希望|让)(?!.*(?:你|您))")
_BEFORE_EN = re.compile(
    r"(?:hey|hi|hello|ok|okay|so|and|also|now|then|please|pls|kindly|always|btw|by the way|one more thing|note"
    r"|important|(?:can|could|will|would) you|you (?:must|should|need to|have to|can)|i (?:want|need) you to"
    r"|i(?: would|['’]?d) like you to|make sure (?:to|you)|be sure to|do|turnlog|assistant|ai|from now on|for next time"
    r"|for later|[\s,:!\-–—])*",
    re.IGNORECASE,
)
_ASKS_POLITELY = re.compile(r"(?:can|could|will|would) you|能|可以|可否|可不可以", re.IGNORECASE)
_NOT_TOLD_ZH = re.compile(r"(?:了|过|吗|没|的|不住|得|啦|咯|吧|一下$|我$|你|他|她|它|这|那)")
_NOT_TOLD_EN = re.compile(
    r"(?:when|how|what|where|who|whom|why|which|if|the (?:time|times|day|days|moment|good|old|first time|last time)"
    r"|last|me|us"
    r"|him|her|them|it|this|those|these|that (?:day|time|night|moment|one)|you|your|correctly|right|well|much"
    r"|anything|everything|nothing|exactly|reading|seeing|going|being|having|doing)\b",
    re.IGNORECASE,
)
_POINTER = re.compile(
    r"(?:this|the following|these(?: things)?|the fact that|following)\s*[:：]?\s*(?=\S.{3,})(?<=[:：\s])"
    r"|(?:这一点|这点|这个|这件事|这些|以下(?:内容|几点|信息)?|下面(?:的话|这句话|的内容)?|一下)\s*[:：，,]\s*",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"\s*[,，]\s*(?:好吗|好不好|可以吗|行吗|好么|ok(?:ay)?|alright|right|will you|would you|please"
    r"|thanks?|thank you|谢谢)"
    r"\s*[?？!！.。]*$",
    re.IGNORECASE,
)
_ASKING = re.compile(r"[吗么]$")
_NOT_THAT = re.compile(
    r"(?:days?|times?|nights?|moments?|one|trip|year|summer|winter|weekend|feeling|song|film|movie|book|place|evening)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^。！？!?.；\n]+(?:\.(?!\s|$)[^。！？!?.；\n]*)*[。！？!?.；]*")
_BULLET = re.compile(r"[ \t]*(?:[-*•·]|\d+[.)、])[ \t]+(?P<item>[^\n]+)\n?")
_KINDS: tuple[tuple[MemoryKind, re.Pattern[str]], ...] = (
    (
        "DECISION",
        re.compile(r"\bi(?:'ve| have)? (?:decided|chose|will not|won't)\b|我(?:已经)?决定|我选择", re.IGNORECASE),
    ),
    ("FEEDBACK", re.compile(r"\byour (?:answers?|repl(?:y|ies)|responses?)\b|你的?(?:回答|回复)", re.IGNORECASE)),
    (
        "PREFERENCE",
        re.compile(
            r"\b(?:like|likes|love|prefer|hate|favou?rite|dislike|enjoy|want)\b|喜欢|讨厌|偏好|最爱|不爱|宁愿|希望|想要",
            re.IGNORECASE,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to remember something. start, end: of its sentences, the quote. refused: why it is not a request.

    needs_rule: it has the form of a question, and counts only if a rule finds a statement in it.
    """

    content: str
    start: int
    end: int
    content_start: int
    refused: str | None = None
    needs_rule: bool = False


def requests(text: str) -> list[Request]:
    """Requests in the order of the text; the rest of its line belongs to a request."""
    words = own_words(text)
    found = [one for pattern, is_zh in ((_ZH, True), (_EN, False)) for one in _requests(words, pattern, is_zh)]
    taken: list[Request] = []
    for one in sorted(found, key=lambda request: request.start):
        if not taken or one.start >= taken[-1].end:
            taken.append(one)
    return taken


def kind_of(content: str) -> MemoryKind:
    return next((kind for kind, pattern in _KINDS if pattern.search(content)), "FACT")


def _requests(words: str, pattern: re.Pattern[str], is_zh: bool) -> Iterator[Request]:
    for found in pattern.finditer(words):
        before_at = _sentence_start(words, found.start())
        before = words[before_at : found.start()]
        colon = words[found.start() : found.start(1)].rstrip().endswith((":", "："))
        if "\n" in words[found.start() : found.start(1)] and not colon:
            continue
        that = not is_zh and "that" in words[found.start() : found.start(1)].lower()
        refused = _refused(
            before, found[1], _NOT_TOLD_ZH if is_zh else _NOT_THAT if that else _NOT_TOLD_EN, is_zh, colon
        )
        if refused:
            yield Request(found[1], before_at, found.end(), found.start(1), refused)
        elif bullet := _BULLET.match(words, found.start(1)):
            yield from _bullets(words, before_at, bullet)
        else:
            yield _request(words, before, before_at, found.start(1), found[1])


def _bullets(words: str, start: int, bullet: re.Match[str] | None) -> Iterator[Request]:
    while bullet:
        item = bullet["item"].rstrip()
        first = bullet.start("item")
        yield Request(item.rstrip("。.;；"), first, first + len(item), first)
        bullet = _BULLET.match(words, bullet.end())


def _request(words: str, before: str, start: int, at: int, rest: str) -> Request:
    content, asks = _stated(rest)
    end = at + len(content)
    if not content:
        return Request(rest, start, at + len(rest), at, "question")
    content_text = _TAG.sub("", content)
    asks = asks and content_text == content
    pointer = _POINTER.match(content_text)
    first = at + (pointer.end() if pointer else 0)
    content_text = words[first : at + len(content_text)].strip().rstrip("。.!！?？；;，, ").lstrip("，,:： ")
    if asks:
        content_text = _ASKING.sub("", content_text)
    return Request(content_text[:MAX_CONTENT], start, end, first, None if content_text else "empty", asks)


def _refused(before: str, content: str, not_told: re.Pattern[str], is_zh: bool, colon: bool) -> str | None:
    allowed = _BEFORE_ZH if is_zh else _BEFORE_EN
    if not allowed.fullmatch(before) or (is_zh and _SPEAKS_OF_SELF_ZH.search(before)):
        return "no-request"
    if _POINTER.match(content):
        return None
    return "says-nothing" if not colon and not_told.match(content) else None


def _stated(rest: str) -> tuple[str, bool]:
    """The sentences up to the first question, and whether the first one is a question itself (a polite request)."""
    kept = 0
    for number, found in enumerate(_SENTENCE.finditer(rest)):
        if is_question(found.group().strip()):
            if number == 0:
                return rest[: found.end()].rstrip(), True
            break
        kept = found.end()
    return rest[:kept].rstrip(), False


def _sentence_start(words: str, at: int) -> int:
    marks = [words.rfind(mark, 0, at) for mark in "。！？!?；;\n"]
    stop = words.rfind(". ", 0, at)
    start = max([*marks, stop]) + 1
    return start + len(words[start:at]) - len(words[start:at].lstrip())
