"""Strikes words from events. Pure: takes an event, returns the event without the words, or None.

Struck words become `[redacted]`. In the bytes of LangGraph's values, each byte of a struck string becomes `*`, because
these bytes also contain the length of the string.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from json import dumps
from typing import Any
from unicodedata import normalize
from uuid import UUID

from pydantic_core import from_json

from turnlog.agent.privacy.erasure.string_search import KEY_BYTES, candidates, long_sentences, parts_of
from turnlog.agent.privacy.redaction.folding import folded_text, folded_with_places, merged, runs_in
from turnlog.events.codec import decode, encode
from turnlog.events.contracts import (
    CheckpointSaved,
    CheckpointWritesSaved,
    EntitiesFound,
    Event,
    Memory,
    MemorySource,
    ProfileWritten,
    SegmentCheckpointed,
    StoreItemPut,
    SummaryWritten,
    TextBlock,
    ThreadForked,
    ThreadRestored,
    ToolResultBlock,
    ToolUseBlock,
    TopicsTagged,
    TurnRecorded,
)
from turnlog.events.errors import InvalidEvent, TurnlogError

MARK = "[redacted]"
SIGNED, SIGNATURE_BYTES = "turnlog.signed.", 32  # as in consumers/langgraph/checkpoint/items.py
Sign = Callable[[str, bytes], bytes]
# Keys of blocks, calls and sources whose values are ids and kinds, not people's words.
_STRUCTURE = frozenset({"type", "id", "tool_use_id", "event_id", "thread", "said_at", "media_type", "signature"})
# Fields with JSON of any form, from an application or a model. In them, words are also struck from numbers and from the
# values of keys in _STRUCTURE.
_FREE = frozenset({"input", "attributes", "metadata", "user_snapshot", "global_state", "value"})
# Matches where a word can begin in msgpack and pickle: there, a byte of the string's length may look like a letter.
_BEGINS = rb"(?:(?<![A-Za-z0-9_])|(?<=[\xd9\x8c][\x00-\xff])|(?<=\xda[\x00-\xff]{2}))"
_LOOK_ALIKES = str.maketrans("аеорсухіјѕԁһԛԝαοрν", "aeopcyxijsdhqwaopv")
_WORDS_OF_SCRIPTS = r"[^\W⺀-\U0010ffff]"  # a word character of a script that puts spaces between words


class InvalidWords(TurnlogError):
    """The words cannot be struck: they are missing or too short, the mark contains them, or an event cannot be stored
    without them."""

    code = "invalid-words"


@dataclass(frozen=True, slots=True)
class Strike:
    """The words to strike. texts: struck from every event. whole: the turn with the id turn_id is struck completely.
    runs: runs of its words, which are struck too, so that nothing remains of a sentence that is quoted only in part.

    pattern, in_bytes: match `texts` in text and in bytes; None if `texts` is empty. sign: computes the signature of a
    LangGraph value; None if nothing is signed.
    """

    turn_id: UUID
    seq: int
    whole: bool
    texts: tuple[str, ...]
    pattern: re.Pattern[str] | None
    in_bytes: re.Pattern[bytes] | None
    sign: Sign | None = None
    runs: frozenset[str] = frozenset()

    def without(self, text: str) -> str:
        for first, last in reversed(self.spans(text)):
            text = text[:first] + MARK + text[last:]
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns (start, end) of each place where `text` contains one of the texts or runs to strike, in any
        spelling."""
        folded, places = (text.casefold(), None) if text.isascii() else folded_with_places(text)
        spans = [match.span() for match in self.pattern.finditer(folded)] if self.pattern else []
        if self.runs:
            spans = merged([*spans, *((start, end) for run, start, end in runs_in(folded) if run in self.runs)])
        return spans if places is None else [(places[start][0], places[end - 1][1]) for start, end in spans]

    def in_bytes_without(self, raw: bytes) -> bytes:
        """Returns the bytes with each byte of a struck string replaced by `*`. Runs are found only in their usual
        spelling, because folding large values would take long."""
        masked = self.in_bytes.sub(lambda match: b"*" * len(match[0]), raw) if self.in_bytes else raw
        if not self.runs:
            return masked
        text = masked.decode(errors="surrogateescape")
        folded = text.casefold()
        if len(folded) != len(text):  # places must stay the same
            folded = text
        for start, end in reversed(merged([(start, end) for run, start, end in runs_in(folded) if run in self.runs])):
            text = text[:start] + "*" * len(text[start:end].encode(errors="surrogateescape")) + text[end:]
        return text.encode(errors="surrogateescape")

    @property
    def searched(self) -> list[str]:
        """Returns the texts, and the parts of long sentences in which a run remains; the other parts were said in
        other turns too."""
        parts = (part for text in self.texts for sentence in long_sentences(text) for part in parts_of(sentence))
        found = (part for part in parts if any(run in self.runs for run, _, _ in runs_in(folded_text(part))))
        return list(dict.fromkeys([*self.texts, *found]))

    def only(self, texts: Sequence[str], runs: frozenset[str]) -> "Strike":
        """Returns a copy of the strike with these texts and runs instead of its own."""
        return replace(self, texts=tuple(texts), **_patterns(texts), runs=runs)


def strike_of(turn: Event, seq: int, words: str | None, sign: Sign | None = None) -> Strike:
    """Returns the strike for a turn. words: None for the complete turn; its sentences, parts of them, numbers and codes
    are then also struck from other events. Raises InvalidWords."""
    if words is not None:
        texts = [" ".join(words.split())]
        if len(texts[0]) < 2 or not any(char.isalnum() for char in texts[0]):
            raise InvalidWords("give at least two characters to strike, with a letter or digit among them")
    else:
        texts = sentences_of(turn)
    texts = sorted(dict.fromkeys(text for text in texts if MARK not in text), key=len, reverse=True)
    said = [folded_with_places(text)[0] for text in texts if words is None]
    runs = frozenset(run for text in said for run, _, _ in runs_in(text))
    strike = Strike(turn.id, seq, words is None, tuple(texts), **_patterns(texts), sign=sign, runs=runs)
    if strike.without(MARK) != MARK or (not texts and words):
        raise InvalidWords(f"{words!r} cannot be told from {MARK}, which stands for what was struck")
    return strike


def strike_of_texts(texts: Sequence[str], sign: Sign | None = None) -> Strike:
    """Returns a strike of these texts in every event; it belongs to no turn."""
    return Strike(UUID(int=0), 0, False, tuple(texts), **_patterns(texts), sign=sign)


def with_data(event: Event, changed: Mapping[str, Any]) -> Event:
    """Returns the event with these fields of its data changed; the event itself if nothing changes. Raises
    InvalidWords."""
    return _with(event, dict(changed)) or event


def sentences_of(turn: Event) -> list[str]:
    """Returns the texts of a turn, and their sentences, the beginnings of long sentences, numbers and codes, without
    those that are too short to search for."""
    said = _texts(turn.data.model_dump(mode="json", include={"content", "tool_calls"}))
    parts = [part for text in said for part in (text.strip(), *candidates(text), *long_sentences(text))]
    return [part for part in parts if len(part.encode()) >= KEY_BYTES and folded_text(part) not in MARK]


def comparable(texts: Iterable[str]) -> str:
    """Returns the texts joined and normalised, so that sentences match regardless of spelling and line breaks."""
    return " ".join(folded_text(" ".join(texts)).split())


def said_in(turn: TurnRecorded) -> str:
    """Returns the texts of a turn in the form of `comparable`."""
    return comparable(_texts(turn.model_dump(mode="json", include={"content", "tool_calls"})))


def _patterns(texts: Sequence[str]) -> dict[str, Any]:
    """Returns the patterns of a Strike. They also match texts that are escaped within JSON."""
    folded = dict.fromkeys(form for text in texts for form in (folded_text(text), *_escaped(text)))
    raw = dict.fromkeys(form.encode().lower() for text in texts for form in (*_spellings(text), *_escaped(text)))
    return {
        "pattern": re.compile("|".join(map(_pattern, folded)), re.IGNORECASE) if texts else None,
        "in_bytes": re.compile(b"|".join(map(_pattern_in_bytes, raw)), re.IGNORECASE) if texts else None,
    }


def _spellings(text: str) -> set[str]:
    """Returns the text in several cases, with accents composed and decomposed."""
    cases = (text, text.lower(), text.upper(), text.title(), text.casefold())
    return {normalize(form, spelled) for spelled in cases for form in ("NFC", "NFD")}


def _escaped(text: str) -> list[str]:
    return [escaped for form in sorted(_spellings(text)) if (escaped := dumps(form)[1:-1]) != form]


def _pattern(text: str) -> str:
    """Returns a pattern for a text. Short texts match only as separate words, longer ones also within words."""
    pattern = r"(?:\s|\\[nrt])+".join(map(re.escape, text.split()))
    if len(text.encode()) >= KEY_BYTES:
        return pattern
    before = f"(?<!{_WORDS_OF_SCRIPTS})" if re.match(_WORDS_OF_SCRIPTS, text[0]) else ""
    after = f"(?!{_WORDS_OF_SCRIPTS})" if re.match(_WORDS_OF_SCRIPTS, text[-1]) else ""
    return before + pattern + after


def _pattern_in_bytes(raw: bytes) -> bytes:
    """Returns a pattern like `_pattern`, for bytes; "ann" must not be struck from the key "channel" of a state."""
    if len(raw) >= KEY_BYTES:
        return re.escape(raw)
    text = raw.decode()
    before = _BEGINS if re.match(_WORDS_OF_SCRIPTS, text[0]) else b""
    return before + re.escape(raw) + (b"(?![A-Za-z0-9_])" if re.match(_WORDS_OF_SCRIPTS, text[-1]) else b"")


def may_spell(event: Event, strike: Strike) -> bool:
    """Returns whether the event's texts contain the letters and digits of a text to strike in order, with any other
    characters between them. Some letters of other scripts count as the Latin letters that they resemble."""
    said = _letters("".join(_texts(event.data.model_dump(mode="json"))))
    return any(len(text) >= KEY_BYTES and _letters(text) in said for text in strike.texts)


def _letters(text: str) -> str:
    return "".join(char for char in folded_text(text) if char.isalnum()).translate(_LOOK_ALIKES)


def struck(event: Event, strike: Strike, seq: int) -> Event | None:
    """Returns the event without the struck words, or None if it contains none of them. seq: sequence of the event."""
    data = event.data
    if isinstance(data, TurnRecorded) and seq == strike.seq and strike.whole:
        return _with(event, _emptied(data))
    if isinstance(data, ThreadRestored):
        parts = [_restored(part.envelope, strike, part.seq) for part in data.events]
        told = [part.model_copy(update={"envelope": text}) for part, text in zip(data.events, parts, strict=True)]
        return _with(event, {"events": told})
    paths = (*type(data).PERSONAL, *(("error",) if type(data).QUOTES_ERRORS else ()))
    if not paths:
        return None
    said = data.model_dump(mode="json", exclude_none=True)
    for path in paths:
        *above, name = path.split(".")
        holder = said
        for part in above:
            holder = holder.get(part) or {}
        if holder.get(name):
            has_bytes = isinstance(data, CheckpointSaved | CheckpointWritesSaved)
            holder[name] = _without(holder[name], strike, has_bytes, name in _FREE and not has_bytes)
    match data:
        case TurnRecorded(content=tuple()):
            _strike_across(said["content"], strike)
        case EntitiesFound():
            said["entities"] = [entity for entity in said["entities"] if not _names(entity, strike)]
        case TopicsTagged():
            said["topics"] = {topic: mentions for topic, mentions in said["topics"].items() if MARK not in topic}
        case StoreItemPut() if said["value"] != data.model_dump(mode="json", exclude_none=True)["value"]:
            said |= {"vectors": {}, "model": None}
        case ThreadForked() if strike.whole and data.at_seq >= strike.seq:
            said |= {"summary": None, "topics": {}, "tagged_through": 0}
    memory = getattr(data, "memory", None)
    if strike.whole and isinstance(memory, Memory) and _is_from(memory.sources, strike):
        said["memory"] |= {"content": MARK, "entities": []}
        for name in ("category", "value", "dedupe_key", "metadata"):
            said["memory"].pop(name, None)
        for source in said["memory"]["sources"]:
            source["quote"] = MARK if source["event_id"] == str(strike.turn_id) else source["quote"]
    return _with(event, said)


def _strike_across(blocks: list[dict[str, Any]], strike: Strike) -> None:
    """Strikes words that begin in one block of text and end in a later block."""
    texts = [block for block in blocks if block["type"] == "text"]
    for joiner in ("", " "):
        spans = strike.spans(joiner.join(block["text"] for block in texts))
        start = 0
        for block in texts:
            text, end = block["text"], start + len(block["text"])
            for first, last in reversed([span for span in spans if span[0] < end and span[1] > start]):
                block["text"] = block["text"][: max(first - start, 0)] + MARK + block["text"][last - start :]
            start += len(text) + len(joiner)


def is_derived(event: Event, strike: Strike) -> bool:
    """Returns whether a model made the event's text from turns that include the completely struck turn. The text may
    repeat it in other words, so the event is removed without a replacement, and made again from the other turns."""
    match event.data:
        case SummaryWritten(covered_seq=covered) | SegmentCheckpointed(covered_seq=covered):
            return strike.whole and (covered or 0) >= strike.seq
        case TopicsTagged(derivation=derivation):
            return strike.whole and derivation.from_seq <= strike.seq <= derivation.through_seq
        case ProfileWritten(source_ids=turns):
            return strike.whole and strike.turn_id in turns
    return False


def _with(event: Event, said: dict[str, Any] | TurnRecorded) -> Event | None:
    """Returns the event with changed data; None if the data stays the same. Raises InvalidWords."""
    if isinstance(said, dict):
        try:
            data = type(event.data).model_validate({**event.data.model_dump(mode="json"), **said})
        except ValueError as error:
            raise InvalidWords(f"event {event.id} ({event.type}) cannot be stored without these words") from error
    else:
        data = said
    return None if data == event.data else event.model_copy(update={"data": data})


def _emptied(turn: TurnRecorded) -> TurnRecorded:
    """Returns the turn without its words. Tool calls and results stay without content, because models refuse a call
    without its result and vice versa."""
    content: Any = MARK if turn.content else turn.content
    if isinstance(turn.content, tuple):
        kept: list[Any] = [TextBlock(text=MARK)]
        for block in turn.content:
            match block:
                case ToolUseBlock():
                    kept.append(block.model_copy(update={"input": {}}))
                case ToolResultBlock():
                    kept.append(block.model_copy(update={"content": MARK}))
        content = tuple(kept)
    calls = tuple(call.model_copy(update={"arguments": "{}"}) for call in turn.tool_calls)
    return turn.model_copy(update={"content": content, "tool_calls": calls, "name": None})


def _restored(envelope: str, strike: Strike, seq: int) -> str:
    try:
        inner = decode(envelope.encode())
    except InvalidEvent:
        return envelope
    clean = struck(inner, strike, seq)
    return envelope if clean is None else encode(clean).decode()


def _without(value: Any, strike: Strike, has_bytes: bool, is_free: bool = False) -> Any:
    match value:
        case str():
            return _text_without(value, strike)
        case int() | float() if is_free and not isinstance(value, bool):
            return value if strike.without(str(value)) == str(value) else MARK
        case {"encoding": str(encoding), "data": str(data), **rest} if has_bytes:
            return {**rest, "encoding": encoding, "data": _masked_bytes(encoding, data, strike)}
        case dict():
            free = frozenset() if has_bytes else _FREE
            return {
                strike.without(key): item
                if key in _STRUCTURE and not is_free
                else _without(item, strike, has_bytes, is_free or key in free)
                for key, item in value.items()
            }
        case list():
            return [_without(item, strike, has_bytes, is_free) for item in value]
    return value


def _text_without(text: str, strike: Strike) -> str:
    """Returns the text without the struck words. JSON, such as the arguments of a tool, stays valid JSON if a number is
    struck."""
    masked = strike.without(text)
    if masked == text or not text.startswith(("{", "[")):
        return masked
    try:
        value = from_json(text)
    except ValueError:
        return masked
    try:
        from_json(masked)
    except ValueError:
        return dumps(_without(value, strike, has_bytes=False, is_free=True), ensure_ascii=False)
    return masked


def _masked_bytes(encoding: str, data: str, strike: Strike) -> str:
    raw = b64decode(data)
    signature, said = b"", raw
    if encoding.startswith(SIGNED):
        signature, said = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
    masked = strike.in_bytes_without(said)
    if masked == said:
        return data
    if signature and strike.sign:
        plain = encoding.removeprefix(SIGNED)
        # A value with a wrong signature is never read, so it needs no new one.
        if strike.sign(plain, said) == signature:
            signature = strike.sign(plain, masked)
    return b64encode(signature + masked).decode()


def _names(entity: dict[str, Any], strike: Strike) -> bool:
    """Returns whether an entity contains the mark, or comes from the completely struck turn."""
    own = {name: value for name, value in entity.items() if name != "sources"}
    is_from = any(source["event_id"] == str(strike.turn_id) for source in entity["sources"])
    return MARK in dumps(own) or (strike.whole and is_from)


def _is_from(sources: Sequence[MemorySource], strike: Strike) -> bool:
    return any(source.event_id == strike.turn_id for source in sources)


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for key, item in value.items() if key not in _STRUCTURE for text in _texts(item)]
        case list():
            return [text for item in value for text in _texts(item)]
    return []
