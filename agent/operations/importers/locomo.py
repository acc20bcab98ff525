"""LoCoMo (snap-research/locomo): two people talk over many sessions; neither is the assistant.

One thread per conversation: thread = label = sample_id, source_id = dia_id, name = the speaker, role user for
both. A session's date is taken as UTC and its turns come 30 seconds apart. A caption becomes searchable
text, `[image: caption]`, before the image's URL.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from turnlog.agent.counting import counted
from turnlog.agent.operations.importers.imported import (
    MALFORMED,
    Conversation,
    Defaults,
    ImportedTurn,
    Item,
    Rejected,
    ThreadNames,
    parse_session_time,
    reason_of,
)
from turnlog.agent.operations.importers.jsontext import Record
from turnlog.events.contracts import Block, Content, ImageBlock, TextBlock, TurnRecorded

BETWEEN_TURNS = timedelta(seconds=30)
_SESSION = re.compile(r"session_(\d+)$")


def read_locomo(records: Iterable[Record], defaults: Defaults, stem: str) -> Iterator[Item]:
    """The turns of every conversation in the records, session by session."""
    names = ThreadNames(defaults, stem)
    for record in records:
        value = record.value
        if record.error:
            yield Rejected(record.where, record.error)
        elif isinstance(value, dict) and isinstance(value.get("conversation"), dict):
            own = value.get("sample_id")
            own = own if isinstance(own, str) else None
            opened = Conversation(defaults, names.next(own), own, own)
            yield from _sessions(opened, value["conversation"])
        else:
            yield Rejected(record.where, "no LoCoMo conversation: it lacks an object `conversation`")


def _sessions(opened: Conversation, sessions: dict[str, Any]) -> Iterator[Item]:
    numbers = sorted(int(match[1]) for match in map(_SESSION.match, sessions) if match)
    seen: set[str] = set()
    for number in numbers:
        where = f"{opened.thread}, session {number}"
        turns = sessions[f"session_{number}"]
        if not isinstance(turns, list):
            yield Rejected(where, "the session is not a list of turns")
            continue
        try:
            start = parse_session_time(sessions.get(f"session_{number}_date_time"))
        except ValueError as error:
            yield Rejected(where, f"{error}; {counted(len(turns), 'turn')} left out")
            continue
        for place, turn in enumerate(turns):
            yield _item(opened, f"{where}, turn {place + 1}", turn, start + place * BETWEEN_TURNS, seen)


def _item(opened: Conversation, where: str, turn: Any, time: Any, seen: set[str]) -> Item:
    opened.number += 1
    try:
        return _turn(opened, turn, time, seen)
    except MALFORMED as error:
        return Rejected(where, reason_of(error))


def _turn(opened: Conversation, turn: Any, time: Any, seen: set[str]) -> ImportedTurn:
    if not isinstance(turn, dict) or not isinstance(turn.get("text"), str):
        raise ValueError("no text: a turn must be an object with speaker, dia_id and text")
    data = TurnRecorded(role="user", name=turn.get("speaker"), content=_content(turn), source_id=turn.get("dia_id"))
    key = data.source_id if data.source_id not in seen else None
    seen.add(key or "")
    return opened.turn(data, time.isoformat(), key)


def _content(turn: dict[str, Any]) -> Content:
    caption, urls = turn.get("blip_caption"), turn.get("img_url") or []
    text: str = turn["text"] if not caption else f"{turn['text']} [image: {caption}]".lstrip()
    images = [ImageBlock(url=url) for url in ([urls] if isinstance(urls, str) else urls)]
    blocks: tuple[Block, ...] = (TextBlock(text=text), *images)
    return blocks if images else text
