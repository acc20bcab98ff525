"""Analyses a question: its parts, its kind, the times that it names, and whose words it asks for. Pure.

Each part is searched for separately. "Where is my flat? Also, who is my landlord?" has two parts; the parts of "How
many days were there between A and B?" are the two events. If a question asks for an order or a summary, only its topic
is searched for, because "list the order in which I brought up" says what to do with the turns, not what they contain.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Literal

from turnlog.agent.memory.dates.dates import Dated, dates_in
from turnlog.projectors.models.terms import terms

Kind = Literal["fact", "order", "summary"]
WordsOf = Literal["people", "user", "anyone"]

MOST_PARTS = 3  # each is a separate search with its share of the k turns
MAX_CHARS = 2_000  # a longer text is one part: it is searched for as it is

_WH = "what|where|who|whom|whose|when|which|why|how"
_ASKS = re.compile(
    rf"什么|啥|哪|谁|多少|几|怎么|咋|怎样|如何|吗|是不是|有没有|\b(?:{_WH})\b"
    r"|^\W*(?:and |so |but )?(?:do|does|did|is|are|was|were|have|has|had|can|could|will|would|should|am)\b",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r"[，,。；;！!\s]*(?:另外|此外|顺便问(?:一下|下)?)[，,：:]?\s*|(?<=[.?!])\s+(?:also|besides|in addition)\b,?\s+",
    re.IGNORECASE,
)
# "and when" does not begin another question: "Where did we meet and when?" is about one event.
_CUT = re.compile(
    rf"(?<=[?？])[\s\"'”’」』）)]*(?=\S)|,?\s+and\s+(?:also\s+)?(?=(?:{_WH.replace('|when', '')})\b)", re.IGNORECASE
)
_ENDS_OPEN = re.compile(rf"\b(?:{_WH}|and|or)$", re.IGNORECASE)
_REFERS_BACK = re.compile(
    r"\b(?:it|its|that|this|there|they|them|their|these|those|he|she|him|his|her|hers|ones?|else)\b"
    r"|^(?:那|这)?[他她它]|^在?(?:那里|那儿|那时|当时|其中|然后)",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[a-z] )[A-Z][a-z]+")
_SURELY_A_MONTH = re.compile(r"\b(?:in|during|early|late|mid)[\s-]+$", re.IGNORECASE)
# These words introduce the real question; the text before them is not searched for.
_MEANT = re.compile(
    r".*(?:(?:真正|其实|实际上?|本来)[^。？！]{0,4}(?:想|问题)[^。？！，：]{0,8}[，：:]|我想问(?:的是|一下)?[，：:]"
    r"|\b(?:what I (?:really|actually|meant|want)|my (?:real|actual) question)\b[^.?!:,]{0,20}[:,])\s*",
    re.IGNORECASE | re.DOTALL,
)

# Questions about two events: how far apart they are, or which came first.
_EVENT = r"(?:when|the|my|our|your|his|her|their|\w+ing)\b"
_BETWEEN = re.compile(
    rf"\bhow (?:many|much|long)\b.{{0,80}}?\bbetween\s+(?:(?P<a>.+?),?\s+and\s+(?P<b>when\b.+)"
    rf"|(?P<c>.+),?\s+and\s+(?P<d>{_EVENT}.+))$|^从(?P<e>.+?)到(?P<f>.+?)(?:之间)?(?:相?隔|相?差|过|有|用)了?(?:多少|几|多久)"
    r"|^(?P<g>.+?)[和与](?P<h>.+?)(?:之间|相隔|相差|隔了).{0,4}(?:多少|几|多久)",
    re.IGNORECASE | re.DOTALL,
)
_FIRST = re.compile(
    r"\b(?:first|earlier|later|last)\b[^:,]*[:,]\s+(?P<a>.+?),?\s+or\s+(?P<b>.+)$"
    r"|^(?P<c>.+?)[和与](?P<d>.+?)(?:哪个|哪一个|谁|哪件事?)(?:更|是|发生在?)?(?:先|早|晚|在前|在后|靠前|靠后)",
    re.IGNORECASE | re.DOTALL,
)

_ORDER = re.compile(
    r"\bin (?:what|which|chronological) order\b|\border (?:in which|of (?:events|things))\b|\bin order[?.,!]*$"
    r"|\bin order how\b|\b(?:came|happened) first\b|\btimeline of\b|先后|什么顺序|按顺序|时间顺序|次序",
    re.IGNORECASE | re.MULTILINE,
)
_SUMMARY = re.compile(
    r"\b(?:summari[sz]e|summary of|overview of|recap)\b|\bwhat (?:did|have) (?:we|I) (?:talk|chat|speak|discuss)"
    r"|总结|概括|概述|梳理|回顾|聊了(?:什么|哪些)|谈了(?:什么|哪些)",
    re.IGNORECASE,
)
_OUR_TALK = r"(?:conversations?|chats?|discussions?|sessions?|messages?)"
_FRAME = re.compile(
    r"\bmention only\b.*?(?:[.!]|$)|\b(?:can|could|would) you(?: please)?\b"
    r"|\b(?:give|tell|show|provide|list|walk) (?:me|us)(?: through)?\b"
    r"|\b(?:please|list|provide)\b|\bin (?:chronological )?order\b|\b(?:the )?order in which\b"
    r"|\ban? (?:\w+ )?(?:summary|overview|recap) of\b|\b(?:summari[sz]e|recap|everything|so far|over time)\b"
    r"|\b(?:we(?:'ve| have)?|I(?:'ve| have)?) (?:brought up|mentioned|discussed|covered|talked about|worked on)\b"
    r"|\bwhat (?:did|have) (?:we|I) (?:talk|chat|speak|discuss)\w*(?: about)?\b"
    r"|\b(?:different|various) (?:aspects|concepts|topics|things|parts|steps)\b|\brelated to\b"
    r"|\bover the (?:past|last) (?:few|several) \w+"
    rf"|\b(?:through|throughout|across|in|during|from) (?:all )?(?:of )?our {_OUR_TALK}\b"
    r"|\bincluding (?:the )?(?:key )?\b|\b(?:has|have) (?:progressed|developed|evolved|changed)\b"
    r"|请|帮我|总结|概括|概述|梳理|回顾|一下|按时间顺序|按顺序|什么顺序|先后(?:顺序)?|聊了|谈了|话题",
    re.IGNORECASE,
)
_OF_THE_USER = re.compile(
    r"\bI (?:\w+ )?(?:brought|mention|discuss|said|asked|told|talked)|我.{0,6}(?:提|说|问|聊|讲)", re.I
)
_LOOSE = re.compile(r"^(?:(?:of|how|about|and|on)\b|[\s,，])+|[\s,，.?？!！]+$|\s+(?=[,，.?？])", re.IGNORECASE)
_OF_THE_ASSISTANT = re.compile(
    r"\b(?:did|have|had) you (?:\w+ )?(?:recommend|suggest|tell|told|say|said|advise|propose|give|explain|mention|list)"
    r"|\byou (?:recommended|suggested|told|said|advised|proposed|gave|explained|mentioned|listed)\b"
    r"|你(?:曾经?|之前|上次|以前)?(?:有?[给向跟对和]我)?(?:推荐|建议|告诉|介绍|分享|提到|提议|说)[过了的给我]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a question. text: the text to search for. dates: the dates and times in it."""

    text: str
    dates: tuple[Dated, ...] = ()

    @property
    def spans(self) -> tuple[tuple[datetime, datetime], ...]:
        return tuple((date.from_time, date.to_time) for date in self.dates)

    @property
    def undated(self) -> str:
        """The text without its dates and times: "last week" says when something was said, not what was said."""
        text, end = self.text, len(self.text)
        for date in sorted(self.dates, key=lambda date: -date.start):
            if date.start + len(date.text) <= end:
                text, end = f"{text[: date.start]} {text[date.start + len(date.text) :]}", date.start
        return text


@dataclass(frozen=True, slots=True)
class QuestionAnalysis:
    """The analysis of a question. parts: 1 to MOST_PARTS, in the order of the text.

    kind: `order` and `summary` are about many turns. words_of: whose words count. `people`: long answers of the
    assistant count less. `user`: the assistant's words do not count, for the order in which "I brought up" things.
    `anyone`: the assistant's words count as much as people's, because the question asks for them ("What did you
    recommend?") or for a summary, which needs both sides. asks: False for a text that is not a question.
    """

    parts: tuple[Part, ...]
    kind: Kind
    words_of: WordsOf
    asks: bool = True


def read_question(
    text: str, now: datetime | None = None, zone: tzinfo = UTC, names: Collection[str] = ()
) -> QuestionAnalysis:
    """Returns the analysis of a question in English or Chinese. now: when it was asked (aware); without it, dates are
    not recognised. zone: the time zone in which its dates are meant.

    names: search terms of the speakers' names; "after April" is not a date if April is a person.
    """
    kind = _kind(text)
    parts = [text] if len(text) > MAX_CHARS else _parts(text, kind)
    read = tuple(Part(part, _dates(part, now, zone, names)) for part in parts)
    return QuestionAnalysis(read, kind, _words_of(text, kind), _is_asking(text))


def _is_asking(text: str) -> bool:
    return "?" in text or "？" in text or _ASKS.match(text.strip()) is not None


def _kind(text: str) -> Kind:
    if _ORDER.search(text):
        return "order"
    return "summary" if _SUMMARY.search(text) else "fact"


def _words_of(text: str, kind: Kind) -> WordsOf:
    if kind == "summary" or _OF_THE_ASSISTANT.search(text):
        return "anyone"
    return "user" if kind == "order" and _OF_THE_USER.search(text) else "people"


def _dates(part: str, now: datetime | None, zone: tzinfo, names: Collection[str]) -> tuple[Dated, ...]:
    dates = [] if now is None else dates_in(part, now, zone)
    return tuple(date for date in dates if not _is_name(date, part, names))


def _is_name(date: Dated, part: str, names: Collection[str]) -> bool:
    """Returns whether a date such as "April" in "after April" is the name of a person; in "in April" it is not."""
    word = terms(date.text) if date.text.isalpha() else []
    return len(word) == 1 and word[0] in names and not _SURELY_A_MONTH.search(part[: date.start])


def _parts(text: str, kind: Kind) -> list[str]:
    if kind != "fact" and not _FIRST.search(text):
        return [_topic(text)]
    parts: list[str] = []
    for question in _questions(text):
        parts += _events(question) or [question]
    return [*parts[: MOST_PARTS - 1], " ".join(parts[MOST_PARTS - 1 :])] if len(parts) > MOST_PARTS else parts


def _questions(text: str) -> list[str]:
    """Returns the questions of a text. A sentence that is not a question stays with the question after it, and a
    question that refers back to another stays with that one."""
    spans: list[tuple[int, int]] = []
    waiting: int | None = None
    for first, end in _pieces(text):
        begin = first if waiting is None else waiting
        piece = text[begin:end]
        waiting = begin
        if not _ASKS.search(piece) or _ENDS_OPEN.search(piece):
            continue
        if spans and (_refers_back(piece) or not terms(piece)):
            begin = spans.pop()[0]
        spans.append((begin, end))
        waiting = None
    if waiting is not None and spans:
        spans.append((spans.pop()[0], len(text)))
    return [text[first:end].strip() for first, end in spans] or [text]


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    for first, end in _between(_ALSO, text, 0, len(text)):
        meant = _MEANT.match(text, first, end)
        yield from _between(_CUT, text, meant.end() if meant and meant.end() < end else first, end)


def _between(cut: re.Pattern[str], text: str, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the spans between the matches, without blank spans."""
    for match in cut.finditer(text, first, end):
        if text[first : match.start()].strip():
            yield first, match.start()
        first = match.end()
    if text[first:end].strip():
        yield first, end


def _refers_back(question: str) -> bool:
    return _REFERS_BACK.search(question) is not None and not _NAME.search(question)


def _events(question: str) -> list[str]:
    """Returns the two events of "how long between A and B" and "which came first, A or B"; [] for other questions."""
    match = _BETWEEN.search(question) or _FIRST.search(question)
    events = [event.strip(" ?？.") for event in match.groups() if event] if match else []
    return events if all(map(terms, events)) else []


def _topic(text: str) -> str:
    """Returns the topic of a question that asks for an order or a summary; the complete question if there is no
    topic."""
    topic = _LOOSE.sub("", " ".join(_FRAME.sub(" ", text).split()))
    return topic if terms(topic) else text
