"""Extracts a user's own statements from messages. They are the only input of the extraction. Pure.

Words of other people, words that are not meant (quoted.py), and turnlog's own additions to a conversation are left out,
so that rules and models never read their own output.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from turnlog.agent.memory.extraction.findings import ExtractionResult, Turn
from turnlog.agent.memory.extraction.not_meant import takes_back
from turnlog.agent.memory.extraction.quoted import not_own
from turnlog.projectors.models.conversation.message import Message


def roles(tool_results: bool) -> tuple[str, ...]:
    return ("user", "tool") if tool_results else ("user",)


def evidence(
    messages: Iterable[Message], thread: str, user: str, among_people: bool = False, tool_results: bool = False
) -> tuple[list[Turn], int]:
    """Returns the user's own turns in order, and the number of turns with other people's words. tool_results: the turns
    include results of tools.

    among_people: True if the thread has several speakers and no assistant, such as an imported chat; its turns are then
    not requests to turnlog.
    """
    own, others = [], 0
    for message in messages:
        others += message.role == "user" and message.origin not in ("person", "tool")
        own += [
            Turn(thread, message.seq, message.event_id, message.time, text, message.name, tool, among_people)
            for text, tool in _texts(message, tool_results)
        ]
    return own, others


def _texts(message: Message, tool_results: bool) -> Iterator[tuple[str, bool]]:
    if message.role == "tool":
        if tool_results:
            yield said_text(message.content), True
        return
    if message.role != "user":
        return
    if message.origin == "person" and (text := said_text(message.content)):
        yield text, False
    if tool_results and not isinstance(message.content, str):
        for block in message.content:
            if block.get("type") == "tool_result" and (text := said_text(block["content"])):
                yield text, True


def said_text(content: str | list[dict[str, Any]]) -> str:
    """Returns the text of a turn, its blocks joined by line breaks."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def not_taken_back(result: ExtractionResult, turns: Sequence[Turn]) -> ExtractionResult:
    """Drops the findings and entities from turns that the next turn takes back ("just kidding")."""
    said = [turn for turn in turns if not turn.is_tool]
    gone = {turn.event_id for turn, later in pairwise(said) if takes_back(later.text)}
    findings = tuple(finding for finding in result.findings if finding.source.event_id not in gone)
    left = tuple(entity for entity in result.entities if not any(source.event_id in gone for source in entity.sources))
    return replace(result, findings=findings, entities=left) if gone else result


MAX_TURN = 20_000
MAX_SENTENCE = 600

_END = re.compile(r"[。！？!?…；]+[\"”’」』）)*]*|\.+[\"”’)*]*(?=\s+[\"“‘(*]*[A-Z0-9\u3400-\u9fff])|;(?=\s)|\n+")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|vs|etc|e\.g|i\.e|No|Fig|approx|U\.S|U\.K)|\b[A-Z])$")
_CLAUSE = re.compile(r"[,，、]")
_ASKS = re.compile(
    r"[吗呢]\s*$|什么|怎么|怎样|怎麼|如何|为什么|哪[里儿些个位种家]?|[谁几]|多少|是否|有没有|能不能|会不会|要不要|是不是|好不好"
    r"|可不可以|^\s*(?:那么?|所以)?(?:您|你|妳)|请问|\b(?:you|your|what|how|why|which|who|whom|where|when|whether|any)\b"
    r"|^\s*(?:and |but |so |or )?(?:do|does|did|can|could|would|will|should|shall)\b"
    r"|^\s*(?:and |but |so |or )?(?:is|are|am|was|were|have|has|may|might)\b",
    re.IGNORECASE,
)
_OPENS_QUESTION = re.compile(
    r"^\W*(?:(?:hey|hi|hello|ok|okay|so|and|but|well|please)\W+)*(?:"
    r"(?:do|does|did|can|could|would|will|should|have|has|are|is|was|were)\s+(?:you|i|we|he|she|they|it|my|there)\b"
    r"|(?:what|how|why|where|when|who|which)(?:'s|\s+(?:do|does|did|is|are|was|were|can|could|should|would|will|about)\b))",
    re.IGNORECASE,
)
_ASKS_AT_END = re.compile(r"[吗么]\s*[。.]?\s*$")
_QUOTED = re.compile(
    r"“[^”]*”|‘[^’\n]*’(?!\w)|「[^」]*」|『[^』]*』|《[^》]*》|`[^`\n]*`"
    r"|\"[^\"]*\"|(?<!\w)'[^'\n]{2,}'(?!\w)"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of a turn, or the part of a sentence before a question. text: as written in the turn. start: its
    position in the turn.

    sentence: the complete sentence, which becomes the quote of a memory. is_question: True if the sentence contains
    only a question. quoted: the ranges of the turn that are in quotation marks; a range may begin in another sentence.
    """

    text: str
    start: int
    sentence: str
    is_question: bool = False
    quoted: tuple[tuple[int, int], ...] = ()

    def is_quoted(self, at: int) -> bool:
        """Returns whether the position `at` in `text` is in quotation marks, so that the words are another person's or
        a title."""
        return any(start < self.start + at < end for start, end in self.quoted)


def own_words(text: str) -> str:
    """Returns the first MAX_TURN characters of a text. Line breaks replace all words that are not the user's claims
    (quoted.py), so that positions stay the same."""
    words = list(text[:MAX_TURN])
    for start, end in not_own(text[:MAX_TURN]):
        words[start:end] = "\n" * (end - start)
    return "".join(words)


def quoted_ranges(text: str) -> list[tuple[int, int]]:
    """Returns the ranges (start, end) of a person's text that are not the person's claims, without surrounding
    space."""
    words = own_words(text)
    left_out = "".join("\0" if word == "\n" != char else char for char, word in zip(text, words, strict=False))
    return [match.span() for match in re.finditer(r"\0(?:[\0\s]*\0)?", left_out)]


def statements(text: str) -> list[Statement]:
    """Returns the user's statements in order. Questions are included and marked as such, for reports of rejections."""
    words = own_words(text)
    quoted = quotations(words)
    return [_statement(sentence, start, quoted) for sentence, start in _sentences(words)]


def quotations(words: str) -> tuple[tuple[int, int], ...]:
    """Returns the ranges within quotation marks."""
    return tuple(match.span() for match in _QUOTED.finditer(words))


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    start = 0
    for match in _END.finditer(text):
        if match.group()[0] == "." and _ABBREVIATION.search(text[start : match.start()]):
            continue
        yield from _trimmed(text, start, match.end())
        start = match.end()
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    piece = text[start:end]
    bare = piece.strip()
    if any(char.isalnum() for char in bare):
        yield bare[:MAX_SENTENCE], start + len(piece) - len(piece.lstrip())


def _statement(sentence: str, start: int, quoted: tuple[tuple[int, int], ...]) -> Statement:
    if not is_question(sentence):
        return Statement(sentence, start, sentence, quoted=quoted)
    kept = _before_the_question(sentence)
    return Statement(kept or sentence, start, sentence, is_question=not kept, quoted=quoted)


def is_question(sentence: str) -> bool:
    bare = sentence.rstrip('"”’」』）)* \t!！')
    return bare.endswith(("?", "？")) or bool(_OPENS_QUESTION.match(bare) or _ASKS_AT_END.search(bare))


def _before_the_question(sentence: str) -> str:
    """Returns the clauses before the first one that asks; in a question the last clause always asks."""
    marks = [match.start() for match in _CLAUSE.finditer(sentence)]
    start, kept = 0, 0
    for mark in marks:
        if _ASKS.search(sentence[start:mark]):
            break
        start, kept = mark + 1, mark
    return sentence[:kept].rstrip()
